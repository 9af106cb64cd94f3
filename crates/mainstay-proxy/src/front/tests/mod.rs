//! A core that does what a test says, for the tests of both fronts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::run::wanted_version;
use super::*;
use crate::frame::{Kind, Method};

/// The one server there is.
pub(super) const SERVER: &str = "time";

/// A core with one server.
///
/// `fast` is answered at once, `initialize` too unless its client is called `slow` or `refused`;
/// every other request is handed to the test.
pub(super) struct Fake {
    intake_gate: Arc<IntakeGate>,
    sessions: Arc<Mutex<BTreeMap<String, FakeSession>>>,
    asked: mpsc::UnboundedSender<Asked>,
    posted: mpsc::UnboundedSender<String>,
    opened: AtomicU32,
    pub(super) is_full: AtomicBool,
}

/// What the test gets to see.
pub(super) struct Seen {
    asked: mpsc::UnboundedReceiver<Asked>,
    posted: mpsc::UnboundedReceiver<String>,
}

/// A request that the test answers.
pub(super) struct Asked {
    pub(super) message: Parsed,
    pub(super) out: Arc<Stream>,
    pub(super) done: oneshot::Sender<()>,
    /// Closes with the future of the request.
    alive: oneshot::Receiver<()>,
}

#[derive(Clone)]
pub(super) struct FakeSession(Arc<Inner>);

struct Inner {
    id: String,
    version: Mutex<Option<ProtocolVersion>>,
    streams: Streams,
    asked: mpsc::UnboundedSender<Asked>,
    posted: mpsc::UnboundedSender<String>,
    all: Arc<Mutex<BTreeMap<String, FakeSession>>>,
}

impl Fake {
    pub(super) fn new() -> (Arc<Self>, Seen) {
        let (asked, asked_out) = mpsc::unbounded_channel();
        let (posted, posted_out) = mpsc::unbounded_channel();
        let (opened, is_full) = (AtomicU32::new(0), AtomicBool::new(false));
        let (sessions, intake_gate) = Default::default();
        let fake = Self { intake_gate, sessions, asked, posted, opened, is_full };
        (Arc::new(fake), Seen { asked: asked_out, posted: posted_out })
    }

    /// A session of this version.
    pub(super) fn with(&self, version: ProtocolVersion) -> FakeSession {
        let session = self.open(SERVER).unwrap();
        *session.0.version.lock().unwrap() = Some(version);
        session
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.lock().unwrap().len()
    }
}

impl Core for Fake {
    type Session = FakeSession;

    fn intake_gate(&self) -> &Arc<IntakeGate> {
        &self.intake_gate
    }

    fn open_as(&self, server: &str, _id: &str) -> Result<FakeSession, OpenError> {
        self.open(server)
    }

    fn open(&self, server: &str) -> Result<FakeSession, OpenError> {
        if server != SERVER {
            return Err(OpenError::NoSuchServer);
        }
        if self.is_full.load(Ordering::Relaxed) {
            return Err(OpenError::TooManySessions);
        }
        let session = FakeSession(Arc::new(Inner {
            id: format!("{:032x}", self.opened.fetch_add(1, Ordering::Relaxed)),
            version: Mutex::default(),
            streams: Streams::new(),
            asked: self.asked.clone(),
            posted: self.posted.clone(),
            all: Arc::clone(&self.sessions),
        }));
        self.sessions.lock().unwrap().insert(session.0.id.clone(), session.clone());
        Ok(session)
    }

    fn session(&self, server: &str, id: &str) -> Result<FakeSession, Lookup> {
        if server != SERVER {
            return Err(Lookup::NoSuchServer);
        }
        self.sessions.lock().unwrap().get(id).cloned().ok_or(Lookup::NoSuchSession)
    }

    async fn load_from_disk(
        &self,
        _server: &str,
        _id: &str,
        _if_lost: Option<ProtocolVersion>,
    ) -> Result<FakeSession, Lookup> {
        Err(Lookup::NoSuchSession)
    }

