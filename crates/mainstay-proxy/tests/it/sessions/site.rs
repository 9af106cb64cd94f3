//! A streamable HTTP server that does what a test says.
//!
//! It opens and ends sessions by itself, and refuses to be listened to unless it is told otherwise.
//! Every other request is for the test.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mainstay_proxy::client::Target;
use mainstay_proxy::{AttachedRun, Availability, Run, RunInfo, UpstreamTransport};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::World;
use super::server::{hello, tool_result};
use crate::soon;

/// The server. Dropping it is the death of the run.
pub(super) struct Site {
    shared: Arc<Shared>,
    addr: SocketAddr,
    turns: mpsc::UnboundedReceiver<Turn>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    sessions: AtomicU64,
    /// Whether clients may listen.
    listening: AtomicBool,
    /// Whether the test opens sessions.
    passive: AtomicBool,
    /// So many sessions are refused by the gateway before the server.
    refused: AtomicU64,
    /// What it did by itself, as `METHOD what session`.
    past: Mutex<Vec<String>>,
}

impl Shared {
    fn refuses(&self) -> bool {
        let less = |count: u64| count.checked_sub(1);
        self.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// A request that the test answers.
pub(super) struct Turn {
    head: String,
    pub(super) message: Value,
    stream: TcpStream,
}

impl Site {
    pub(super) async fn new() -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn at(listener: TcpListener) -> Self {
        let addr = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let (to_test, turns) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let shared = Arc::clone(&shared);
            async move {
                let mut connections = JoinSet::new();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    connections.spawn(serve(stream, Arc::clone(&shared), to_test.clone()));
                }
            }
        });
        Self { shared, addr, turns, _tasks: tasks }
    }

    pub(super) fn link(&self) -> UpstreamTransport {
        UpstreamTransport::Http(Target::local(vec![self.addr], "/mcp").unwrap())
    }

    /// The way to it, if it is taken for one that runs elsewhere.
    pub(super) fn remote_link(&self) -> UpstreamTransport {
        UpstreamTransport::Remote(Target::remote(&format!("http://{}/mcp", self.addr), []).unwrap())
    }

    /// It can be listened to.
    pub(super) fn lets_listen(&self) {
        self.shared.listening.store(true, Ordering::Relaxed);
    }

    /// From now on it opens no session by itself.
    pub(super) fn leaves_sessions_to_the_test(&self) {
        self.shared.passive.store(true, Ordering::Relaxed);
    }

    /// The next sessions are refused, as by a gateway that does not reach its server.
    pub(super) fn refuses_sessions(&self, count: u64) {
        self.shared.refused.store(count, Ordering::Relaxed);
    }

    /// The next request.
    pub(super) async fn turn(&mut self) -> Turn {
        soon(self.turns.recv()).await.expect("the site is up")
    }

    /// The next call of a tool.
    pub(super) async fn call(&mut self, tool: &str) -> Turn {
        let turn = self.turn().await;
        assert_eq!(turn.message["method"], "tools/call", "{}", turn.message);
        assert_eq!(turn.message["params"]["name"], tool);
        turn
    }

    /// What it did by itself so far.
    pub(super) fn past(&self) -> Vec<String> {
        self.shared.past.lock().unwrap().clone()
    }

    /// Waits until it has done this by itself.
    pub(super) async fn did(&self, what: &str) {
        soon(async {
            while !self.past().iter().any(|done| done == what) {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        })
        .await;
    }
}

impl World {
    /// A run that speaks HTTP is up.
    pub(super) async fn is_served_by(&self, site: &Site) -> AttachedRun {
        let run = soon(self.proxy.attach_run(site.link(), self.arrival())).await.unwrap();
        self.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
        run
    }

    /// The newest run, which speaks HTTP, is found alive.
    pub(super) async fn finds_site(&self, site: &Site, before: &Run) {
        let run = soon(self.proxy.attach_run(site.link(), found(before))).await.unwrap();
        self.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
    }
}

/// What another daemon knows of a run that it has found.
pub(super) fn found(run: &Run) -> RunInfo {
    let known = Some(run.hello.as_ref().clone());
    RunInfo { generation: run.generation, after: None, known, epoch: 2, session: None }
}

