//! The session of each client with an HTTP server: opened with the client's own parameters, and opened again when the
//! server has lost it or is another run.
//!
//! When the server has restarted, the sessions of clients that listen are reopened in the background, a few at a time,
//! so that requests take precedence. All others are reopened by their next request.

use std::sync::Arc;
use std::time::Instant;

use mainstay_mcp::upstream::{Hello, UpstreamError};

use super::{Operation, OperationKey, Purpose, UpstreamSession};
use crate::action::{Action, HttpFailure, HttpOperation};
use crate::calls::{Call, CallKey};
use crate::exchange::Failure;
use crate::links::LinkKey;
use crate::listen::Listener;
use crate::record::UpstreamRecord;
use crate::server::Server;
use crate::session::SessionKey;

/// How many sessions are opened in the background at a time.
const BACKGROUND_OPENS: usize = 4;

/// One client's session with whatever run there is.
#[derive(Debug, Default)]
pub(crate) struct Upstream {
    pub(super) present: Option<Arc<UpstreamSession>>,
    opening: Option<Opening>,
    /// Messages without an answer that are on their way.
    pub(super) notifications: usize,
    /// The last event id on the general stream, and the run that sent it.
    pub(crate) last_event: Option<(u64, String)>,
    pub(crate) listener: Listener,
}

#[derive(Debug)]
struct Opening {
    operation: OperationKey,
    link: LinkKey,
    is_background: bool,
    calls: Vec<CallKey>,
}

impl Upstream {
    /// The session continues where an earlier daemon had it.
    pub(crate) fn restored(record: Option<UpstreamRecord>) -> Self {
        // One that no header can name is opened again.
        let present = record.and_then(|record| UpstreamSession::resume(record).ok()).map(Arc::new);
        Self { present, ..Self::default() }
    }

    pub(crate) fn record(&self) -> Option<UpstreamRecord> {
        self.present.as_ref().map(|session| session.record.clone())
    }

    pub(crate) fn is_open_with(&self, generation: u64) -> bool {
        self.with(generation).is_some()
    }

    pub(crate) fn with(&self, generation: u64) -> Option<&Arc<UpstreamSession>> {
        self.present.as_ref().filter(|session| session.generation() == generation)
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listener.is_on()
    }
}

impl Server {
    /// Opens a client's session with a run, once, however many wait for it.
    pub(crate) fn open_upstream(
        &mut self,
        now: Instant,
        key: SessionKey,
        link: LinkKey,
        call: Option<CallKey>,
    ) {
        let Some(generation) = self.links.get(link).map(|link| link.generation) else { return };
        let Some(session) = self.sessions.get_mut(key) else { return };
        if let Some(opening) = session.upstream.opening.as_mut().filter(|it| it.link == link) {
            return opening.calls.extend(call);
        }
        let open = HttpOperation::Open {
            generation,
            params: session.client.params.clone(),
            level: session.client.level,
            subscriptions: session.client.subscriptions.clone(),
            is_starting: false,
        };
        let mut calls: Vec<_> = call.into_iter().collect();
        if let Some(earlier) = session.upstream.opening.take() {
            // It was for an earlier run.
            calls.extend(earlier.calls);
            self.cancel_operation(earlier.operation);
        }
        let operation = self.operate(link, Purpose::Open(Some(key)), Some(now), open);
        if let Some(session) = self.sessions.get_mut(key) {
            let is_background = false;
            session.upstream.opening = Some(Opening { operation, link, is_background, calls });
        }
    }

    /// Opens a client's session at lower priority than requests.
    pub(crate) fn open_upstream_in_background(
        &mut self,
        now: Instant,
        key: SessionKey,
        link: LinkKey,
    ) {
        let Some(session) = self.sessions.get(key) else { return };
        if session.upstream.opening.as_ref().is_some_and(|opening| opening.link == link) {
            return;
        }
        let Some(http) = self.http(link) else { return };
        if http.background_opens >= BACKGROUND_OPENS {
            if !http.background_queue.contains(&key) {
                http.background_queue.push_back(key);
            }
            return;
        }
        http.background_opens += 1;
        self.open_upstream(now, key, link, None);
        let session = self.sessions.get_mut(key);
        if let Some(opening) = session.and_then(|session| session.upstream.opening.as_mut()) {
            opening.is_background = true;
        }
    }

    /// A call does not wait for its session any more.
    pub(crate) fn leave_opening(&mut self, key: SessionKey, call: CallKey) {
        let session = self.sessions.get_mut(key);
        if let Some(opening) = session.and_then(|session| session.upstream.opening.as_mut()) {
            opening.calls.retain(|waiting| *waiting != call);
        }
    }

