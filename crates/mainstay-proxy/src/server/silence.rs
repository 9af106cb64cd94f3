//! A run that may not answer.

use std::time::Duration;

use mainstay_core::watchdog::{Evidence, Observation, Probe};
use mainstay_session::{LinkKey, LinkObservation, SentRequest, UnreadRequests};
use tokio::time::Instant;

use super::operation::OperationIo;
use super::{AttachedRun, ServerHandle, State};

impl AttachedRun {
    /// What is known about the run, with what its engine has seen since that time. Requests without an answer for `overdue`
    /// are overdue.
    pub fn evidence(
        &self,
        since: Instant,
        seen: &Observation,
        overdue: Duration,
    ) -> Option<Evidence> {
        let (server, link) = self.server()?;
        server.enter_with(|state, now| {
            let connections = seen.connections.as_ref();
            let requests = connections
                .map(|it| UnreadRequests::find(since.into_std(), &state.sent_requests(link), it));
            let observed =
                LinkObservation { input: seen.input, requests, processes: seen.processes };
            state.machine.take_evidence(now, link, &observed, overdue)
        })
    }

    /// Whether an answer of the run is awaited, or it may not have read a request.
    pub fn is_waiting(&self) -> bool {
        self.server().is_some_and(|(server, link)| server.lock().machine.is_waiting_for(link))
    }

    pub fn probe(&self, probe: Probe) {
        if let Some((server, link)) = self.server() {
            server.enter(|machine, now| machine.probe(now, link, probe));
        }
    }

    /// From now on, requests wait and are not sent to the run.
    pub fn hold_requests(&self) {
        if let Some((server, link)) = self.server() {
            server.enter(|machine, _| machine.hold_requests(link));
        }
    }

    /// Sends the requests that wait.
    pub fn send_held_requests(&self) {
        if let Some((server, link)) = self.server() {
            let has_more = server.enter(|machine, now| machine.send_held_requests(now, link));
            if has_more {
                server.await_room(link, &mut server.lock());
            }
        }
    }

    /// Uses new connections to the run, and probes it again over these.
    pub fn renew_connections(&self) {
        if let Some((server, link)) = self.server() {
            server.enter(|machine, now| machine.renew_connections(now, link));
        }
    }

    fn server(&self) -> Option<(ServerHandle, LinkKey)> {
        let inner = self.link.server.upgrade()?;
        Some((ServerHandle { inner }, self.link.link))
    }
}

impl State {
    /// The requests that were sent to a run that speaks HTTP.
    fn sent_requests(&self, link: LinkKey) -> Vec<SentRequest> {
        let open = self.operations.iter().flatten().map(OperationIo::sent_request);
        let all = open.chain(self.closed.iter().copied());
        all.filter(|it| self.machine.is_operation_of(link, it.operation)).collect()
    }

    /// An operation is aborted, which closes its connection. Whether its request is read, or a connection was accepted for it at
    /// all, still shows whether the server reads.
    pub(super) fn keep_closed(&mut self, io: &OperationIo) {
        self.closed.retain(|request| self.machine.is_given_up(request.operation));
        let sent = SentRequest { is_closed: true, ..io.sent_request() };
        if self.machine.is_given_up(sent.operation) {
            self.closed.push(sent);
        }
    }
}
