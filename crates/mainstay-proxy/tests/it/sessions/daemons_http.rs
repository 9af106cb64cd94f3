//! Streams over HTTP that are resumed at another daemon.

use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_proxy::front::http::{
    Allowed, Callers, Config, ConnectionBudget, ConnectionStore, Drain, Limits, ListenerKind,
    PassedOn, Pending, Scope, serve,
};
use mainstay_proxy::{RelayNews, RelayedCall};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::server::tool_result;
use super::site::Site;
use super::{Client, NAME, SETTLE, World};
use crate::soon;

/// A listener of a daemon.
pub(super) struct TestListener {
    addr: SocketAddr,
    stop: oneshot::Sender<Drain>,
    served: JoinHandle<Vec<PassedOn>>,
}

/// A front for all servers.
pub(super) fn config(store: Option<Arc<dyn ConnectionStore>>, kind: ListenerKind) -> Config {
    Config {
        scope: Scope::AllServers,
        callers: Callers {
            uid: rustix::process::geteuid().as_raw(),
            admit_root: false,
            allow_other_users: false,
            tokens: Arc::default(),
        },
        allowed: Allowed::default(),
        limits: Limits::default(),
        kind,
        budget: ConnectionBudget::new(1024),
        store,
        version: "0".to_owned(),
    }
}

impl TestListener {
    pub(super) async fn of(world: &World, inherited: Vec<PassedOn>) -> Self {
        Self::storing(world, inherited, None).await
    }

    /// With a store for its connections.
    pub(super) async fn storing(
        world: &World,
        inherited: Vec<PassedOn>,
        store: Option<Arc<dyn ConnectionStore>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let config = config(store, ListenerKind::Public);
        let stopped = async { stopped.await.unwrap_or(Drain::Finish) };
        let servers = Arc::clone(&world.servers);
        let served = tokio::spawn(serve(listener, inherited, servers, config, stopped));
        Self { addr, stop, served }
    }

    /// Sends a request on a new connection.
    async fn asks(&self, session: &str, method: &str, more: &str, body: &str) -> Wire {
        let mut wire = Wire::to(self).await;
        wire.sends(session, method, more, body).await;
        wire
    }
}

/// A client's end of a connection.
pub(super) struct Wire {
    pub(super) io: TcpStream,
    got: String,
}

impl Wire {
    pub(super) async fn to(intake_gate: &TestListener) -> Self {
        Self::new(TcpStream::connect(intake_gate.addr).await.unwrap())
    }

    pub(super) fn new(io: TcpStream) -> Self {
        Self { io, got: String::new() }
    }

    pub(super) async fn writes(&mut self, text: &str) {
        soon(self.io.write_all(text.as_bytes())).await.unwrap();
    }

    pub(super) async fn sends(&mut self, session: &str, method: &str, more: &str, body: &str) {
        self.writes(&Self::request(session, method, more, body)).await;
    }

    pub(super) fn request(session: &str, method: &str, more: &str, body: &str) -> String {
        format!(
            "{method} /{NAME}/mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n\
             Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{more}\r\n{body}",
            body.len()
        )
    }

    /// Reads until this has come, and gives all that was read.
    pub(super) async fn sees(&mut self, text: &str) -> String {
        while !self.got.contains(text) {
            let mut bytes = [0; 4096];
            let read = soon(self.io.read(&mut bytes)).await.unwrap();
            assert_ne!(read, 0, "{text:?} should follow {:?}", self.got);
            self.got.push_str(str::from_utf8(&bytes[..read]).unwrap());
        }
        std::mem::take(&mut self.got)
    }

    /// Reads the end of the connection.
    pub(super) async fn sees_end(&mut self) {
        let read = soon(self.io.read(&mut [0; 1])).await;
        assert_eq!(read.unwrap(), 0);
    }

    /// The `Last-Event-ID` with which its client comes back, when it has been given one.
    async fn is_primed(&mut self) -> String {
        let events = self.sees("data: \n\n").await;
        let id = events.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap();
        format!("Last-Event-ID: {id}\r\n")
    }
}

pub(super) async fn opens(world: &World) -> String {
    opens_with(world, "2025-11-25").await
}

async fn opens_with(world: &World, version: &str) -> String {
    let client = Client::new(world.servers.open(NAME).unwrap());
    let params = json!({
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "tester", "version": "1"},
    });
    soon(client.asks("initialize", &params).answer()).await;
    client.posts(&json!({"method": "notifications/initialized"}));
    client.session.id().to_owned()
}

