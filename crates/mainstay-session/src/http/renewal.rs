//! New connections to a server that accepts requests and does not answer.
//!
//! The connections, or a part of what is behind them, may be dead while the server is alive: a gateway may have lost its
//! worker, or a firewall the connection. So requests go over new connections from then on, and probes begin again; sessions that
//! are being opened and listeners follow when the server answers. Requests that were sent stay where they are. If the server
//! answers in a new session and not in the old one, the clients' sessions are opened again.

use std::time::{Duration, Instant};

use mainstay_mcp::upstream::UpstreamError;

use super::{Operation, OperationKey, Purpose};
use crate::action::{Action, HttpFailure, HttpOperation, HttpOutcome};
use crate::links::{LinkKey, OwnRequest};
use crate::server::Server;

/// A new session that is answered within this time shows that the server does not just begin to answer again.
const PROMPT: Duration = Duration::from_secs(5);

/// The renewals since the server last sent something.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    count: u64,
    /// The new session of Mainstay that is being opened, and since when.
    opening: Option<(OperationKey, Instant)>,
}

impl Renewals {
    /// The server answers. Returns whether connections may be dead. A session that is being opened is used when it is.
    fn reset(&mut self) -> bool {
        std::mem::take(&mut self.count) > 0
    }
}

impl Server {
    /// Uses new connections to a run that speaks HTTP, and probes it again over these.
    pub fn renew_connections(&mut self, now: Instant, key: LinkKey) {
        let is_frozen = self.is_frozen;
        let Some(http) = self.http(key).filter(|_| !is_frozen) else { return };
        http.renewals.count += 1;
        // A server that forgets nothing gets few new sessions.
        let opens_session = http.renewals.count.is_power_of_two();
        let opening = http.renewals.opening.take_if(|_| opens_session);
        if let Some((operation, _)) = opening {
            self.cancel_operation(operation);
        }
        self.act(Action::RenewConnections(key));
        for (operation, request) in self.open_probes(key) {
            self.cancel_operation(operation);
            self.ask_http(now, key, request);
        }
        if opens_session {
            for session in self.sessions_of(key) {
                // No effect is lost with `initialize`.
                self.renew_opening(now, session, key);
            }
            let operation = self.open_own_session(key, false);
            if let Some(http) = self.http(key) {
                http.renewals.opening = Some((operation, now));
            }
        }
    }

    /// The run answers again: what waits on a connection that may be dead begins again.
    pub(crate) fn end_renewals(&mut self, now: Instant, key: LinkKey) {
        if self.http(key).is_some_and(|http| http.renewals.reset()) {
            for session in self.sessions_of(key) {
                self.renew_opening(now, session, key);
                self.renew_listener(now, session, key);
            }
        }
    }

    /// The probes that the run has not answered.
    fn open_probes(&self, link: LinkKey) -> Vec<(OperationKey, OwnRequest)> {
        let of_link = self.operations.iter().filter(|(_, operation)| operation.link == link);
        let probes = of_link.filter_map(|(key, operation)| match &operation.purpose {
            Purpose::Own(it) if it.is_probe() => {
                Some((key, OwnRequest::new(it.purpose, it.method, it.params.clone())))
            }
            _ => None,
        });
        probes.collect()
    }

    /// Aborts the last probe of this kind, which the run has not answered.
    pub(crate) fn cancel_probe(&mut self, link: LinkKey, probe: &OwnRequest) {
        for (operation, open) in self.open_probes(link) {
            if open.purpose == probe.purpose {
                self.cancel_operation(operation);
            }
        }
    }

    /// Takes the outcome of a renewal; all others are returned.
    pub(super) fn take_renewal(
        &mut self,
        now: Instant,
        key: OperationKey,
        operation: &Operation,
        outcome: HttpOutcome,
    ) -> Option<HttpOutcome> {
        if !matches!(operation.purpose, Purpose::Open(None)) {
            return Some(outcome);
        }
        let link = operation.link;
        let Some(http) = self.http(link) else { return Some(outcome) };
        let opening = http.renewals.opening.take_if(|(opening, _)| *opening == key);
        let Some((_, begun)) = opening else { return Some(outcome) };
        let was_silent = http.watch.is_silent_since(begun);
        if is_message(&outcome) {
            self.answer_received(now, link);
            self.message_received(now, link);
        }
        let HttpOutcome::Opened(session, _) = outcome else { return None };
        let old = self.http(link).and_then(|http| http.own.replace(session));
        let is_lost = was_silent && now < begun + PROMPT && !self.open_probes(link).is_empty();
        if is_lost {
            for session in self.sessions_of(link) {
                self.forget_upstream(Some(session), operation.generation);
            }
        }
        if let Some(session) = old {
            self.operate(link, Purpose::Delete, None, HttpOperation::Delete { session });
        }
        None
    }
}

/// Whether an operation ended with something that the server has sent.
pub(super) fn is_message(outcome: &HttpOutcome) -> bool {
    match outcome {
        HttpOutcome::Opened(..)
        | HttpOutcome::Answered(_)
        | HttpOutcome::Result(_)
        | HttpOutcome::ListenRefused { .. }
        | HttpOutcome::Failed(HttpFailure::SessionLost) => true,
        HttpOutcome::Failed(HttpFailure::Unusable(error)) => {
            !matches!(error, UpstreamError::Closed { .. } | UpstreamError::Connect { .. })
        }
        HttpOutcome::Done
        | HttpOutcome::ListenEnded { .. }
        | HttpOutcome::ListenFailed
        | HttpOutcome::Failed(HttpFailure::Unsent | HttpFailure::Lost) => false,
    }
}
