//! What sessions learn about the run that serves them.

use std::sync::Arc;

use mainstay_core::ServerName;
use mainstay_core::supervisor::{self, Connection};
use mainstay_proxy::{Availability, Hello, Reason, RunInfo, Server};

use super::Driver;
use crate::clock;
use crate::snapshot;

/// How many of the last lines of a run clients see.
const LAST_LINES: usize = 5;

/// The numbers of so many connections with one run, one after the other, differ.
const CONNECTIONS: u64 = 16;

/// The sessions that a run serves.
#[derive(Debug)]
pub(crate) enum Scope {
    AllSessions(Server),
    OneSession { server: Server, id: String },
}

impl Scope {
    pub(super) fn server(&self) -> &Server {
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
    pub(super) fn availability(&self) -> Availability {
        let reason = |text| Arc::new(Reason { text, stderr: self.last_lines() });
        match (self.supervisor.availability(clock::now()), &self.session) {
            (supervisor::Availability::Up, Some((_, session))) => {
                Availability::Up(Arc::clone(&session.run.run))
            }
            (supervisor::Availability::Up, None) => {
                Availability::Coming { due: None, why: Arc::default() }
            }
            (supervisor::Availability::Coming { due, why }, _) => {
                Availability::Coming { due, why: reason(why) }
            }
            (supervisor::Availability::Down { why }, _) => Availability::Down { why: reason(why) },
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

/// A number for a connection with a run that no other connection had, of this daemon or an earlier one.
fn epoch(daemon: u64, connection: u64) -> u32 {
    let number = daemon.wrapping_mul(CONNECTIONS) | (connection % CONNECTIONS);
    u32::try_from(number & u64::from(u32::MAX)).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_all_daemons_differ() {
        assert_eq!([epoch(1, 0), epoch(1, 15), epoch(1, 16), epoch(2, 0)], [16, 31, 16, 32]);
        assert_eq!(epoch(u64::MAX, 3), u32::MAX - 12);
    }
}
