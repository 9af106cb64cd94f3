//! Listening, and ending.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::front::tests::{SERVER, call, initialize, note};

/// A front at a real socket.
struct Live {
    fake: Arc<Fake>,
    seen: Seen,
    addr: SocketAddr,
    shutdown: Option<oneshot::Sender<Drain>>,
    served: JoinHandle<Vec<PassedOn>>,
}

impl Live {
    async fn new(config: Config) -> Self {
        let (fake, seen) = Fake::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (shutdown, is_over) = oneshot::channel();
        let is_over = async { is_over.await.unwrap() };
        let served =
            tokio::spawn(serve(listener, Vec::new(), Arc::clone(&fake.servers), config, is_over));
        Self { fake, seen, addr, shutdown: Some(shutdown), served }
    }

    fn finish(&mut self) {
        self.end(Drain::Finish);
    }

    /// Another daemon takes over.
    fn hand_over(&mut self) {
        self.fake.intake_gate().close();
        self.end(Drain::HandOver);
    }

    fn end(&mut self, drain: Drain) {
        let shutdown = self.shutdown.take().expect("it ends once");
        shutdown.send(drain).unwrap();
    }

    async fn connect(&self) -> Wire<TcpStream> {
        Wire { io: TcpStream::connect(self.addr).await.unwrap(), got: Vec::new() }
    }
}

#[tokio::test]
async fn a_listener_of_one_server_serves_no_other() {
    let scope = Scope::One("time".to_owned());
    let live = Live::new(Config { scope, ..config(Limits::default()) }).await;
    let mut wire = live.connect().await;
    for (path, status) in [("/mcp", 200), ("/time/mcp", 200), ("/other/mcp", 404)] {
        let hello = begin(&initialize("2025-11-25")).replace("/time/mcp", path);
        wire.send(&hello).await;
        assert_eq!(wire.reply().await.status, status, "{path}");
    }
}

#[tokio::test]
async fn at_the_end_streams_end_and_requests_finish() {
    let mut live = Live::new(config(Limits::default())).await;
    let session = live.fake.with(NEW);
    let mut stream = live.connect().await;
    stream.send(&get(session.id(), None)).await;
    stream.sees("data: \n\n").await;
    let mut slow = live.connect().await;
    slow.send(&post(session.id(), BOTH, &call(1, "slow"))).await;
    let asked = live.seen.request().await;
    asked.says(&note("progress"));
    slow.sees("progress").await;
    live.finish();
    stream.ends().await;
    let answer = asked.answers("{}");
    slow.sees(&answer).await;
    soon(live.served).await.unwrap();
    assert!(TcpStream::connect(live.addr).await.is_err(), "nobody listens");
}

#[tokio::test]
async fn at_the_end_requests_are_cut_after_a_while() {
    let limits = Limits { drain: Duration::from_millis(10), ..Limits::default() };
    let mut live = Live::new(config(limits)).await;
    let session = live.fake.with(NEW);
    let mut slow = live.connect().await;
    slow.send(&post(session.id(), BOTH, &call(1, "slow"))).await;
    let asked = live.seen.request().await;
    slow.head(200).await;
    live.finish();
    let given_up = tokio::time::timeout(Duration::from_secs(10), asked.given_up());
    given_up.await.expect("it is given up at once");
    soon(live.served).await.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_while_all_others_are_needed() {
    let config = Config { budget: ConnectionBudget::new(1), ..config(Limits::default()) };
    let mut live = Live::new(config).await;
    let session = live.fake.with(NEW);
    let mut first = live.connect().await;
    first.send(&post(session.id(), BOTH, &call(1, "slow"))).await;
    let asked = live.seen.request().await;
    first.sees("data: \n\n").await;
    let mut second = live.connect().await;
    second.send(&post(session.id(), BOTH, &call(2, "fast"))).await;
    asked.answers("{}");
    first.sees("0\r\n\r\n").await;
    // The first connection is idle now, and is evicted for the second one.
    assert_eq!(second.reply().await.status, 200);
    assert_eq!(soon(first.io.read(&mut [0; 8])).await.unwrap(), 0);
}

/// A front that another daemon takes over from.
#[tokio::test]
async fn at_a_hand_over_connections_at_rest_are_given_back_with_all_they_have_not_read() {
    let mut live = Live::new(config(Limits::default())).await;
    let session = live.fake.with(NEW);
    let fast = |id| post(session.id(), BOTH, &call(id, "fast"));
    let (mut fresh, mut used) = (live.connect().await, live.connect().await);
    used.send(&fast(1)).await;
    assert_eq!(used.reply().await.status, 200);
    // These streams are not journaled: that of a session that is not initialized, and that of a batch.
    let (opened, old) =
        (live.fake.servers.open(SERVER).unwrap(), live.fake.with(ProtocolVersion::V2025_03_26));
    let mut stream = live.connect().await;
    stream.send(&get(opened.id(), None)).await;
    stream.head(200).await;
    let mut slow = live.connect().await;
    slow.send(&post(old.id(), BOTH, &format!("[{}]", call(2, "slow")))).await;
    let _asked = live.seen.request().await;
    slow.head(200).await;
    live.hand_over();
    // A general one ends at once, with the advice to come back soon.
    assert!(stream.sees("0\r\n\r\n").await.contains("retry: 250\n"));
    // The others end when the servers are frozen.
    live.fake.servers.freeze();
    assert!(slow.sees("0\r\n\r\n").await.contains("retry: 250\n"));
    // The listener is gone by now: these requests are for the next daemon.
    for wire in [&mut fresh, &mut used, &mut stream, &mut slow] {
        wire.send(&fast(3)).await;
    }
    let at_rest = soon(live.served).await.unwrap();
    assert_eq!(at_rest.len(), 4);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_stop, stopped) = oneshot::channel::<()>();
    let stop = async {
        stopped.await.ok();
        Drain::Finish
    };
    let config = config(Limits::default());
    let (fake, _seen) = Fake::new();
    assert_eq!(fake.with(NEW).id(), session.id());
    let next = serve(listener, at_rest, Arc::clone(&fake.servers), config, stop);
    let _next = tokio::spawn(next);
    for wire in [&mut fresh, &mut used, &mut stream, &mut slow] {
        assert_eq!(wire.reply().await.status, 200);
    }
}

