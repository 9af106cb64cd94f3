//! Servers that speak streamable HTTP: operations with them, and what these report. Each client has a session of its own
//! with them (`client_session`), and so has Mainstay (`own_session`).

mod client_session;
mod own_session;
mod renewal;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mainstay_mcp::client::Headers;
use mainstay_mcp::frame::{self, Kind, Method, Parsed};
use mainstay_mcp::upstream::{self, Hello, UpstreamError};
use tracing::debug;

pub(crate) use self::client_session::Upstream;
pub(crate) use self::renewal::Renewals;
use self::renewal::is_message;
use crate::action::{Action, HttpFailure, HttpOperation, HttpOutcome};
use crate::calls::{Call, CallKey, Stage};
use crate::exchange::{AttemptError, Failure};
use crate::links::{Link, LinkKey, OwnPurpose, OwnRequest};
use crate::record::{Sent, UpstreamRecord};
use crate::server::Server;
use crate::session::SessionKey;
use crate::silence::WatchState;
use crate::table::Key;

/// How many messages without an answer may be on their way for one client.
const MAX_NOTIFICATIONS: usize = 64;

/// An exchange with an HTTP server.
pub type OperationKey = Key<Operation>;

#[derive(Debug)]
pub struct Operation {
    pub(crate) link: LinkKey,
    generation: u64,
    pub(crate) purpose: Purpose,
    /// When a request was sent of which an answer is expected.
    pub(crate) sent: Option<Instant>,
    /// Whether the server answers with an event stream.
    pub(crate) is_streaming: bool,
}

#[derive(Debug)]
pub(crate) enum Purpose {
    /// The session of a client, or Mainstay's own.
    Open(Option<SessionKey>),
    Call(CallKey),
    Own(OwnRequest),
    Notify(SessionKey),
    Listen(SessionKey),
    Delete,
}

/// A session with a run that speaks HTTP.
#[derive(Debug)]
pub struct UpstreamSession {
    record: UpstreamRecord,
    /// By these the server recognises the session.
    pub headers: Headers,
}

impl UpstreamSession {
    /// A session that was opened before.
    pub fn resume(record: UpstreamRecord) -> Result<Self, UpstreamError> {
        let version = ("MCP-Protocol-Version", record.version.as_str());
        let id = record.id.as_deref().map(|id| ("Mcp-Session-Id", id));
        let headers: Vec<_> = [Some(version), id].into_iter().flatten().collect();
        let headers = Headers::new(&headers);
        let headers = headers.map_err(|error| upstream::protocol("initialize", error))?;
        Ok(Self { record, headers })
    }

    pub fn generation(&self) -> u64 {
        self.record.run
    }

    /// The server's id for it, if it gave one.
    pub fn id(&self) -> Option<&str> {
        self.record.id.as_deref()
    }
}

/// The link to a run.
#[derive(Debug)]
pub(crate) struct Http {
    /// Mainstay's own session.
    own: Option<Arc<UpstreamSession>>,
    /// The answer to `initialize` by which a remote server is found again.
    found: Option<Hello>,
    next_id: u64,
    /// Requests of Mainstay itself that wait until its session is opened again.
    waiting: Vec<OwnRequest>,
    background_opens: usize,
    background_queue: VecDeque<SessionKey>,
    pub(crate) watch: WatchState,
    /// Calls that wait because the run does not answer.
    pub(crate) queue: VecDeque<CallKey>,
    pub(crate) renewals: Renewals,
}

impl Http {
    pub(crate) fn new(now: Instant, next_id: u64) -> Self {
        Self {
            own: None,
            found: None,
            next_id,
            waiting: Vec::new(),
            background_opens: 0,
            background_queue: VecDeque::new(),
            watch: WatchState::new(now, false),
            queue: VecDeque::new(),
            renewals: Renewals::default(),
        }
    }
}

impl Server {
    pub(crate) fn http(&mut self, key: LinkKey) -> Option<&mut Http> {
        self.links.get_mut(key).and_then(Link::as_http_mut)
    }

    fn operate(
        &mut self,
        link: LinkKey,
        purpose: Purpose,
        sent: Option<Instant>,
        operation: HttpOperation,
    ) -> OperationKey {
        let (generation, is_streaming) = (self.generation(link), false);
        let key =
            self.operations.insert(Operation { link, generation, purpose, sent, is_streaming });
        self.act(Action::Http(key, link, operation));
        key
    }

    /// The result of an operation is not needed.
    pub(crate) fn cancel_operation(&mut self, key: OperationKey) {
        if self.operations.remove(key).is_some() {
            self.act(Action::AbortHttp(key));
        }
    }

    pub(crate) fn cancel_list_operation(&mut self, link: LinkKey) {
        let is_list = |operation: &Operation| {
            let is_page = |request: &OwnRequest| request.purpose == OwnPurpose::ListPage;
            operation.link == link && matches!(&operation.purpose, Purpose::Own(it) if is_page(it))
        };
        let found = self.operations.iter().find(|(_, operation)| is_list(operation));
        if let Some(key) = found.map(|(key, _)| key) {
            self.cancel_operation(key);
        }
    }