    /// Opens a client's session over a new connection, if it is being opened with that run.
    pub(super) fn renew_opening(&mut self, now: Instant, key: SessionKey, link: LinkKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let opening = session.upstream.opening.take_if(|opening| opening.link == link);
        let Some(Opening { operation, is_background, calls, .. }) = opening else { return };
        self.cancel_operation(operation);
        self.open_upstream(now, key, link, None);
        let session = self.sessions.get_mut(key);
        if let Some(opening) = session.and_then(|session| session.upstream.opening.as_mut()) {
            (opening.is_background, opening.calls) = (is_background, calls);
        }
    }

    /// A session with a server was opened, or could not be.
    pub(super) fn upstream_opened(
        &mut self,
        now: Instant,
        operation: &Operation,
        key: SessionKey,
        result: Result<(Arc<UpstreamSession>, Hello), HttpFailure>,
    ) {
        let link = operation.link;
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(Opening { calls, is_background, .. }) = session.upstream.opening.take() else {
            return;
        };
        if is_background {
            self.background_open_done(now, link);
        }
        let hello = match result {
            Ok((upstream, hello)) => {
                if let Some(session) = self.sessions.get_mut(key) {
                    session.upstream.present = Some(upstream);
                }
                Some(hello)
            }
            Err(failure) => {
                for call in calls {
                    self.not_opened(now, call, operation, &failure);
                }
                self.listener_failed(now, key);
                return;
            }
        };
        let is_initializing =
            |call: &Call| matches!(call.kind, crate::calls::CallKind::Initialize(_));
        if !calls.iter().any(|call| self.calls.get(*call).is_some_and(|call| is_initializing(call)))
        {
            self.save(key);
            // What changed in between is not known.
            self.announce_resources(key);
        }
        for call in calls {
            if self.calls.get(call).is_some_and(|call| is_initializing(call)) {
                self.upstream_initialized(now, call, operation.generation, hello.as_ref());
            } else {
                self.advance(now, call);
            }
        }
        self.update_listener(now, key);
    }

    fn background_open_done(&mut self, now: Instant, link: LinkKey) {
        let Some(http) = self.http(link) else { return };
        http.background_opens -= 1;
        if let Some(next) = http.background_queue.pop_front() {
            self.open_upstream_in_background(now, next, link);
        }
    }

    /// A request for which no session could be opened has not reached the server.
    fn not_opened(
        &mut self,
        now: Instant,
        key: CallKey,
        operation: &Operation,
        failure: &HttpFailure,
    ) {
        let Some(call) = self.calls.get(key) else { return };
        if matches!(call.kind, crate::calls::CallKind::Initialize(_)) {
            return self.upstream_initialized(now, key, operation.generation, None);
        }
        match failure {
            HttpFailure::Unusable(error) if !is_unreachable(error) => {
                if let Some(call) = self.calls.take(key) {
                    self.unusable(now, key, call, error, operation.generation);
                }
            }
            HttpFailure::Unusable(_)
            | HttpFailure::Unsent
            | HttpFailure::Lost
            | HttpFailure::SessionLost => {
                self.lost(now, key, operation.generation, Failure::Unsent);
            }
        }
    }

    /// The server has forgotten the session of a client.
    pub(crate) fn forget_upstream(&mut self, session: Option<SessionKey>, generation: u64) {
        let session = session.and_then(|session| self.sessions.get_mut(session));
        if let Some(session) = session.filter(|it| it.upstream.is_open_with(generation)) {
            session.upstream.present = None;
        }
    }

    /// Ends the session with the server too.
    pub(crate) fn close_upstream(&mut self, now: Instant, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let listener = session.upstream.listener.stop();
        let opening = session.upstream.opening.take();
        let present = session.upstream.present.take();
        if let Some(operation) = listener {
            self.cancel_operation(operation);
        }
        let run = self.run_for(key);
        if let (Some(upstream), Some(run)) = (present, run)
            && upstream.generation() == run.generation
            && !self.is_frozen
        {
            let delete = HttpOperation::Delete { session: upstream };
            self.operate(run.link, Purpose::Delete, Some(now), delete);
        }
        if let Some(Opening { operation: key, link, is_background, calls }) = opening
            && let Some(operation) = self.operations.remove(key)
        {
            self.act(Action::AbortHttp(key));
            if is_background {
                self.background_open_done(now, link);
            }
            for call in calls {
                self.not_opened(now, call, &operation, &HttpFailure::Unsent);
            }
        }
    }
}

/// Whether a session could not be opened because the server was not reached.
fn is_unreachable(error: &UpstreamError) -> bool {
    matches!(
        error,
        UpstreamError::Closed { .. }
            | UpstreamError::Connect { .. }
            // A gateway that does not reach the server.
            | UpstreamError::Http { status: 502..=504, .. }
    )
}
