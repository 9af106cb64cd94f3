//! Streams over HTTP that are resumed at another daemon.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use mainstay_proxy::front::http::{
    Allowed, Callers, Config, ConnectionBudget, Drain, Limits, Scope, serve,
};
use mainstay_proxy::front::{Core as _, Session as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::server::tool_result;
use super::site::Site;
use super::{Client, NAME, World};
use crate::soon;

/// A listener of a daemon.
struct Door {
    addr: SocketAddr,
    stop: oneshot::Sender<Drain>,
    served: JoinHandle<Vec<std::net::TcpStream>>,
}

impl Door {
    async fn of(world: &World, inherited: Vec<std::net::TcpStream>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let config = Config {
            scope: Scope::AllServers,
            callers: Callers {
                uid: rustix::process::geteuid().as_raw(),
                admit_root: false,
                allow_other_users: false,
                tokens: Arc::default(),
            },
            allowed: Allowed::default(),
            limits: Limits::default(),
            budget: ConnectionBudget::new(1024),
            version: "0".to_owned(),
        };
        let stopped = async { stopped.await.unwrap_or(Drain::Finish) };
        let hubs = Arc::clone(&world.hubs);
        let served = tokio::spawn(serve(listener, inherited, hubs, config, stopped));
        Self { addr, stop, served }
    }

    /// Sends a request on a new connection.
    async fn asks(&self, session: &str, method: &str, more: &str, body: &str) -> Wire {
        let mut wire =
            Wire { io: TcpStream::connect(self.addr).await.unwrap(), got: String::new() };
        wire.sends(session, method, more, body).await;
        wire
    }
}

/// A client's end of a connection.
struct Wire {
    io: TcpStream,
    got: String,
}

impl Wire {
    async fn sends(&mut self, session: &str, method: &str, more: &str, body: &str) {
        let text = format!(
            "{method} /{NAME}/mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n\
             Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{more}\r\n{body}",
            body.len()
        );
        soon(self.io.write_all(text.as_bytes())).await.unwrap();
    }

    /// Reads until this has come, and gives all that was read.
    async fn sees(&mut self, text: &str) -> String {
        while !self.got.contains(text) {
            let mut bytes = [0; 4096];
            let read = soon(self.io.read(&mut bytes)).await.unwrap();
            assert_ne!(read, 0, "{text:?} should follow {:?}", self.got);
            self.got.push_str(str::from_utf8(&bytes[..read]).unwrap());
        }
        std::mem::take(&mut self.got)
    }

    /// The `Last-Event-ID` with which its client comes back, when it has been given one.
    async fn is_primed(&mut self) -> String {
        let events = self.sees("data: \n\n").await;
        let id = events.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap();
        format!("Last-Event-ID: {id}\r\n")
    }
}

async fn opens(world: &World) -> String {
    let client = Client::new(world.hubs.open(NAME).unwrap());
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "tester", "version": "1"},
    });
    soon(client.asks("initialize", &params).answer()).await;
    client.posts(&json!({"method": "notifications/initialized"}));
    client.session.id().to_owned()
}

fn call(id: u64) -> String {
    let params = json!({"name": "poke"});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

fn answer(call: &Value) -> Value {
    json!({"id": call["id"], "result": tool_result("done")})
}

#[tokio::test]
async fn a_call_that_was_committed_is_answered_by_the_next_daemon() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let door = Door::of(&world, Vec::new()).await;
    let mut wire = door.asks(&session, "POST", "", &call(7)).await;
    let call = server.reads_call("poke").await;
    let last = wire.is_primed().await;
    let next = world.killed();
    drop(wire);
    let door = Door::of(&next, Vec::new()).await;
    let mut wire = door.asks(&session, "GET", &last, "").await;
    wire.is_primed().await;
    let server = next.finds(&server, &[]).await;
    server.says(&answer(&call)).await;
    let events = wire.sees("0\r\n\r\n").await;
    assert!(events.contains(r#""id":7,"#) && events.contains("done"), "{events}");
}

#[tokio::test]
async fn at_a_hand_over_no_request_is_lost() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let door = Door::of(&world, Vec::new()).await;
    let mut slow = door.asks(&session, "POST", "", &call(7)).await;
    let slow_call = server.reads_call("poke").await;
    let last = slow.is_primed().await;
    let mut listening = door.asks(&session, "GET", "", "").await;
    listening.is_primed().await;
    // One that is answered when no more are let in.
    let mut young = door.asks(&session, "POST", "", &call(8)).await;
    let young_call = server.reads_call("poke").await;
    door.stop.send(Drain::HandOver).unwrap();
    server.says(&answer(&young_call)).await;
    assert!(young.sees("done").await.contains(r#""id":8,"#));
    soon(world.hubs.hand_over()).await;
    for wire in [&mut slow, &mut listening] {
        wire.sees("0\r\n\r\n").await;
    }
    let at_rest = soon(door.served).await.unwrap();
    assert!(at_rest.len() >= 2, "{at_rest:?}");

    let next = world.killed();
    let door = Door::of(&next, at_rest).await;
    // On the same connection as before.
    slow.sends(&session, "GET", &last, "").await;
    slow.is_primed().await;
    let server = next.finds(&server, &[]).await;
    server.says(&answer(&slow_call)).await;
    assert!(slow.sees("0\r\n\r\n").await.contains(r#""id":7,"#));
    drop(door);
}

#[tokio::test]
async fn a_slow_call_of_a_server_that_speaks_http_binds_its_daemon() {
    let (world, mut site) = (World::new(), Site::new().await);
    world.is_served_by(&site).await;
    let session = opens(&world).await;
    let door = Door::of(&world, Vec::new()).await;
    soon(world.hubs.unbound()).await;
    let mut wire = door.asks(&session, "POST", "", &call(7)).await;
    let call = site.call("poke").await;
    wire.is_primed().await;
    let mut unbound = pin!(world.hubs.unbound());
    assert!(poll_fn(|cx| Poll::Ready(unbound.as_mut().poll(cx).is_pending())).await);
    call.returns("done").await;
    wire.sees("done").await;
    soon(unbound).await;
}