    /// Sends a request of a client.
    pub(crate) fn send_to_http(
        &mut self,
        now: Instant,
        call: &mut Call,
        key: CallKey,
        link: LinkKey,
    ) -> Result<(), AttemptError> {
        let Some(found) = self.links.get_mut(link) else { return Err(Failure::Unsent.into()) };
        let generation = found.generation;
        if let Some(http) = found.as_http_mut().filter(|http| http.watch.is_held) {
            http.queue.push_back(key);
            call.stage = Stage::Queued(link);
            return Ok(());
        }
        let Some(session) = self.sessions.get(call.session) else {
            return Err(Failure::Unsent.into());
        };
        let Some(upstream) = session.upstream.with(generation).cloned() else {
            call.stage = Stage::OpeningUpstream;
            self.open_upstream(now, call.session, link, Some(key));
            if self.is_slow(call) {
                self.watch(link);
            }
            return Ok(());
        };
        if !self.record_sent(call, Sent { generation, line: None })? {
            return Ok(());
        }
        let request = HttpOperation::Request { session: upstream, message: call.message.clone() };
        let operation = self.operate(link, Purpose::Call(key), Some(now), request);
        call.stage = Stage::AtHttp { link, operation };
        if self.is_slow(call) {
            self.watch(link);
        }
        Ok(())
    }

    /// The server sent a message before the answer. Returns false if no more must be reported until
    /// [`Action::ResumeHttp`].
    pub fn http_message(&mut self, now: Instant, key: OperationKey, message: &Parsed) -> bool {
        let Some(operation) = self.operations.get(key) else { return true };
        let link = operation.link;
        self.message_received(now, link);
        let Some(operation) = self.operations.get(key) else { return true };
        let (link, generation) = (operation.link, operation.generation);
        let (session, stream) = match operation.purpose {
            Purpose::Call(call) => match self.calls.get(self.awaiting_call(call).unwrap_or(call)) {
                Some(call) => (call.session, Some(call.stream)),
                None => return true,
            },
            Purpose::Listen(session) => (session, None),
            Purpose::Open(_) | Purpose::Own(_) | Purpose::Notify(_) | Purpose::Delete => {
                return true;
            }
        };
        match message.kind() {
            Kind::Request => {
                self.route_http_request((session, link, generation), message, stream);
            }
            Kind::Notification => {
                self.deliver_http(now, key, (session, generation), message, stream);
            }
            Kind::Result | Kind::Error => {}
        }
        let is_abandoned = stream.is_some_and(|stream| self.is_abandoned(stream));
        let Some(stream) = stream.and_then(|stream| self.streams.get_mut(stream)) else {
            return true;
        };
        let has_room = stream.log.has_room() || stream.is_closed || is_abandoned;
        if !has_room {
            stream.awaits_room = Some(key);
        }
        has_room
    }

    fn deliver_http(
        &mut self,
        now: Instant,
        key: OperationKey,
        (session, generation): (SessionKey, u64),
        message: &Parsed,
        stream: Option<crate::streams::StreamRef>,
    ) {
        let purpose = self.operations.get(key).map(|operation| &operation.purpose);
        match (purpose, message.method()) {
            (Some(Purpose::Call(call)), Some(Method::Progress)) => {
                let call = *call;
                // The token of a call that was given up means nothing to the call that has joined it.
                if self.awaiting_call(call) == Some(call)
                    && let Some(text) = self.with_rising_progress(now, call, message)
                {
                    self.deliver(session, text, stream);
                }
            }
            _ => self.deliver_own(now, session, generation, message, stream),
        }
    }

