//! What all messages of a client share: its session, its open requests, its connections, and the way back to it.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use mainstay_hold::limits::{CONNECT_HOLD, RESTART_GRACE};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::BridgeError;
use super::messages::RequestInfo;
use super::output::Output;
use super::sequence::{Position, Sequence};
use super::session::OpenSession;
use crate::client::{Client, ConnectError, Headers, Method, Request, Response, SendError};
use crate::frame::Parsed;
use crate::private_headers::SEQUENCE;

/// Between two attempts.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The same, when the daemon has been away for longer than a restart takes.
pub(super) const SLOW_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The tasks that read responses.
pub(super) type Tasks = JoinSet<()>;

pub(super) struct Shared {
    pub(super) client: Client,
    /// For requests without a session.
    headers: Headers,
    pub(super) output: Output,
    pub(super) sequence: Arc<Sequence>,
    max_line: usize,
    state: Mutex<State>,
    /// Held while the session is opened again.
    pub(super) reopening: tokio::sync::Mutex<()>,
    failed: Notify,
    answered: Notify,
    leaving: watch::Sender<bool>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) session: Option<Arc<OpenSession>>,
    /// The client's `initialize` and `notifications/initialized`, with which the session is opened again.
    pub(super) initialize: Option<Parsed>,
    pub(super) initialized: Option<Bytes>,
    requests: Vec<Arc<OpenRequest>>,
    error: Option<BridgeError>,
    away_since: Option<Instant>,
}

/// A request of the client without an answer.
pub(super) struct OpenRequest {
    pub(super) info: RequestInfo,
    is_cancelled: AtomicBool,
    cancelled: Notify,
    is_answered: AtomicBool,
    /// Whether the server may have it.
    was_sent: AtomicBool,
}

/// Why an attempt has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// Nothing was sent.
    NotSent,
    /// The same, and the user has stopped the daemon.
    Stopped,
    /// It may have arrived.
    Lost,
}

pub(super) const COMMON: [(&str, &str); 2] =
    [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];

impl Shared {
    pub(super) fn new(client: Client, output: Output, max_line: usize) -> Arc<Self> {
        Arc::new(Self {
            client,
            headers: Headers::new(&COMMON).unwrap_or_default(),
            output,
            sequence: Arc::default(),
            max_line,
            state: Mutex::default(),
            reopening: tokio::sync::Mutex::default(),
            failed: Notify::new(),
            answered: Notify::new(),
            leaving: watch::Sender::new(false),
        })
    }

    pub(super) fn max_line(&self) -> usize {
        self.max_line
    }

    /// Answers may be longer than messages of the client, because Mainstay adds to them.
    pub(super) fn max_answer(&self) -> usize {
        self.max_line + self.max_line / 4
    }

    /// Writes a message to the client.
    pub(super) async fn write(&self, message: Bytes) {
        self.output.write(message, None).await;
    }

    /// Ends the bridge, and does not return: requests stay open until they are [refused](Self::refuse_open).
    pub(super) async fn fail<T>(&self, error: BridgeError) -> T {
        self.state().error.get_or_insert(error);
        self.failed.notify_one();
        pending().await
    }

    pub(super) async fn failed(&self) -> BridgeError {
        loop {
            if let Some(error) = self.state().error.take() {
                return error;
            }
            self.failed.notified().await;
        }
    }

    /// Messages whose responses have not begun are not sent from now on, and streams that end are not resumed.
    pub(super) fn set_leaving(&self) {
        self.leaving.send_replace(true);
    }

    pub(super) fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Resolves when the bridge [leaves](Self::set_leaving).
    pub(super) async fn left(&self) {
        self.leaving.subscribe().wait_for(|is_leaving| *is_leaving).await.ok();
    }

