mod answers;
mod fuzz;
mod limits;
mod resume;
mod sequence;
mod serving;
mod statuses;

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};

use super::*;
use crate::Session;
use crate::front::ProtocolVersion;
use crate::front::tests::{Fake, Seen, soon};

const BOTH: &str = "application/json, text/event-stream";

/// A front before a scripted server, reached without sockets, so that tests own time.
struct Site {
    fake: Arc<Fake>,
    seen: Seen,
    front: Arc<Front>,
    connections: connections::Connections<serve::Left<DuplexStream>>,
}

impl Site {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Self::of(config(limits))
    }

    fn with_budget(connections: usize) -> Self {
        Self::of(Config { budget: ConnectionBudget::new(connections), ..config(Limits::default()) })
    }

    /// The server has not been up yet.
    fn starting() -> Self {
        Self::before(Fake::starting(), config(Limits::default()))
    }

    fn of(config: Config) -> Self {
        Self::before(Fake::new(), config)
    }

    fn before((fake, seen): (Arc<Fake>, Seen), config: Config) -> Self {
        let front = Arc::new(Front::new(Arc::clone(&fake.servers), config));
        let connections = connections::Connections::new(&front.config);
        Self { fake, seen, front, connections }
    }

    fn connect(&mut self) -> Wire<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(1 << 12);
        let conn = self.connections.connection_state(self.front.servers.intake_gate());
        let front = Arc::clone(&self.front);
        let serve = serve::connection(
            front,
            Caller::Trusted,
            Arc::clone(&conn),
            theirs,
            bytes::Bytes::new(),
        );
        self.connections.add(conn, serve);
        Wire { io: ours, got: Vec::new() }
    }

    /// Sends a request of a session on a new connection.
    async fn posts(&mut self, session: &Session, body: &str) -> Wire<DuplexStream> {
        let mut wire = self.connect();
        wire.send(&post(session.id(), BOTH, body)).await;
        wire
    }

    /// Opens a stream of a session on a new connection.
    async fn gets(&mut self, session: &Session, last: Option<&str>) -> Wire<DuplexStream> {
        let mut wire = self.connect();
        wire.send(&get(session.id(), last)).await;
        wire
    }
}

/// The user who runs the tests.
fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn config(limits: Limits) -> Config {
    let version = "1.2.3".to_owned();
    let callers =
        Callers { uid: us(), admit_root: true, allow_other_users: false, tokens: Arc::default() };
    let (allowed, budget) = (Allowed::default(), ConnectionBudget::new(16_384));
    let (kind, store) = (ListenerKind::Public, None);
    Config { scope: Scope::AllServers, callers, allowed, limits, kind, budget, store, version }
}

/// A client's end of a connection.
struct Wire<T> {
    io: T,
    got: Vec<u8>,
}

/// A response of known length.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Wire<T> {
    async fn send(&mut self, text: &str) {
        soon(self.io.write_all(text.as_bytes())).await.unwrap();
    }

    /// Reads up to and including this text, and gives all that was read.
    async fn sees(&mut self, text: &str) -> String {
        let mut looked = 0;
        loop {
            if let Some(at) = memchr::memmem::find(&self.got[looked..], text.as_bytes()) {
                let rest = self.got.split_off(looked + at + text.len());
                return String::from_utf8(std::mem::replace(&mut self.got, rest)).unwrap();
            }
            looked = self.got.len().saturating_sub(text.len());
            let read = soon(self.io.read_buf(&mut self.got)).await.unwrap();
            assert_ne!(read, 0, "{text:?} should follow {:?}", String::from_utf8_lossy(&self.got));
        }
    }

    /// Reads a head, which must bear this status.
    async fn head(&mut self, status: u16) -> String {
        let head = self.sees("\r\n\r\n").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        head.to_lowercase()
    }

    async fn reply(&mut self) -> Reply {
        let head = self.sees("\r\n\r\n").await;
        let status = head[9..12].parse().unwrap();
        let head = head.to_lowercase();
        let length = value(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        while self.got.len() < length {
            assert_ne!(soon(self.io.read_buf(&mut self.got)).await.unwrap(), 0, "{head}");
        }
        let rest = self.got.split_off(length);
        let body = String::from_utf8(std::mem::replace(&mut self.got, rest)).unwrap();
        Reply { status, head, body }
    }

    /// Reads the end of a chunked body; nothing must stand before it.
    async fn ends(&mut self) {
        assert_eq!(self.sees("0\r\n\r\n").await.trim_start(), "0\r\n\r\n");
    }
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers = headers.iter().flat_map(|(name, value)| [*name, ": ", *value, "\r\n"]);
    let headers = headers.collect::<String>();
    format!("{method} {path} HTTP/1.1\r\nHost: localhost:7433\r\n{headers}\r\n{body}")
}

fn post(session: &str, accept: &str, body: &str) -> String {
    let length = body.len().to_string();
    let headers = [
        ("Mcp-Session-Id", session),
        ("Accept", accept),
        ("Content-Type", "application/json"),
        ("Content-Length", &length),
    ];
    request("POST", "/time/mcp", &headers, body)
}

/// A POST as `httpx2` sends it.
fn from_httpx2(text: &str) -> String {
    let agent = "\r\nUser-Agent: python-httpx2/2.16.0\r\nContent-Type:";
    text.replacen("\r\nContent-Type:", agent, 1)
}

/// The first message of a client.
fn begin(body: &str) -> String {
    let length = body.len().to_string();
    let headers =
        [("Accept", BOTH), ("Content-Type", "application/json"), ("Content-Length", &*length)];
    request("POST", "/time/mcp", &headers, body)
}

fn get(session: &str, last: Option<&str>) -> String {
    let mut headers = vec![("Mcp-Session-Id", session), ("Accept", "text/event-stream")];
    headers.extend(last.map(|last| ("Last-Event-ID", last)));
    request("GET", "/time/mcp", &headers, "")
}

/// The id of the last event in a text.
fn last_id(events: &str) -> String {
    let id = events.lines().rev().find_map(|line| line.strip_prefix("id: "));
    id.expect("an event should have an id").to_owned()
}

/// How many messages are in a text of events.
fn messages(events: &str) -> usize {
    events.matches("event: message").count()
}

async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}

const OLD: ProtocolVersion = ProtocolVersion::V2025_06_18;
const NEW: ProtocolVersion = ProtocolVersion::V2025_11_25;