    /// The server answers a request with an event stream.
    pub fn http_streaming(&mut self, now: Instant, key: OperationKey) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        operation.is_streaming = true;
        let link = operation.link;
        if let Purpose::Call(call) = operation.purpose {
            // Its run may have ended meanwhile.
            self.end_stream_of_ended_run(now, call, link, key);
        }
        self.answer_received(now, link);
        self.message_received(now, link);
    }

    /// The last event id of a listener's stream.
    pub fn http_event_id(&mut self, key: OperationKey, id: &str) {
        if let Some(Operation { purpose: Purpose::Listen(session), generation, .. }) =
            self.operations.get(key)
            && let Some(session) = self.sessions.get_mut(*session)
        {
            session.upstream.last_event = Some((*generation, id.to_owned()));
        }
    }

    /// An operation has ended.
    pub fn http_done(&mut self, now: Instant, key: OperationKey, outcome: HttpOutcome) {
        let Some(operation) = self.operations.remove(key) else { return };
        let Some(outcome) = self.take_renewal(now, key, &operation, outcome) else { return };
        if is_message(&outcome) {
            self.answer_received(now, operation.link);
            self.message_received(now, operation.link);
        }
        match operation.purpose {
            Purpose::Open(None) => self.own_session_opened(now, operation.link, outcome),
            Purpose::Open(Some(session)) => {
                let result = match outcome {
                    HttpOutcome::Opened(upstream, hello) => Ok((upstream, hello)),
                    HttpOutcome::Failed(failure) => Err(failure),
                    _ => Err(HttpFailure::Lost),
                };
                self.upstream_opened(now, &operation, session, result);
            }
            Purpose::Call(call) => self.http_call_done(now, &operation, call, outcome),
            Purpose::Own(request) => self.own_request_done(now, operation.link, request, outcome),
            Purpose::Notify(session) => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.upstream.notifications -= 1;
                }
            }
            Purpose::Listen(session) => {
                self.listen_done(now, session, operation.generation, &outcome);
            }
            Purpose::Delete => {}
        }
    }

    fn http_call_done(
        &mut self,
        now: Instant,
        operation: &Operation,
        key: CallKey,
        outcome: HttpOutcome,
    ) {
        let generation = operation.generation;
        match outcome {
            HttpOutcome::Answered(answer) => {
                self.answered(now, key, (operation.link, generation), answer);
            }
            HttpOutcome::Failed(HttpFailure::Unusable(error)) => {
                if let Some(call) = self.calls.take(key) {
                    self.unusable(now, key, call, &error, generation);
                }
            }
            HttpOutcome::Failed(HttpFailure::SessionLost) => {
                let session = self.calls.get(key).map(|call| call.session);
                self.forget_upstream(session, generation);
                self.lost(now, key, generation, Failure::SessionLost);
            }
            HttpOutcome::Failed(HttpFailure::Unsent) => {
                self.lost(now, key, generation, Failure::Unsent);
            }
            _ => self.lost(now, key, generation, Failure::Sent),
        }
    }

    /// A stream of a run that has ended is not resumed at the next one, which knows nothing of it.
    pub(crate) fn end_stream_of_ended_run(
        &mut self,
        now: Instant,
        key: CallKey,
        link: LinkKey,
        operation: OperationKey,
    ) {
        let Some(call) = self.calls.get(key) else { return };
        let Some(Operation { is_streaming: true, generation, .. }) = self.operations.get(operation)
        else {
            return;
        };
        let generation = *generation;
        let run = self.run_for(call.session);
        let is_present = run.is_some_and(|run| run.link == link || run.generation == generation);
        // It may only be its engine that does not answer.
        let is_kept = self.links.get(link).is_some_and(|link| !link.is_released);
        if is_present || is_kept || self.is_relayed(call.stream) {
            return;
        }
        self.cancel_operation(operation);
        self.lost(now, key, generation, Failure::Sent);
    }

    /// Sends a message without an answer in a client's session with a run. No session is opened for it: a new one
    /// begins with all that there is to know.
    pub(crate) fn notify_http(&mut self, key: SessionKey, link: LinkKey, message: Bytes) {
        if !self.is_frozen {
            self.notify_http_always(key, link, message);
        }
    }

    /// The same, also after another daemon has taken over.
    fn notify_http_always(&mut self, key: SessionKey, link: LinkKey, message: Bytes) {
        let Some(generation) = self.links.get(link).map(|link| link.generation) else { return };
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(upstream) = session.upstream.with(generation).cloned() else { return };
        if session.upstream.notifications >= MAX_NOTIFICATIONS {
            return debug!("a message to a server that does not take it was dropped");
        }
        session.upstream.notifications += 1;
        let notify = HttpOperation::Notify { session: upstream, message };
        self.operate(link, Purpose::Notify(key), None, notify);
    }

    /// Passes a request of the server to the client, or refuses it.
    fn route_http_request(
        &mut self,
        (session, link, generation): (SessionKey, LinkKey, u64),
        request: &Parsed,
        stream: Option<crate::streams::StreamRef>,
    ) {
        let Some(id) = request.id() else { return };
        let answer = if request.method() == Some(&Method::Ping) {
            Some(frame::empty_result(id))
        } else {
            let refusal = self.ask_client(session, generation, request, stream, true);
            refusal.map(|why| frame::error(id, frame::METHOD_NOT_FOUND, why))
        };
        let is_relayed = stream.is_some_and(|stream| self.is_relayed(stream));
        match answer {
            Some(answer) if is_relayed => self.notify_http_always(session, link, answer),
            Some(answer) => self.notify_http(session, link, answer),
            None => {}
        }
    }

    /// Begins to listen to a server.
    pub(crate) fn begin_listening(
        &mut self,
        key: SessionKey,
        link: LinkKey,
    ) -> Option<OperationKey> {
        let generation = self.links.get(link)?.generation;
        let session = self.sessions.get(key)?;
        let upstream = Arc::clone(session.upstream.with(generation)?);
        let last_event = session.upstream.last_event.as_ref();
        let last_event = last_event.filter(|(run, _)| *run == generation).map(|(_, id)| id.clone());
        let listen = HttpOperation::Listen { session: upstream, last_event };
        Some(self.operate(link, Purpose::Listen(key), None, listen))
    }
}
