//! The Rust SDK as a client: crates.io `rmcp`, on a thread of its own.
//!
//! It has the same commands and events as the drivers in `tests/clients`, except the events of single HTTP exchanges.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rmcp::model::{
    ClientConfig, ClientNotification, ClientRequest, ClientResult, ErrorData, ServerNotification,
    ServerRequest,
};
use rmcp::service::{
    NotificationContext, Peer, PeerRequestOptions, RequestContext, RoleClient, Service,
    ServiceError, ServiceExt as _,
};
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::client::EventLog;

/// A client that runs until it is stopped.
pub(super) struct RustSdk {
    orders: Option<mpsc::UnboundedSender<Value>>,
    thread: Option<JoinHandle<()>>,
}

impl RustSdk {
    pub(super) fn start(url: &str, reported: EventLog) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let url = url.to_owned();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(session(url, reported.clone(), inbox));
            reported.add(json!({"event": "closed"}));
        });
        Self { orders: Some(orders), thread: Some(thread) }
    }

    pub(super) fn order(&self, command: Value) {
        // A client that has ended has reported that.
        let _ended = self.orders.as_ref().unwrap().send(command);
    }

    pub(super) fn stop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _told = thread.join();
        }
    }
}

/// One session, until it is closed by a command.
async fn session(url: String, reported: EventLog, mut inbox: mpsc::UnboundedReceiver<Value>) {
    let answers = HashMap::from([("roots/list".to_owned(), json!({"roots": []}))]);
    let shared = Mutex::new(Shared { answers, ..Shared::default() });
    let handler = Arc::new(Handler { reported: reported.clone(), shared });
    let transport = StreamableHttpClientTransport::from_uri(url);
    let mut client = match Speaker(Arc::clone(&handler)).serve(transport).await {
        Ok(client) => client,
        Err(error) => return trouble(&reported, &error),
    };
    let hello = client.peer_info().expect("a session is open only after `initialize`");
    let capabilities = serde_json::to_value(&*hello).unwrap()["capabilities"].clone();
    reported.add(json!({"event": "connected", "capabilities": capabilities}));
    let mut requests = JoinSet::new();
    while let Some(command) = inbox.recv().await {
        let id = command["id"].as_u64();
        match command["do"].as_str().unwrap() {
            "close" => break,
            "cancel" => handler.cancel(id.unwrap()),
            "answer" => handler.answer(command["key"].as_u64().unwrap(), command["result"].clone()),
            "answers" => {
                let method = command["method"].as_str().unwrap().to_owned();
                handler.shared.lock().unwrap().answers.insert(method, command["result"].clone());
            }
            _request => {
                let (give_up, unwanted) = oneshot::channel();
                handler.shared.lock().unwrap().in_flight.insert(id.unwrap(), give_up);
                let peer = client.peer().clone();
                requests.spawn(request(Arc::clone(&handler), peer, command, unwanted));
            }
        }
    }
    requests.abort_all();
    if client.is_closed() {
        trouble(&reported, &"the client closed itself");
    }
    if let Err(error) = client.close_with_timeout(Duration::from_secs(5)).await {
        trouble(&reported, &error);
    }
}

/// Sends one request and reports its result.
async fn request(
    handler: Arc<Handler>,
    peer: Peer<RoleClient>,
    command: Value,
    unwanted: oneshot::Receiver<()>,
) {
    let id = command["id"].as_u64().unwrap();
    let message = json!({"method": command["do"], "params": command["params"]});
    let message: ClientRequest = serde_json::from_value(message).unwrap();
    let mut options = PeerRequestOptions::no_options();
    options.timeout = command["timeout"].as_f64().map(Duration::from_secs_f64);
    let sent = peer.send_request_with_option(message, options).await;
    let handle = match sent {
        Ok(handle) => handle,
        Err(error) => return handler.reported.add(failure(id, &error)),
    };
    let token = serde_json::to_string(&handle.progress_token).unwrap();
    handler.shared.lock().unwrap().tokens.insert(token, id);
    let number = handle.id.clone();
    let end = tokio::select! {
        end = handle.await_response() => end,
        _ = unwanted => {
            let params = json!({"requestId": number, "reason": "no longer wanted"});
            let notice = json!({"method": "notifications/cancelled", "params": params});
            let notice: ClientNotification = serde_json::from_value(notice).unwrap();
            let _closed = peer.send_notification(notice).await;
            Err(ServiceError::Cancelled { reason: None })
        }
    };
    handler.reported.add(match end {
        Ok(result) => json!({"event": "result", "id": id, "result": result}),
        Err(error) => failure(id, &error),
    });
}