    fn close(&self, server: &str, id: &str) -> Result<(), Lookup> {
        self.session(server, id)?.abandon();
        Ok(())
    }
}

impl Session for FakeSession {
    fn server(&self) -> &str {
        SERVER
    }

    fn id(&self) -> &str {
        &self.0.id
    }

    fn version(&self) -> Option<ProtocolVersion> {
        *self.0.version.lock().unwrap()
    }

    fn request(&self, message: Parsed, out: Arc<Stream>) -> Answering {
        let session = self.clone();
        Box::pin(async move {
            let id = message.id().unwrap().get().to_owned();
            if message.method() == Some(&Method::Initialize) {
                let text = String::from_utf8_lossy(message.text()).into_owned();
                if text.contains("refused") {
                    return out.finish(Some(error(&id, "refused")));
                }
                *session.0.version.lock().unwrap() = wanted_version(&message);
                if !text.contains("slow") {
                    return out.finish(Some(result(&id, "{}")));
                }
            }
            if message.method().map(Method::as_str) == Some("fast") {
                return out.finish(Some(result(&id, r#"{"fast": true}"#)));
            }
            assert!(message.method().map(Method::as_str) != Some("fail"), "as if by a bug");
            let fails_late = message.method().map(Method::as_str) == Some("fail late");
            let ((done, is_done), (_alive, alive)) = (oneshot::channel(), oneshot::channel());
            session.0.asked.send(Asked { message, out, done, alive }).ok();
            is_done.await.ok();
            assert!(!fails_late, "as if by a bug");
        })
    }

    fn post(&self, message: Parsed) {
        assert_ne!(message.kind(), Kind::Request);
        let text = String::from_utf8(message.into_text().to_vec()).unwrap();
        self.0.posted.send(text).ok();
    }

    fn streams(&self) -> &Streams {
        &self.0.streams
    }

    fn listens(&self) {}

    fn abandon(&self) {
        self.0.streams.close();
        self.0.all.lock().unwrap().remove(&self.0.id);
    }
}

impl Seen {
    /// Whether no request waits for its answer.
    pub(super) fn asks_nothing(&mut self) -> bool {
        self.asked.try_recv().is_err()
    }

    /// Waits for a request.
    pub(super) async fn request(&mut self) -> Asked {
        soon(self.asked.recv()).await.expect("the core is there")
    }

    /// Waits for a message that wants no answer.
    pub(super) async fn post(&mut self) -> String {
        soon(self.posted.recv()).await.expect("the core is there")
    }
}

impl Asked {
    pub(super) fn id(&self) -> String {
        self.message.id().unwrap().get().to_owned()
    }

    /// Answers with a result, and gives the answer.
    pub(super) fn answers(self, content: &str) -> String {
        let answer = result(&self.id(), content);
        self.out.finish(Some(answer.clone()));
        self.done.send(()).ok();
        String::from_utf8(answer.to_vec()).unwrap()
    }

    /// Answers with an error, and gives the answer.
    pub(super) fn fails(self, message: &str) -> String {
        let answer = error(&self.id(), message);
        self.out.finish(Some(answer.clone()));
        self.done.send(()).ok();
        String::from_utf8(answer.to_vec()).unwrap()
    }

    /// Ends without an answer.
    pub(super) fn ends_silently(self) {
        self.out.finish(None);
        self.done.send(()).ok();
    }

    /// Waits until the request is given up.
    pub(super) async fn given_up(self) {
        soon(self.alive).await.unwrap_err();
    }
}

pub(super) fn result(id: &str, content: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{content}}}"#).into()
}

fn error(id: &str, message: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-1,"message":"{message}"}}}}"#).into()
}

/// The text of a request.
pub(super) fn call(id: u32, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#)
}

/// The text of an `initialize` of a client with this name.
pub(super) fn initialize(client: &str, version: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{{"name":"{client}","version":"1"}}}}}}"#
    )
}

pub(super) fn note(name: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{name}"}}"#)
}

/// Waits for an event, with a limit that is longer than any time of ours.
pub(super) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(300), event).await.expect("the event should come")
}