    /// Gives an attempt up when the bridge leaves.
    pub(super) async fn unless_left(
        &self,
        attempt: impl Future<Output = Result<Response, Failed>>,
    ) -> Result<Response, Failed> {
        tokio::select! {
            biased;
            response = attempt => response,
            () = self.left() => Err(Failed::Stopped),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state().session.is_some()
    }

    pub(super) fn session(&self) -> Option<Arc<OpenSession>> {
        self.state().session.clone()
    }

    /// Registers a request until it is dropped with [`Self::remove`].
    pub(super) fn add(&self, info: RequestInfo) -> Arc<OpenRequest> {
        let request = OpenRequest::new(info);
        self.state().requests.push(Arc::clone(&request));
        request
    }

    pub(super) fn remove(&self, request: &Arc<OpenRequest>) {
        let mut state = self.state();
        state.requests.retain(|open| !Arc::ptr_eq(open, request));
        if state.requests.is_empty() {
            self.answered.notify_waiters();
        }
    }

    /// The client does not want the answer to this request any more.
    pub(super) fn cancel(&self, id: &str) {
        for request in self.state().requests.iter().filter(|request| request.info.id() == id) {
            request.is_cancelled.store(true, Ordering::Relaxed);
            request.cancelled.notify_waiters();
        }
    }

    /// Answers all open requests with an error. Other answers to them are discarded.
    pub(super) async fn refuse_open(&self, why: &str) {
        let open = std::mem::take(&mut self.state().requests);
        for request in open.iter().filter(|request| request.may_answer()) {
            let may_have_run = request.info.may_have_run(request.was_sent.load(Ordering::Relaxed));
            let why = if may_have_run { &format!("{why}; its effect is unknown") } else { why };
            if let Some(answer) = request.info.refusal(why) {
                self.write(answer).await;
            }
        }
    }

    /// Resolves when all messages are sent, and all requests answered.
    pub(super) async fn all_answered(&self) {
        self.sequence.all_begun().await;
        loop {
            let answered = self.answered.notified();
            if self.state().requests.is_empty() {
                return;
            }
            answered.await;
        }
    }

    /// Until when a message waits for a daemon.
    pub(super) fn deadline(&self, received: Instant) -> Instant {
        self.state().away_since.unwrap_or_else(Instant::now).max(received) + CONNECT_HOLD
    }

    /// One attempt at a message in the session of the client, which is opened again if it has ended.
    pub(super) async fn attempt_in_session(
        self: &Arc<Self>,
        position: Option<&Position>,
        request: Request<'_>,
        deadline: Instant,
    ) -> Result<Response, Failed> {
        loop {
            let session = self.session();
            let response = self.attempt(session.as_deref(), position, request, deadline).await?;
            match (response.status(), session) {
                (404, Some(ended)) => self.reopen(&ended).await,
                // An earlier message has not arrived, so this one has had no effect.
                (425, _) if Instant::now() >= deadline => return Err(Failed::NotSent),
                (425, _) => self.pause().await,
                _ => return Ok(response),
            }
        }
    }

    /// One attempt at a request, which waits for its turn and for a connection until `deadline`. If there will be none,
    /// the bridge [fails](Self::fail), and this does not return.
    pub(super) async fn attempt(
        &self,
        session: Option<&OpenSession>,
        position: Option<&Position>,
        request: Request<'_>,
        deadline: Instant,
    ) -> Result<Response, Failed> {
        let connected = async {
            if let Some(position) = position {
                position.turn().await;
            }
            self.client.connect().await
        };
        let session = session.map_or(&self.headers, |session| &session.headers);
        let sent = match timeout_at(deadline, connected).await {
            Ok(Ok(())) => {
                let numbers = position.map(|position| position.numbers().to_string());
                let mut headers = request.headers.to_vec();
                headers.extend(numbers.as_deref().map(|numbers| (SEQUENCE.as_str(), numbers)));
                self.client.send_with(&[session], Request { headers: &headers, ..request }).await
            }
            Ok(Err(error)) => Err(error),
            Err(_) => return Err(Failed::NotSent),
        };
        // Without a response, the next daemon may be another one.
        let is_ordered =
            sent.as_ref().is_ok_and(|response| response.header(SEQUENCE.as_str()).is_some());
        self.sequence.set_kept_by_daemon(is_ordered);
        let failed = match sent {
            Ok(response) => {
                self.state().away_since = None;
                return Ok(response);
            }
            Err(SendError::NoConnection(error @ ConnectError::Final(_))) => {
                return self.fail(BridgeError::Connect(error)).await;
            }
            Err(SendError::NoConnection(ConnectError::Stopped)) => Failed::Stopped,
            Err(error) if error.sent() => Failed::Lost,
            Err(_) => Failed::NotSent,
        };
        self.state().away_since.get_or_insert_with(Instant::now);
        Err(failed)
    }

    /// Waits before the next attempt.
    pub(super) async fn pause(&self) {
        let away = self.state().away_since.map_or(Duration::ZERO, |since| since.elapsed());
        sleep(if away < RESTART_GRACE { RETRY_INTERVAL } else { SLOW_RETRY_INTERVAL }).await;
    }

    /// Sends a notification, or an answer to the server. Sending it twice does no harm.
    pub(super) async fn notify(
        self: Arc<Self>,
        message: Parsed,
        received: Instant,
        position: Position,
    ) {
        let post = Request { method: Method::Post, headers: &[], body: message.text() };
        loop {
            let deadline = self.deadline(received);
            let attempt = self.attempt_in_session(Some(&position), post, deadline);
            match self.unless_left(attempt).await {
                Ok(_) | Err(Failed::Stopped) => return,
                Err(Failed::NotSent | Failed::Lost) if Instant::now() >= deadline => return,
                Err(Failed::NotSent | Failed::Lost) => self.pause().await,
            }
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

impl OpenRequest {
    pub(super) fn new(info: RequestInfo) -> Arc<Self> {
        Arc::new(Self {
            info,
            is_cancelled: AtomicBool::new(false),
            cancelled: Notify::new(),
            is_answered: AtomicBool::new(false),
            was_sent: AtomicBool::new(false),
        })
    }

    pub(super) fn set_sent(&self) {
        self.was_sent.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    pub(super) async fn cancelled(&self) {
        let cancelled = self.cancelled.notified();
        if !self.is_cancelled() {
            cancelled.await;
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    /// Whether it has no answer yet. From now on it counts as answered.
    pub(super) fn may_answer(&self) -> bool {
        !self.is_answered.swap(true, Ordering::Relaxed) && !self.is_cancelled()
    }
}