#[tokio::test]
async fn at_a_hand_over_a_connection_that_ends_with_its_response_is_closed() {
    let mut live = Live::new(config(Limits::default())).await;
    let session = live.fake.with(NEW);
    let mut wire = live.connect().await;
    wire.send(&from_httpx2(&post(session.id(), BOTH, &call(1, "slow")))).await;
    let asked = live.seen.request().await;
    wire.sees("\r\n\r\n").await;
    live.hand_over();
    let answer = asked.answers("{}");
    assert_eq!(soon(live.served).await.unwrap().len(), 0);
    assert_eq!(wire.sees(&answer).await, answer);
    assert_eq!(soon(wire.io.read(&mut [0; 8])).await.unwrap(), 0);
}

#[tokio::test]
async fn at_a_hand_over_what_does_not_come_to_rest_is_cut() {
    let mut live = Live::new(config(Limits::default())).await;
    let session = live.fake.with(NEW);
    let mut slow = live.connect().await;
    slow.send(&post(session.id(), "application/json", &call(1, "slow"))).await;
    let asked = live.seen.request().await;
    live.hand_over();
    asked.given_up().await;
    assert_eq!(soon(live.served).await.unwrap().len(), 0);
}

#[tokio::test]
async fn at_a_hand_over_what_is_half_read_is_read_to_its_end_and_nothing_else_is_begun() {
    let mut live = Live::new(config(Limits::default())).await;
    let session = live.fake.with(NEW);
    let fast = |id| post(session.id(), BOTH, &call(id, "fast"));
    let body = fast(1).find("\r\n\r\n").expect("a head") + 4;
    // The first request of a connection and a later one, with half a head and half a body.
    let cuts = [(false, 20), (true, 20), (false, body + 9), (true, body + 9)];
    let mut halves = Vec::new();
    for (id, (later, cut)) in (1..).zip(cuts) {
        let mut wire = live.connect().await;
        if later {
            wire.send(&fast(id)).await;
            assert_eq!(wire.reply().await.status, 200);
        }
        let text = fast(id);
        wire.send(&text[..cut]).await;
        halves.push((wire, text[cut..].to_owned()));
    }
    let intake_gate = Arc::clone(live.fake.intake_gate());
    soon(async {
        while intake_gate.inside() < cuts.len() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut idle = live.connect().await;
    live.hand_over();
    idle.send(&post(session.id(), BOTH, &call(9, "slow"))).await;
    for (wire, rest) in &mut halves {
        wire.send(rest).await;
        assert_eq!(wire.reply().await.status, 200);
    }
    assert!(intake_gate.is_clear());
    let at_rest = soon(live.served).await.unwrap();
    assert!(live.seen.asks_nothing());
    assert!(!at_rest.is_empty(), "one has not been read from");
}
