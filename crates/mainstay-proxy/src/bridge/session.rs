//! The session of the client: it is opened with the client's `initialize`, and again if the daemon has lost it.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_hold::limits::RESTART_GRACE;
use tokio::time::Instant;

use super::BridgeError;
use super::exchange::{Exchange, Opened};
use super::output::EventReader;
use super::shared::{COMMON, RETRY_INTERVAL, SLOW_RETRY_INTERVAL, Shared, Tasks};
use crate::client::{ConnectError, ContentType, Headers, Method, Request, Response, SendError};
use crate::frame::Parsed;

pub(super) struct OpenSession {
    id: String,
    pub(super) headers: Headers,
}

impl OpenSession {
    fn new(id: String, version: Option<&str>) -> Self {
        let mut headers = COMMON.to_vec();
        headers.push(("mcp-session-id", &id));
        headers.extend(version.map(|version| ("mcp-protocol-version", version)));
        let headers = Headers::new(&headers).unwrap_or_default();
        Self { id, headers }
    }
}

impl Shared {
    /// Opens the session with the client's `initialize`.
    pub(super) async fn open(
        self: &Arc<Self>,
        initialize: Parsed,
        received: Instant,
        tasks: &mut Tasks,
    ) {
        let opened = Exchange::new(self, initialize.clone(), received, None).open().await;
        let Some(Opened { answer, session }) = opened else { return };
        if let Some((id, version)) = session {
            let mut state = self.state();
            state.session = Some(Arc::new(OpenSession::new(id, Some(&version))));
            state.initialize = Some(initialize);
            drop(state);
            tasks.spawn(listen(Arc::clone(self)));
        }
        self.write(answer).await;
    }

    /// Continues a session that was opened before.
    pub(super) fn resume(self: &Arc<Self>, session: String, tasks: &mut Tasks) {
        self.state().session = Some(Arc::new(OpenSession::new(session, None)));
        tasks.spawn(listen(Arc::clone(self)));
    }

    /// Opens another session in place of one that has ended. The client notices nothing.
    pub(super) async fn reopen(self: &Arc<Self>, ended: &OpenSession) {
        let _reopening = self.reopening.lock().await;
        if self.session().is_none_or(|session| session.id != ended.id) {
            return;
        }
        let initialize = self.state().initialize.clone();
        let Some(initialize) = initialize else {
            return self.fail(BridgeError::SessionLost("the session has ended".to_owned())).await;
        };
        let opened = Box::pin(Exchange::hidden(self, initialize).open()).await;
        let (id, version) = match opened {
            Some(Opened { session: Some(session), .. }) => session,
            Some(Opened { answer, .. }) => {
                // If the server was removed, the error of a new connection is clearer.
                if let Err(SendError::NoConnection(error @ ConnectError::Final(_))) =
                    self.client.check().await
                {
                    return self.fail(BridgeError::Connect(error)).await;
                }
                return self.fail(BridgeError::SessionLost(error_message(answer))).await;
            }
            None => return,
        };
        let session = OpenSession::new(id, Some(&version));
        let initialized = self.state().initialized.clone();
        if let Some(initialized) = initialized {
            // If it is lost, the first request stands in for it.
            let post = Request { method: Method::Post, headers: &[], body: &initialized };
            let deadline = Instant::now() + SLOW_RETRY_INTERVAL;
            drop(self.attempt(Some(&session), None, post, deadline).await);
        }
        self.state().session = Some(Arc::new(session));
    }

    /// Keeps the client's `notifications/initialized`.
    pub(super) fn set_initialized(&self, message: &Parsed) {
        self.state().initialized = Some(message.text().clone());
    }

    /// Ends the session.
    pub(super) async fn close(&self) {
        let session = self.state().session.take();
        if let Some(session) = session {
            let delete = Request { method: Method::Delete, headers: &[], body: b"" };
            // If it is lost, the session ends when it has not been used for long enough.
            let deadline = Instant::now() + RETRY_INTERVAL;
            drop(self.attempt(Some(&session), None, delete, deadline).await);
        }
    }
}

/// Receives what belongs to no request.
async fn listen(shared: Arc<Shared>) {
    let mut last_event: Option<String> = None;
    while !shared.is_leaving() {
        let Some(session) = shared.session() else { return };
        let headers = last_event.as_deref().map(|event| [("last-event-id", event)]);
        let headers = headers.as_ref().map_or(&[][..], |headers| &headers[..]);
        let get = Request { method: Method::Get, headers, body: b"" };
        let deadline = Instant::now() + RESTART_GRACE;
        if let Ok(response) = shared.attempt(Some(&session), None, get, deadline).await {
            last_event = match (response.status(), response.content_type()) {
                (200, ContentType::EventStream) => {
                    receive_events(&shared, response, last_event.take()).await
                }
                (404, _) => {
                    shared.reopen(&session).await;
                    None
                }
                // There is nothing after that event.
                _ => None,
            };
        }
        shared.pause().await;
    }
}

/// Passes on events until the stream ends. Returns the last one.
async fn receive_events(
    shared: &Shared,
    response: Response,
    last_event: Option<String>,
) -> Option<String> {
    let mut events = EventReader::new(&shared.output, response, shared.max_answer(), last_event);
    while let Ok(Some((event, memory))) = events.next().await {
        shared.output.write(event.data, memory).await;
    }
    events.last_event_id().map(str::to_owned)
}

/// The text of a JSON-RPC error.
fn error_message(answer: Bytes) -> String {
    #[derive(serde::Deserialize)]
    struct Failure {
        message: String,
    }
    let answer = Parsed::read(answer).ok();
    let failure = answer.as_ref().and_then(Parsed::error).map(serde_json::from_slice);
    match failure {
        Some(Ok(Failure { message })) => message,
        Some(Err(_)) | None => "the answer to `initialize` cannot be read".to_owned(),
    }
}
