//! A client of a proxy.

use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mainstay_proxy::frame::Parsed;
use mainstay_proxy::{Arrival, Reader, Ready, Session, Start};
use mainstay_session::Commit;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::soon;

/// A client with one session.
pub(super) struct Client {
    pub(super) session: Session,
    next_id: AtomicU64,
    general: Mutex<Option<Reader>>,
}

/// A request of the client. Dropping it gives it up.
pub(super) struct Asked {
    pub(super) reader: Reader,
    id: Value,
}

impl Client {
    pub(super) fn new(session: Session) -> Self {
        let general = session.read_general(Start::Unread).unwrap();
        Self { session, next_id: AtomicU64::new(1), general: Mutex::new(Some(general)) }
    }

    /// Listens to the general stream.
    pub(super) fn listens(&self) {
        let mut general = self.general.lock().unwrap();
        *general = self.session.listen(Start::Unread, false);
    }

    /// Opens the session, and gives what the server says of itself.
    pub(super) async fn initializes(&self, capabilities: &Value) -> Value {
        let answer = soon(self.begins(capabilities).answer()).await;
        self.posts(&json!({"method": "notifications/initialized"}));
        answer["result"].clone()
    }

    pub(super) fn begins(&self, capabilities: &Value) -> Asked {
        let info = json!({"name": "tester", "version": "1"});
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": info,
        });
        self.asks("initialize", &params)
    }

    /// Makes a request under the next number.
    pub(super) fn asks(&self, method: &str, params: &Value) -> Asked {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.asks_as(json!(id), method, params)
    }

    pub(super) fn asks_as(&self, id: Value, method: &str, params: &Value) -> Asked {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.sends(id, &message.to_string())
    }

    /// Sends a request as it is written.
    pub(super) fn sends(&self, id: Value, message: &str) -> Asked {
        let message = Parsed::read(message.to_owned().into()).unwrap();
        Asked { reader: self.session.request(message, Arrival::New), id }
    }

    /// Calls a tool.
    pub(super) fn calls(&self, tool: &str) -> Asked {
        self.asks("tools/call", &json!({"name": tool}))
    }

    /// Calls a tool with a request that is sent when its reader is polled.
    pub(super) fn calls_when_polled(&self, tool: &str) -> Asked {
        let id = json!(self.next_id.fetch_add(1, Ordering::Relaxed));
        let params = json!({"name": tool});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let message = Parsed::read(message.to_string().into()).unwrap();
        Asked { reader: self.session.request_when_polled(message, Arrival::New), id }
    }

    /// Calls a tool, and wants to hear of its progress.
    pub(super) fn calls_with_token(&self, tool: &str, token: &Value) -> Asked {
        let meta = json!({"progressToken": token});
        self.asks("tools/call", &json!({"name": tool, "_meta": meta}))
    }

    /// Sends a notification or an answer.
    pub(super) fn posts(&self, message: &Value) {
        let mut message = message.clone();
        message["jsonrpc"] = json!("2.0");
        self.session.post(&Parsed::read(message.to_string().into()).unwrap());
    }

    /// Gives a request up by name.
    pub(super) fn cancels(&self, request: &Asked) {
        let params = json!({"requestId": request.id});
        self.posts(&json!({"method": "notifications/cancelled", "params": params}));
    }

    /// The next message on the general stream.
    pub(super) async fn hears(&self) -> Value {
        soon(self.next()).await.expect("the general stream should go on")
    }

    /// Whether nothing more is said on the general stream. Needs a clock that stands still.
    pub(super) async fn hears_nothing(&self) -> bool {
        timeout(Duration::from_secs(1), self.next()).await.is_err()
    }

    /// Disconnects without ending its session, and returns the id of the session.
    pub(super) fn leaves(self) -> String {
        self.session.id().to_owned()
    }

    /// Whether the general stream has ended.
    pub(super) async fn hears_the_end(&self) -> bool {
        soon(self.next()).await.is_none()
    }

    async fn next(&self) -> Option<Value> {
        let mut reader = self.general.lock().unwrap().take().expect("one at a time listens");
        let item = reader.next().await;
        *self.general.lock().unwrap() = Some(reader);
        item.map(|item| serde_json::from_slice(&item.message).unwrap())
    }
}

impl Asked {
    /// The answer; what comes before it is passed over.
    pub(super) async fn answer(mut self) -> Value {
        loop {
            let item = self.reader.next().await.expect("the request should be answered");
            if item.is_answer {
                assert!(self.reader.next().await.is_none(), "a second answer");
                let answer: Value = serde_json::from_slice(&item.message).unwrap();
                assert_eq!(answer["id"], self.id, "{answer}");
                return answer;
            }
        }
    }

    /// The text of the tool's result, which soon comes.
    pub(super) async fn text(self) -> String {
        text(&soon(self.answer()).await)
    }

    /// The next message before the answer.
    pub(super) async fn hears(&mut self) -> Value {
        let item = soon(self.reader.next()).await.expect("the stream should go on");
        assert!(!item.is_answer, "{item:?}");
        serde_json::from_slice(&item.message).unwrap()
    }

    /// The next message before the answer, if there is one.
    pub(super) async fn hears_before_answer(&mut self) -> Option<Value> {
        match poll_fn(|cx| self.reader.poll_ready(cx)).await {
            Ready::Message => Some(self.hears().await),
            Ready::Answer(_) | Ready::End => None,
        }
    }

    /// The head of the response is sent.
    pub(super) fn is_committed(&mut self) {
        let journal_at = Instant::now().into_std() + Duration::from_secs(60);
        let commit = Commit { is_events: true, is_repeated: false, journal_at };
        self.reader.commit(commit).expect("the session goes on");
    }

    /// Whether the next thing that the client gets is the end, without an answer.
    pub(super) async fn ends_unanswered(mut self) -> bool {
        soon(self.reader.next()).await.is_none() && !self.is_answered()
    }

    /// Whether the client gets nothing more.
    pub(super) async fn ends(mut self) -> bool {
        self.reader.next().await.is_none()
    }

    /// Whether there is an answer by now.
    pub(super) fn is_answered(&self) -> bool {
        self.reader.state().is_some_and(|state| state.has_answer)
    }
}

/// All texts of a tool's result, and whether it is an error.
pub(super) fn text(answer: &Value) -> String {
    let content = answer["result"]["content"].as_array();
    let texts = content.expect("a tool's result").iter().filter_map(|item| item["text"].as_str());
    let failed = if answer["result"]["isError"] == true { "failed: " } else { "" };
    format!("{failed}{}", texts.collect::<Vec<_>>().join(" + "))
}