fn failure(id: u64, error: &ServiceError) -> Value {
    let code = match error {
        ServiceError::McpError(error) => json!(error.code),
        _other => Value::Null,
    };
    json!({"event": "error", "id": id, "code": code, "message": error.to_string()})
}

fn trouble(reported: &EventLog, error: &dyn std::fmt::Display) {
    reported.add(json!({"event": "trouble", "message": error.to_string()}));
}

/// What the client knows of its session.
struct Handler {
    reported: EventLog,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The requests that a progress token stands for.
    tokens: HashMap<String, u64>,
    in_flight: HashMap<u64, oneshot::Sender<()>>,
    answers: HashMap<String, Value>,
    questions: HashMap<u64, oneshot::Sender<Value>>,
    last_question: u64,
}

impl Handler {
    fn cancel(&self, id: u64) {
        if let Some(give_up) = self.shared.lock().unwrap().in_flight.remove(&id) {
            let _ended = give_up.send(());
        }
    }

    fn answer(&self, key: u64, result: Value) {
        if let Some(question) = self.shared.lock().unwrap().questions.remove(&key) {
            let _withdrawn = question.send(result);
        }
    }

    /// Reports a request of the server, and returns its answer if there is one already.
    fn asked(&self, question: &Value) -> Result<Value, (u64, oneshot::Receiver<Value>)> {
        let method = question["method"].as_str().unwrap().to_owned();
        let mut shared = self.shared.lock().unwrap();
        shared.last_question += 1;
        let key = shared.last_question;
        let params = &question["params"];
        self.reported
            .add(json!({"event": "asked", "key": key, "method": method, "params": params}));
        if let Some(answer) = shared.answers.get(&method) {
            return Ok(answer.clone());
        }
        let (answer, answered) = oneshot::channel();
        shared.questions.insert(key, answer);
        Err((key, answered))
    }
}

/// The handler of messages from the server.
struct Speaker(Arc<Handler>);

impl Service<RoleClient> for Speaker {
    async fn handle_request(
        &self,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        let question = serde_json::to_value(&request).unwrap();
        if question["method"] == "ping" {
            return Ok(ClientResult::empty(()));
        }
        let answer = match self.0.asked(&question) {
            Ok(answer) => answer,
            Err((key, answered)) => tokio::select! {
                answer = answered => answer.unwrap_or_default(),
                () = context.ct.cancelled() => {
                    self.0.reported.add(json!({"event": "withdrawn", "key": key}));
                    Value::Null
                }
            },
        };
        let parsed = serde_json::from_value(answer);
        parsed.map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        _context: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        let received = serde_json::to_value(&notification).unwrap();
        let (method, params) = (&received["method"], &received["params"]);
        if method == "notifications/cancelled" {
            return Ok(());
        }
        if method != "notifications/progress" {
            let reported = json!({"event": "notification", "method": method, "params": params});
            self.0.reported.add(reported);
            return Ok(());
        }
        let token = params["progressToken"].to_string();
        let id = self.0.shared.lock().unwrap().tokens.get(&token).copied();
        let progress = &params["progress"];
        self.0.reported.add(json!({"event": "progress", "id": id, "progress": progress}));
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = json!({"sampling": {}, "elicitation": {}, "roots": {}});
        let implementation = json!({"name": "rust", "version": "1"});
        let capabilities = serde_json::from_value(capabilities).unwrap();
        ClientConfig::new(capabilities, serde_json::from_value(implementation).unwrap())
    }
}
