//! A run that may not answer.

use std::time::Duration;

use mainstay_core::watchdog::{Evidence, Probe};
use mainstay_session::{LinkKey, Observed};

use super::{AttachedRun, ServerHandle};

impl AttachedRun {
    /// What is known about the run, if it is a stdio server. Requests without an answer for `overdue` are overdue.
    pub fn evidence(&self, observed: Observed, overdue: Duration) -> Option<Evidence> {
        let (server, link) = self.server()?;
        server.enter(|machine, now| machine.evidence(now, link, observed, overdue))
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

    fn server(&self) -> Option<(ServerHandle, LinkKey)> {
        let inner = self.link.server.upgrade()?;
        Some((ServerHandle { inner }, self.link.link))
    }
}
