//! A run that may not answer.

use std::time::Duration;

use mainstay_core::watchdog::{Evidence, Observation, Probe};
use mainstay_session::{LinkKey, Observed, SentRequest, UnreadRequests};
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
                .map(|it| UnreadRequests::find(since.into_std(), &state.sent_requests(), it));
            let observed = Observed { input: seen.input, requests, processes: seen.processes };
            state.machine.evidence(now, link, &observed, overdue)
        })
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
    /// The requests that were sent to servers that speak HTTP.
    fn sent_requests(&self) -> Vec<SentRequest> {
        self.operations.iter().flatten().filter_map(OperationIo::sent_request).collect()
    }
}
