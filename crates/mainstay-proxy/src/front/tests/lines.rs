use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, split,
};
use tokio::task::JoinHandle;

use super::*;
use crate::front::lines::{Ended, LineClient, LinesError, serve_lines};

struct Client {
    fake: Arc<Fake>,
    seen: Seen,
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
    served: JoinHandle<Result<Ended, LinesError>>,
    opened: mpsc::UnboundedReceiver<String>,
    leave: oneshot::Sender<()>,
}

impl Client {
    fn new() -> Self {
        Self::with(Fake::new(), None)
    }

    fn with((fake, seen): (Arc<Fake>, Seen), resume: Option<String>) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reader, writer) = split(ours);
        let (input, output) = split(theirs);
        let (tell, opened) = mpsc::unbounded_channel();
        let (leave, left) = oneshot::channel::<()>();
        let left = async {
            if left.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let client = LineClient { server: SERVER.to_owned(), resume };
        let core = Arc::clone(&fake);
        let served = tokio::spawn(serve_lines(
            core,
            client,
            BufReader::new(input),
            output,
            left,
            move |id: &str| drop(tell.send(id.to_owned())),
        ));
        Self { fake, seen, reader: BufReader::new(reader), writer, served, opened, leave }
    }

    async fn initialized(version: &str) -> Self {
        let mut client = Self::new();
        client.says(&initialize("test", version)).await;
        assert_eq!(client.reads().await, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        client
    }

    async fn says(&mut self, line: &str) {
        soon(self.writer.write_all(format!("{line}\n").as_bytes())).await.unwrap();
    }

    async fn reads(&mut self) -> String {
        let mut line = String::new();
        soon(self.reader.read_line(&mut line)).await.unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Ends the input and waits for the end.
    async fn leaves(mut self) -> (Arc<Fake>, Seen) {
        soon(self.writer.shutdown()).await.unwrap();
        assert_eq!(soon(self.served).await.unwrap().unwrap(), Ended::Done);
        (self.fake, self.seen)
    }

    /// The one session there is.
    async fn session(&mut self) -> FakeSession {
        self.fake.session(SERVER, &soon(self.opened.recv()).await.unwrap()).unwrap()
    }
}

#[tokio::test]
async fn a_session_is_opened_served_and_closed() {
    let mut client = Client::initialized("2025-11-25").await;
    assert_eq!(client.opened.recv().await.unwrap(), format!("{:032x}", 0));
    client.says(&note("notifications/initialized")).await;
    assert_eq!(client.seen.post().await, note("notifications/initialized"));
    client.says("").await;
    client.says(&call(1, "slow")).await;
    client.says(&call(2, "fast")).await;
    let slow = client.seen.request().await;
    assert_eq!(client.reads().await, r#"{"jsonrpc":"2.0","id":2,"result":{"fast": true}}"#);
    slow.out.push(note("progress").into());
    assert_eq!(client.reads().await, note("progress"));
    let answer = slow.answers("[\n1]");
    assert_eq!(client.reads().await, answer.replace('\n', " "));
    let (fake, _) = client.leaves().await;
    assert_eq!(fake.sessions(), 0);
}

#[tokio::test]
async fn what_the_server_says_unasked_is_written() {
    let mut client = Client::initialized("2025-11-25").await;
    let session = client.session().await;
    session.streams().general().push(note("list_changed").into());
    assert_eq!(client.reads().await, note("list_changed"));
}

#[tokio::test]
async fn at_the_end_requests_are_given_up() {
    let mut client = Client::initialized("2025-11-25").await;
    client.says(&call(1, "slow")).await;
    let slow = client.seen.request().await;
    client.leaves().await;
    slow.given_up().await;
}

#[tokio::test]
async fn a_panic_fails_its_request_and_nothing_else() {
    let mut client = Client::initialized("2025-11-25").await;
    client.says(&call(1, "fail")).await;
    assert!(client.reads().await.contains(r#""id":1,"error""#));
    client.says(&call(2, "fail late")).await;
    drop(client.seen.request().await.done);
    assert!(client.reads().await.contains(r#""id":2,"error""#));
    client.says(&call(3, "fast")).await;
    assert!(client.reads().await.contains(r#""id":3,"result""#));
    client.leaves().await;
}

#[tokio::test]
async fn a_session_that_was_left_is_resumed() {
    let mut client = Client::initialized("2025-11-25").await;
    let id = client.opened.recv().await.unwrap();
    client.leave.send(()).unwrap();
    assert_eq!(soon(client.served).await.unwrap().unwrap(), Ended::Left { taken: 1 });
    let (fake, seen) = (client.fake, client.seen);
    fake.session(SERVER, &id).unwrap().streams().general().push(note("meanwhile").into());
    let mut client = Client::with((fake, seen), Some(id));
    assert_eq!(client.reads().await, note("meanwhile"));
    client.says(&call(1, "fast")).await;
    assert!(client.reads().await.contains("fast"));
}

#[tokio::test]
async fn an_unknown_session_is_not_resumed() {
    let client = Client::with(Fake::new(), Some("nobody".to_owned()));
    let outcome = soon(client.served).await.unwrap();
    assert!(matches!(outcome, Err(LinesError::Resume(Lookup::NoSuchSession))), "{outcome:?}");
}

#[tokio::test]
async fn a_refused_initialize_leaves_no_session() {
    let mut client = Client::new();
    client.says(&initialize("refused", "2025-11-25")).await;
    assert!(client.reads().await.contains("refused"));
    soon(async {
        while client.fake.sessions() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    client.says(&call(1, "fast")).await;
    let answer = client.reads().await;
    assert!(answer.contains(r#""id":1,"#) && answer.contains("-32600"), "{answer}");
    client.fake.is_full.store(true, Ordering::Relaxed);
    client.says(&initialize("test", "2025-11-25")).await;
    assert!(client.reads().await.contains("too many sessions"));
}

#[tokio::test]
async fn without_a_session_a_ping_is_answered_and_nothing_else() {
    let mut client = Client::new();
    for (method, content) in
        [("ping", r#""result":{}"#), ("server/discover", "-32601"), ("fast", "-32600")]
    {
        client.says(&call(1, method)).await;
        let answer = client.reads().await;
        assert!(answer.contains(r#""id":1,"#) && answer.contains(content), "{method}: {answer}");
    }
    assert_eq!(client.fake.sessions(), 0);
}

#[tokio::test]
async fn what_comes_before_the_answer_to_initialize_waits_for_it() {
    let mut client = Client::new();
    client.says(&initialize("slow", "2025-11-25")).await;
    let slow = client.seen.request().await;
    client.says(&call(1, "ping")).await;
    client.seen.request().await.answers("{}");
    assert!(client.reads().await.contains(r#""id":1,"#));
    client.says(&call(2, "fast")).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    slow.answers("{}");
    assert!(client.reads().await.contains(r#""id":0,"#));
    assert!(client.reads().await.contains(r#""id":2,"#));
}

#[tokio::test]
async fn junk_is_answered_and_does_no_harm() {
    let mut client = Client::initialized("2025-11-25").await;
    for (line, code) in [("junk", "-32700"), (r#"{"a":1}"#, "-32600"), ("[]", "-32600")] {
        client.says(line).await;
        let answer = client.reads().await;
        assert!(answer.contains(r#""id":null"#) && answer.contains(code), "{line}: {answer}");
    }
    let mut long = vec![b' '; (16 << 20) + 1];
    long.push(b'\n');
    soon(client.writer.write_all(&long)).await.unwrap();
    assert!(client.reads().await.contains("too long"));
    client.says(&initialize("again", "2025-11-25")).await;
    assert!(client.reads().await.contains("already"));
    client.says(&call(1, "fast")).await;
    assert!(client.reads().await.contains("fast"));
}

#[tokio::test]
async fn batches_are_served_where_the_version_has_them() {
    let batch = format!("[{},{}]", call(1, "fast"), call(2, "fast"));
    let mut client = Client::initialized("2025-03-26").await;
    client.says(&batch).await;
    let answer = client.reads().await;
    assert!(answer.starts_with(r#"[{"jsonrpc":"2.0","id":1,"#), "{answer}");
    assert!(answer.contains(r#",{"jsonrpc":"2.0","id":2,"#), "{answer}");
    let mut client = Client::initialized("2025-06-18").await;
    client.says(&batch).await;
    assert!(client.reads().await.contains("2025-03-26"));
}

#[tokio::test]
async fn requests_in_flight_are_bounded() {
    let mut client = Client::initialized("2025-11-25").await;
    let mut seen = client.seen;
    let (_writer, mut open) = ask_one_too_many(client.writer, &mut seen).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(seen.asked.try_recv().is_err(), "one too many");
    open.pop().unwrap().answers("{}");
    let last = seen.request().await;
    assert_eq!(last.id(), "1024");
    let mut line = String::new();
    soon(client.reader.read_line(&mut line)).await.unwrap();
    assert!(line.contains(r#""id":1023"#), "{line}");
}

#[tokio::test]
async fn whoever_leaves_knows_how_many_lines_were_taken() {
    let mut client = Client::initialized("2025-11-25").await;
    let session = client.session().await;
    for line in ["", "junk", &note("notifications/initialized"), &call(1, "slow")] {
        client.says(line).await;
    }
    assert!(client.reads().await.contains("-32700"));
    client.seen.post().await;
    let slow = client.seen.request().await;
    // Nothing tells when half a line was read, and it makes no difference.
    soon(client.writer.write_all(br#"{"jsonrpc":"2.0","#)).await.unwrap();
    tokio::task::yield_now().await;
    client.leave.send(()).unwrap();
    let rest = format!("\"method\":\"late\"}}\n{}\n", call(2, "fast"));
    soon(client.writer.write_all(rest.as_bytes())).await.unwrap();
    session.streams().general().push(note("news").into());
    let answer = slow.answers("{}");
    let mut read = String::new();
    for _ in 0..2 {
        soon(client.reader.read_line(&mut read)).await.unwrap();
    }
    assert!(read.contains(&answer) && read.contains("news"), "what was begun is told: {read}");
    assert!(!client.served.is_finished(), "the core has not let go of the session");
    session.streams().close();
    assert_eq!(soon(client.served).await.unwrap().unwrap(), Ended::Left { taken: 5 });
    let mut rest = String::new();
    soon(client.reader.read_line(&mut rest)).await.unwrap();
    assert_eq!(rest, "");
    assert!(client.seen.posted.try_recv().is_err() && client.seen.asked.try_recv().is_err());
    assert_eq!(client.fake.sessions(), 1, "its session goes on elsewhere");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_to_wait_is_not_taken_by_one_who_leaves() {
    let mut client = Client::initialized("2025-11-25").await;
    let session = client.session().await;
    let (_writer, mut open) = ask_one_too_many(client.writer, &mut client.seen).await;
    client.leave.send(()).unwrap();
    session.streams().close();
    assert_eq!(soon(client.served).await.unwrap().unwrap(), Ended::Left { taken: 1025 });
    assert!(client.seen.asked.try_recv().is_err(), "it waited for its turn");
    open.pop().unwrap().given_up().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_a_client_that_does_not_read_says_so() {
    let mut client = Client::initialized("2025-11-25").await;
    let session = client.session().await;
    session.streams().general().push(note(&"x".repeat(1 << 17)).into());
    assert!(!soon(client.reader.fill_buf()).await.unwrap().is_empty(), "it has begun to be told");
    client.leave.send(()).unwrap();
    session.streams().close();
    let outcome = soon(client.served).await.unwrap();
    assert!(matches!(outcome, Err(LinesError::Deaf)), "{outcome:?}");
}

/// Makes one request more than may be in flight, and gives those that are.
async fn ask_one_too_many(
    mut writer: WriteHalf<DuplexStream>,
    seen: &mut Seen,
) -> (WriteHalf<DuplexStream>, Vec<Asked>) {
    let talker = tokio::spawn(async move {
        for id in 0..1025 {
            writer.write_all(format!("{}\n", call(id, "slow")).as_bytes()).await.unwrap();
        }
        writer
    });
    let mut open = Vec::new();
    for _ in 0..1024 {
        open.push(seen.request().await);
    }
    (soon(talker).await.unwrap(), open)
}
