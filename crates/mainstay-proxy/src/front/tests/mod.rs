//! A server with one run that does what a test says, for the tests of the front.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};

use super::ProtocolVersion;
use crate::frame::{Kind, Method, Parsed};
use crate::{
    AttachedRun, Availability, Hello, Identity, IntakeGate, LineLink, Ports, RecordLookup, RunInfo,
    ServerHandle, Servers, Session, SessionClock, SessionIds, SessionRecord, SessionStore,
    Settings, StateStore, StreamChange, StreamKey, UpstreamTransport, Written,
};

/// The one server there is.
pub(super) const SERVER: &str = "time";

const HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"fake","version":"7"}}"#;

/// One server whose run is scripted: `fast` is answered at once, every other request is handed to the test.
pub(super) struct Fake {
    pub(super) servers: Arc<Servers>,
    server: ServerHandle,
    run: Mutex<Option<Run>>,
    runs: AtomicU64,
    sessions: AtomicU64,
    asked: mpsc::UnboundedSender<Asked>,
    posted: mpsc::UnboundedSender<String>,
}

/// The present run.
struct Run {
    stdout: mpsc::Sender<Bytes>,
    _attached: AttachedRun,
}

/// What the test gets to see.
pub(super) struct Seen {
    asked: mpsc::UnboundedReceiver<Asked>,
    posted: mpsc::UnboundedReceiver<String>,
}

/// A request that the test answers.
pub(super) struct Asked {
    /// As the run sees it.
    message: Parsed,
    stdout: mpsc::Sender<Bytes>,
    /// Closes when the request is cancelled.
    alive: oneshot::Receiver<()>,
}

impl Fake {
    /// The server is up.
    pub(super) fn new() -> (Arc<Self>, Seen) {
        let (fake, seen) = Self::starting();
        fake.starts();
        (fake, seen)
    }

    /// The server has not been up yet.
    pub(super) fn starting() -> (Arc<Self>, Seen) {
        let (asked, asked_out) = mpsc::unbounded_channel();
        let (posted, posted_out) = mpsc::unbounded_channel();
        let server = ServerHandle::new(SERVER, settings(), ports(), None);
        let servers = Arc::<Servers>::default();
        servers.insert(server.clone());
        let (run, runs, sessions) = (Mutex::new(None), AtomicU64::new(0), AtomicU64::new(0));
        let fake = Self { servers, server, run, runs, sessions, asked, posted };
        (Arc::new(fake), Seen { asked: asked_out, posted: posted_out })
    }

    /// A new run is up.
    pub(super) fn starts(&self) {
        self.starts_with(HELLO);
    }

    /// The same; it answers this to `initialize`.
    pub(super) fn starts_with(&self, hello: &str) {
        let (to_server, stdin) = mpsc::channel(1024);
        let (stdout, from_server) = mpsc::channel(1024);
        let (written, is_written) = watch::channel(0);
        let link = LineLink {
            to_server,
            from_server,
            other_output: mpsc::channel(1).0,
            written: is_written,
            consumed: watch::channel(0).0,
            earlier_output: None,
            interruptions: None,
        };
        let generation = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let hello = RawValue::from_string(hello.to_owned()).unwrap();
        // It is initialized already, so it is attached at once.
        let known = Some(Hello::read(hello, None).unwrap());
        let info = RunInfo { generation, after: None, known, epoch: 1, session: None };
        let attached =
            at_once(self.server.attach_run(UpstreamTransport::Lines(link), info)).unwrap();
        let (asked, posted) = (self.asked.clone(), self.posted.clone());
        drop(tokio::spawn(run(stdin, written, stdout.clone(), asked, posted)));
        self.server.set_availability(Availability::Up(Arc::clone(&attached.run)));
        *self.run.lock().unwrap() = Some(Run { stdout, _attached: attached });
    }

    /// The server is being started.
    pub(super) fn is_coming(&self) {
        self.server.set_availability(Availability::Coming { due: None, why: Arc::default() });
    }

    pub(super) fn is_down(&self) {
        self.server.set_availability(Availability::Down { why: Arc::default() });
    }

    /// The run writes a line: a message to the only client with a request, or to the only client.
    pub(super) fn says(&self, line: &str) {
        let run = self.run.lock().unwrap();
        let run = run.as_ref().expect("the server is up");
        run.stdout.try_send(line.to_owned().into()).unwrap();
    }