pub(super) fn call(id: u64) -> String {
    let params = json!({"name": "poke"});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

pub(super) fn answer(call: &Value) -> Value {
    json!({"id": call["id"], "result": tool_result("done")})
}

#[tokio::test]
async fn a_call_that_was_committed_is_answered_by_the_next_daemon() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let intake_gate = TestListener::of(&world, Vec::new()).await;
    let mut wire = intake_gate.asks(&session, "POST", "", &call(7)).await;
    let call = server.reads_call("poke").await;
    let last = wire.is_primed().await;
    let next = world.killed();
    drop(wire);
    let intake_gate = TestListener::of(&next, Vec::new()).await;
    let mut wire = intake_gate.asks(&session, "GET", &last, "").await;
    wire.is_primed().await;
    let server = next.finds(&server, &[]).await;
    server.says(&answer(&call)).await;
    let events = wire.sees("0\r\n\r\n").await;
    assert!(events.contains(r#""id":7,"#) && events.contains("done"), "{events}");
}

/// Stops a listener for a hand-over.
async fn hands_over(intake_gate: TestListener, world: &World) -> Vec<PassedOn> {
    intake_gate.stop.send(Drain::HandOver).unwrap();
    soon(world.servers.hand_over(true, SETTLE)).await;
    soon(intake_gate.served).await.unwrap()
}

#[tokio::test]
async fn at_a_hand_over_no_request_is_lost_and_no_connection_is_closed() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let intake_gate = TestListener::of(&world, Vec::new()).await;
    let mut slow = intake_gate.asks(&session, "POST", "", &call(7)).await;
    let slow_call = server.reads_call("poke").await;
    slow.is_primed().await;
    let mut listening = intake_gate.asks(&session, "GET", "", "").await;
    listening.is_primed().await;
    // One that is answered when no more are let in.
    let mut young = intake_gate.asks(&session, "POST", "", &call(8)).await;
    let young_call = server.reads_call("poke").await;
    intake_gate.stop.send(Drain::HandOver).unwrap();
    server.says(&answer(&young_call)).await;
    assert!(young.sees("done").await.contains(r#""id":8,"#));
    soon(world.servers.hand_over(true, SETTLE)).await;
    let passed_on = soon(intake_gate.served).await.unwrap();
    assert_eq!(passed_on.len(), 3, "{passed_on:?}");
    assert_eq!(passed_on.iter().filter(|it| matches!(it.pending, Pending::Response(_))).count(), 2);

    let next = world.killed();
    let intake_gate = TestListener::of(&next, passed_on).await;
    let mut server = next.finds(&server, &[]).await;
    server.says(&answer(&slow_call)).await;
    assert!(slow.sees("0\r\n\r\n").await.contains(r#""id":7,"#));
    server.says(&json!({"method": "notifications/message", "params": {"level": "info"}})).await;
    listening.sees("notifications/message").await;
    // The connection is used again.
    slow.sends(&session, "POST", "", &call(9)).await;
    let call = server.reads_call("poke").await;
    server.says(&answer(&call)).await;
    assert!(slow.sees("done").await.contains(r#""id":9,"#));
    drop(intake_gate);
}

/// Whether its client could resume the stream or not.
#[tokio::test]
async fn a_response_goes_on_in_the_next_daemons_on_the_same_connection() {
    let (events, json) = ("", "Accept: application/json\r\n");
    let httpx2 = "User-Agent: python-httpx2/2.0\r\n";
    for (version, more, end) in [
        ("2025-11-25", events, "0\r\n\r\n"),
        ("2025-06-18", events, "0\r\n\r\n"),
        ("2024-11-05", events, "0\r\n\r\n"),
        ("2025-06-18", json, "0\r\n\r\n"),
        ("2025-11-25", httpx2, "}]}}"),
    ] {
        let world = World::new();
        let mut server = world.serves().await;
        let session = opens_with(&world, version).await;
        let intake_gate = TestListener::of(&world, Vec::new()).await;
        let mut wire = intake_gate.asks(&session, "POST", more, &call(7)).await;
        let asked = server.reads_call("poke").await;
        let head = wire.sees("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.") && head.contains("200 OK"), "{head}");
        let passed_on = hands_over(intake_gate, &world).await;
        let second = world.killed();
        let intake_gate = TestListener::of(&second, passed_on).await;
        let server = second.finds(&server, &[]).await;
        let passed_on = hands_over(intake_gate, &second).await;
        assert!(
            passed_on.iter().all(|it| matches!(it.pending, Pending::Response(_))),
            "{version} {more}"
        );
        let third = second.killed();
        let _door = TestListener::of(&third, passed_on).await;
        let server = third.finds(&server, &[]).await;
        server.says(&answer(&asked)).await;
        let body = wire.sees(end).await;
        assert!(body.contains(r#""id":7,"#) && body.contains("done"), "{version} {more}: {body}");
        if more == httpx2 {
            let after = soon(wire.io.read(&mut [0; 1])).await.unwrap();
            assert_eq!(after, 0, "the end of the connection is that of the answer");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_between_two_daemons_harms_nobody() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let intake_gate = TestListener::of(&world, Vec::new()).await;
    let mut gone = intake_gate.asks(&session, "POST", "", &call(7)).await;
    let asked = server.reads_call("poke").await;
    gone.is_primed().await;
    let mut stays = intake_gate.asks(&session, "GET", "", "").await;
    stays.is_primed().await;
    let passed_on = hands_over(intake_gate, &world).await;
    drop(gone);
    let next = world.killed();
    let intake_gate = TestListener::of(&next, passed_on).await;
    let mut server = next.finds(&server, &[]).await;
    server.says(&answer(&asked)).await;
    let mut wire = intake_gate.asks(&session, "POST", "", &call(8)).await;
    let asked = server.reads_call("poke").await;
    server.says(&answer(&asked)).await;
    wire.sees("done").await;
}

/// It takes long if the server does.
#[tokio::test]
async fn the_next_daemon_repeats_an_unanswered_initialize() {
    for more in ["", "Accept: application/json\r\n"] {
        let world = World::new();
        let intake_gate = TestListener::of(&world, Vec::new()).await;
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "tester", "version": "1"},
        });
        let initialize =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let mut wire = intake_gate.asks("none", "POST", more, &initialize.to_string()).await;
        let head = wire.sees("\r\n\r\n").await;
        let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
        soon(world.servers.unbound()).await;
        let passed_on = hands_over(intake_gate, &world).await;
        assert_eq!(passed_on.len(), 1);
        let next = world.killed();
        let intake_gate = TestListener::of(&next, passed_on).await;
        let mut server = next.serves().await;
        assert!(wire.sees("0\r\n\r\n").await.contains("serverInfo"));
        let mut other = intake_gate.asks(id, "POST", "", &call(2)).await;
        let call = server.reads_call("poke").await;
        server.says(&answer(&call)).await;
        other.sees("done").await;
    }
}

/// The next daemon, to which this one has given way, and what this one still tells it.
async fn takes_over(
    world: &World,
    intake_gate: TestListener,
) -> (World, Vec<PassedOn>, Vec<RelayedCall>) {
    intake_gate.stop.send(Drain::HandOver).unwrap();
    let relayed = soon(world.servers.hand_over(true, SETTLE)).await;
    let passed_on = soon(intake_gate.served).await.unwrap();
    (world.replaced(), passed_on, relayed)
}

#[tokio::test]
async fn the_old_daemon_finishes_a_call_of_a_server_that_speaks_http() {
    let (world, mut site) = (World::new(), Site::new().await);
    let run = world.is_served_by(&site).await;
    let session = opens(&world).await;
    let intake_gate = TestListener::of(&world, Vec::new()).await;
    soon(world.servers.unbound()).await;
    let mut wire = intake_gate.asks(&session, "POST", "", &call(7)).await;
    let call = site.call("poke").await;
    wire.is_primed().await;
    soon(world.servers.unbound()).await;
    let (next, passed_on, mut relayed) = takes_over(&world, intake_gate).await;
    assert_eq!((passed_on.len(), relayed.len()), (1, 1));
    let intake_gate = TestListener::of(&next, passed_on).await;
    next.finds_site(&site, &run).await;

    // A third daemon hears of it, too.
    let (third, passed_on, none) = takes_over(&next, intake_gate).await;
    assert_eq!((passed_on.len(), none.len()), (1, 0), "the second one has not sent it");
    let _door = TestListener::of(&third, passed_on).await;
    third.finds_site(&site, &run).await;
    let key = relayed[0].key.clone();
    third.servers.relays().claim(std::slice::from_ref(&key));
    third.servers.relays().give_up_unclaimed();
    call.returns("done").await;
    let news = soon(relayed[0].next()).await;
    assert!(matches!(news, RelayNews::Answered(_)), "{news:?}");
    third.servers.relays().deliver(&key, news);
    assert!(wire.sees("0\r\n\r\n").await.contains(r#""id":7,"#));
}

#[tokio::test]
async fn what_the_old_daemon_cannot_finish_is_decided_by_the_new_one() {
    for is_claimed in [true, false] {
        let (world, mut site) = (World::new(), Site::new().await);
        let run = world.is_served_by(&site).await;
        let session = opens(&world).await;
        let intake_gate = TestListener::of(&world, Vec::new()).await;
        let mut wire = intake_gate.asks(&session, "POST", "", &call(7)).await;
        let call = site.call("poke").await;
        wire.is_primed().await;
        let (next, passed_on, mut relayed) = takes_over(&world, intake_gate).await;
        let _door = TestListener::of(&next, passed_on).await;
        next.finds_site(&site, &run).await;
        let key = relayed[0].key.clone();
        if is_claimed {
            next.servers.relays().claim(std::slice::from_ref(&key));
            drop(call);
            let news = soon(relayed[0].next()).await;
            assert_eq!(news, RelayNews::Lost, "the server has closed the connection");
            next.servers.relays().deliver(&key, news);
        } else {
            next.servers.relays().give_up_unclaimed();
        }
        let events = wire.sees("0\r\n\r\n").await;
        assert!(events.contains("effect is unknown"), "{is_claimed}: {events}");
    }
}
