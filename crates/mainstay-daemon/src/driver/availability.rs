//! What sessions learn about the run that serves them.

use std::sync::Arc;

use mainstay_core::ServerName;
use mainstay_core::supervisor::Connection;
use mainstay_proxy::{Availability, Hello, Reason, RunInfo, ServerHandle, epoch};

use super::Driver;
use crate::clock;
use crate::snapshot;

/// How many of the last lines of a run clients see.
const LAST_LINES: usize = 5;

/// The sessions that a run serves.
#[derive(Debug)]
pub(crate) enum Scope {
    AllSessions(ServerHandle),
    OneSession { server: ServerHandle, id: String },
}

impl Scope {
    pub(super) fn server(&self) -> &ServerHandle {
        match self {
            Self::AllSessions(server) | Self::OneSession { server, .. } => server,
        }
    }

    pub(super) fn set_availability(&self, availability: Availability) {
        match self {
            Self::AllSessions(server) => server.set_availability(availability),
            Self::OneSession { server, id } => server.set_session_availability(id, availability),
        }
    }

    /// The name of the server that clients use. A run of a single session has a name of its own.
    pub(super) fn server_name(&self) -> Option<ServerName> {
        self.server().name().parse().ok()
    }

    pub(super) fn session(&self) -> Option<&str> {
        match self {
            Self::AllSessions(_) => None,
            Self::OneSession { id, .. } => Some(id),
        }
    }
}

impl Driver {
    /// Reports to sessions whether their run can be used.
    pub(super) fn report_availability(&self) {
        let run = self.session.as_ref().map(|(_, session)| &session.run.run);
        let availability =
            Availability::of(&self.supervisor, clock::now(), run, || self.last_lines());
        if let Some(availability) = availability {
            self.scope.set_availability(availability);
        }
    }

    pub(super) fn run_info(&self, connection: Connection, known: Option<Hello>) -> RunInfo {
        let ended = self.times.ended.as_ref();
        let after = ended
            .map(|(_, text, _)| Arc::new(Reason { text: text.clone(), stderr: self.last_lines() }));
        RunInfo {
            generation: connection.run.generation(),
            after,
            known,
            epoch: epoch(self.context.daemon, connection.attempt),
            session: self.scope.session().map(str::to_owned),
        }
    }

    fn last_lines(&self) -> Vec<String> {
        let stderr = self.last_stderr.as_deref().unwrap_or_default();
        snapshot::tail_lines(stderr, LAST_LINES)
    }
}