    /// A session of this version. All fakes give the same ids.
    pub(super) fn with(&self, version: ProtocolVersion) -> Session {
        let id = format!("{:032x}", self.sessions.fetch_add(1, Ordering::Relaxed));
        let params = format!(r#"{{"protocolVersion":"{version}","capabilities":{{}}}}"#);
        self.server.restore(
            SessionRecord {
                id: id.clone(),
                server: SERVER.to_owned(),
                params: params.into(),
                version: version.as_str().to_owned(),
                initialized: true,
                level: None,
                subscriptions: Vec::new(),
                run: None,
                upstream: None,
                used_at: Duration::ZERO,
            },
            |_| false,
        );
        self.servers.session(SERVER, &id).unwrap()
    }

    pub(super) fn sessions(&self) -> usize {
        self.server.session_count()
    }

    /// Waits until there are so many sessions.
    pub(super) async fn has_sessions(&self, count: usize) {
        soon(async {
            while self.sessions() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    pub(super) fn intake_gate(&self) -> &Arc<IntakeGate> {
        self.servers.intake_gate()
    }
}

/// Reads the lines for the server.
async fn run(
    mut stdin: mpsc::Receiver<Bytes>,
    written: watch::Sender<u64>,
    stdout: mpsc::Sender<Bytes>,
    asked: mpsc::UnboundedSender<Asked>,
    posted: mpsc::UnboundedSender<String>,
) {
    let mut open = HashMap::new();
    while let Some(line) = stdin.recv().await {
        written.send_modify(|written| *written += 1);
        let message = Parsed::read(line).unwrap();
        let id = message.id().map(|id| id.get().to_owned());
        match (message.kind(), message.method().map(Method::as_str)) {
            (Kind::Request, Some("fast")) => {
                stdout.send(result(&id.unwrap(), r#"{"fast": true}"#)).await.unwrap();
            }
            (Kind::Request, _) => {
                let (is_open, alive) = oneshot::channel::<()>();
                open.insert(id.unwrap(), is_open);
                asked.send(Asked { message, stdout: stdout.clone(), alive }).ok();
            }
            (Kind::Notification, Some("notifications/cancelled")) => {
                let id = message.cancelled_id().expect("it says what is cancelled");
                open.remove(message.get(id));
            }
            (Kind::Notification | Kind::Result | Kind::Error, _) => {
                posted.send(String::from_utf8(message.text().to_vec()).unwrap()).ok();
            }
        }
    }
}

impl Seen {
    /// Whether no request waits for its answer.
    pub(super) fn asks_nothing(&mut self) -> bool {
        self.asked.try_recv().is_err()
    }

    /// Waits for a request.
    pub(super) async fn request(&mut self) -> Asked {
        soon(self.asked.recv()).await.expect("the server is there")
    }

    /// Waits for a message that wants no answer.
    pub(super) async fn post(&mut self) -> String {
        soon(self.posted.recv()).await.expect("the server is there")
    }
}

impl Asked {
    /// The client's id of the request: see [`call`].
    pub(super) fn id(&self) -> String {
        let message: Value = serde_json::from_slice(self.message.text()).unwrap();
        message["params"]["id"].to_string()
    }

    /// Sends a message before the answer.
    pub(super) fn says(&self, message: &str) {
        self.write(message.to_owned().into());
    }

    /// Answers with a result, and gives the answer as the client gets it.
    pub(super) fn answers(self, content: &str) -> String {
        self.write(result(self.message.id().unwrap().get(), content));
        String::from_utf8(result(&self.id(), content).to_vec()).unwrap()
    }

    /// The client cancels the request.
    pub(super) async fn cancelled_by(self, session: &Session) {
        let params = format!(r#"{{"requestId":{}}}"#, self.id());
        let method = "notifications/cancelled";
        let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        session.post(&Parsed::read(text.into()).unwrap());
        self.given_up().await;
    }

    /// Waits until the request is given up.
    pub(super) async fn given_up(self) {
        soon(self.alive).await.unwrap_err();
    }

    fn write(&self, line: Bytes) {
        self.stdout.try_send(line).unwrap();
    }
}

fn result(id: &str, content: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{content}}}"#).into()
}

/// The text of a request. The run sees another id than the client's, so requests that the test answers have that as a
/// parameter too.
pub(super) fn call(id: u32, method: &str) -> String {
    let params = match method {
        "fast" => String::new(),
        _ => format!(r#","params":{{"id":{id}}}"#),
    };
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"{params}}}"#)
}

/// The text of an `initialize`.
pub(super) fn initialize(version: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{{"name":"test","version":"1"}}}}}}"#
    )
}

pub(super) fn note(name: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{name}"}}"#)
}

/// Waits for an event, with a limit that is longer than any time of ours.
pub(super) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(300), event).await.expect("the event should come")
}

/// What a future gives without waiting.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it should be ready"),
    }
}

fn settings() -> Settings {
    Settings {
        hold: Duration::from_secs(45),
        replay: BTreeSet::new(),
        quiet_restart: true,
        late_results: true,
        block_limit: None,
        isolate: false,
        isolate_idle: Duration::from_secs(1800),
        call_timeouts: crate::CallTimeouts::default(),
    }
}

fn ports() -> Ports {
    Ports {
        store: Arc::new(Nothing),
        report: Arc::new(|_| {}),
        last_line: Arc::new(|_| Box::pin(async { None })),
        identity: Identity { name: "mainstay".to_owned(), version: "0".to_owned() },
        clock: SessionClock::resumed(Duration::ZERO, tokio::time::Instant::now().into_std()),
        ids: SessionIds::new(&[7; 32], 0),
    }
}

/// Ports that do nothing.
#[derive(Debug)]
struct Nothing;

impl StateStore for Nothing {
    fn save(&self, _record: SessionRecord) {}

    fn touched(&self, _now: Duration, _used: Vec<(String, Duration)>) {}

    fn move_to_disk(&self, _record: SessionRecord) -> bool {
        false
    }

    fn remove(&self, _id: &str) {}

    fn save_copy(&self, _server: &str, _copy: Vec<u8>) {}

    fn remove_server(&self, _server: &str) {}

    fn append_to_journal(&self, _stream: &StreamKey, _change: StreamChange) -> bool {
        true
    }
}

impl SessionStore for Nothing {
    fn written(&self) -> Written {
        Box::pin(async {})
    }

    fn find(&self, _id: &str) -> RecordLookup {
        Box::pin(async { Ok(None) })
    }
}
