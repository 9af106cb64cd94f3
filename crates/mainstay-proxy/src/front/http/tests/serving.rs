//! Listening, and ending.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::front::tests::{call, initialize, note};

/// A front at a real socket.
struct Live {
    fake: Arc<Fake>,
    seen: Seen,
    addr: SocketAddr,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Live {
    async fn new(config: Config) -> Self {
        let (fake, seen) = Fake::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (shutdown, is_over) = oneshot::channel();
        let is_over = async { is_over.await.unwrap() };
        let served = tokio::spawn(serve(listener, Arc::clone(&fake), config, is_over));
        Self { fake, seen, addr, shutdown, served }
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
        let hello = begin(&initialize("test", "2025-11-25")).replace("/time/mcp", path);
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
    asked.out.push(note("progress").into());
    slow.sees("progress").await;
    live.shutdown.send(()).unwrap();
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
    live.shutdown.send(()).unwrap();
    asked.given_up().await;
    soon(live.served).await.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let live = Live::new(config(Limits { connections: 1, ..Limits::default() })).await;
    let session = live.fake.with(NEW);
    let fast = post(session.id(), BOTH, &call(1, "fast"));
    let mut first = live.connect().await;
    first.send(&fast).await;
    assert_eq!(first.reply().await.status, 200);
    let mut second = live.connect().await;
    second.send(&fast).await;
    first.send(&fast).await;
    assert_eq!(first.reply().await.status, 200);
    assert_eq!(second.got.len(), 0);
    drop(first);
    assert_eq!(second.reply().await.status, 200);
}
