use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, split,
};
use tokio::task::JoinHandle;

use super::*;
use crate::front::lines::{AtEnd, LineClient, LinesError, serve_lines};

struct Client {
    fake: Arc<Fake>,
    seen: Seen,
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
    served: JoinHandle<Result<(), LinesError>>,
    opened: mpsc::UnboundedReceiver<String>,
}

impl Client {
    fn new(at_end: AtEnd) -> Self {
        Self::with(Fake::new(), None, at_end)
    }

    fn with((fake, seen): (Arc<Fake>, Seen), resume: Option<String>, at_end: AtEnd) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reader, writer) = split(ours);
        let (input, output) = split(theirs);
        let (tell, opened) = mpsc::unbounded_channel();
        let client = LineClient { server: SERVER.to_owned(), resume, at_end };
        let core = Arc::clone(&fake);
        let served = tokio::spawn(serve_lines(
            core,
            client,
            BufReader::new(input),
            output,
            move |id: &str| drop(tell.send(id.to_owned())),
        ));
        Self { fake, seen, reader: BufReader::new(reader), writer, served, opened }
    }

    async fn initialized(version: &str) -> Self {
        let mut client = Self::new(AtEnd::Close);
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
        soon(self.served).await.unwrap().unwrap();
        (self.fake, self.seen)
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
    let session = client.fake.session(SERVER, &client.opened.recv().await.unwrap()).unwrap();
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
async fn a_kept_session_is_resumed() {
    let mut client = Client::new(AtEnd::Keep);
    client.says(&initialize("test", "2025-11-25")).await;
    client.reads().await;
    let id = client.opened.recv().await.unwrap();
    let (fake, seen) = client.leaves().await;
    fake.session(SERVER, &id).unwrap().streams().general().push(note("meanwhile").into());
    let mut client = Client::with((fake, seen), Some(id), AtEnd::Close);
    assert_eq!(client.reads().await, note("meanwhile"));
    client.says(&call(1, "fast")).await;
    assert!(client.reads().await.contains("fast"));
}

#[tokio::test]
async fn an_unknown_session_is_not_resumed() {
    let client = Client::with(Fake::new(), Some("nobody".to_owned()), AtEnd::Close);
    let outcome = soon(client.served).await.unwrap();
    assert!(matches!(outcome, Err(LinesError::Resume(Lookup::NoSuchSession))), "{outcome:?}");
}

#[tokio::test]
async fn a_refused_initialize_leaves_no_session() {
    let mut client = Client::new(AtEnd::Close);
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
    let (mut seen, mut writer) = (client.seen, client.writer);
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
    let _writer = soon(talker).await.unwrap();
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