impl Turn {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub(super) fn session(&self) -> &str {
        self.header("mcp-session-id").expect("a session")
    }

    /// Answers with a tool's result as JSON.
    pub(super) async fn returns(self, text: &str) {
        let id = self.message["id"].clone();
        self.says(&json!({"jsonrpc": "2.0", "id": id, "result": tool_result(text)})).await;
    }

    /// Answers with this JSON.
    pub(super) async fn says(self, message: &Value) {
        self.responds(200, "content-type: application/json\r\n", &message.to_string()).await;
    }

    /// Responds with a whole body, and closes the connection.
    pub(super) async fn responds(mut self, status: u16, headers: &str, body: &str) {
        write(&mut self.stream, status, headers, body).await;
    }

    /// Responds with the beginning of a body, and closes the connection.
    pub(super) async fn begins(mut self, headers: &str, body: &str) {
        let text = format!("HTTP/1.1 200 OK\r\n{headers}\r\n{body}");
        soon(self.stream.write_all(text.as_bytes())).await.unwrap();
    }

    /// Begins a stream of events.
    pub(super) async fn streams(&mut self) {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        soon(self.stream.write_all(head.as_bytes())).await.unwrap();
    }

    /// Sends an event.
    pub(super) async fn sends(&mut self, id: Option<&str>, message: &Value) {
        let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
        let event = format!("{id}data: {message}\n\n");
        soon(self.stream.write_all(event.as_bytes())).await.unwrap();
    }

    /// The answer with a tool's result.
    pub(super) fn result(&self, text: &str) -> Value {
        json!({"jsonrpc": "2.0", "id": self.message["id"], "result": tool_result(text)})
    }

    /// Waits until the other side has hung up.
    pub(super) async fn ends(mut self) {
        let mut rest = [0; 64];
        assert!(matches!(soon(self.stream.read(&mut rest)).await, Ok(0) | Err(_)));
    }
}

/// One request for each connection.
async fn serve(mut stream: TcpStream, shared: Arc<Shared>, to_test: mpsc::UnboundedSender<Turn>) {
    let Some((head, body)) = request(&mut stream).await else { return };
    let message: Value = serde_json::from_str(&body).unwrap_or_default();
    let session = header(&head, "mcp-session-id").unwrap_or("-").to_owned();
    let method = head.split(' ').next().unwrap_or_default().to_uppercase();
    let what = message["method"].as_str().unwrap_or("-").to_owned();
    let is_ours = match (&*method, &*what) {
        ("POST", "initialize") => !shared.passive.load(Ordering::Relaxed),
        ("POST", "notifications/initialized") | ("DELETE", _) => true,
        ("GET", _) => !shared.listening.load(Ordering::Relaxed),
        _ => false,
    };
    if !is_ours {
        // The test may be over.
        to_test.send(Turn { head, message, stream }).ok();
        return;
    }
    // Noted before the other side knows of it.
    shared.past.lock().unwrap().push(format!("{method} {what} {session}"));
    match (&*method, &*what) {
        ("POST", "initialize") if shared.refuses() => write(&mut stream, 503, "", "").await,
        ("POST", "initialize") => {
            let number = shared.sessions.fetch_add(1, Ordering::Relaxed) + 1;
            let id = &message["id"];
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": hello(&json!({}))});
            let headers =
                format!("mcp-session-id: s{number}\r\ncontent-type: application/json\r\n");
            write(&mut stream, 200, &headers, &answer.to_string()).await;
        }
        ("POST", _) => write(&mut stream, 202, "", "").await,
        ("GET", _) => write(&mut stream, 405, "", "").await,
        _ => write(&mut stream, 200, "", "").await,
    }
}

/// The head, in lower case, and the body; none if the other side hung up before.
async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut text = Vec::new();
    let head = loop {
        if let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut text).await.ok()? == 0 {
            return None;
        }
    };
    let mut body = text.split_off(head);
    let head = String::from_utf8(text).ok()?.to_lowercase();
    let length: usize = header(&head, "content-length").map_or(0, |text| text.parse().unwrap());
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, String::from_utf8(body).ok()?))
}

async fn write(stream: &mut TcpStream, status: u16, headers: &str, body: &str) {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    // The other side may have gone.
    stream.write_all(text.as_bytes()).await.ok();
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}
