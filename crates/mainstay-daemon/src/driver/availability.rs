//! What a driver lets the clients of its server know.

use std::sync::Arc;

use mainstay_core::{Cause, ServerName, Status, View, Wanted};
use mainstay_proxy::{Availability, Reason, RunInfo, Server};

use super::Driver;
use crate::clock;
use crate::snapshot;

/// How many of its last lines clients are told.
const LAST_LINES: usize = 5;

/// So many ways to one run, one after the other, are told apart.
const WAYS: u64 = 16;

/// Whom a driver runs its server for.
#[derive(Debug)]
pub(crate) enum Audience {
    /// All clients of the server.
    Everybody(Server),
    /// One session that has the run for itself.
    Session { server: Server, id: String },
}

impl Audience {
    pub(super) fn server(&self) -> &Server {
        match self {
            Self::Everybody(server) | Self::Session { server, .. } => server,
        }
    }

    fn set_availability(&self, availability: Availability) {
        match self {
            Self::Everybody(server) => server.set_availability(availability),
            Self::Session { server, id } => server.set_session_availability(id, availability),
        }
    }

    pub(super) fn is_one_session(&self) -> bool {
        self.session().is_some()
    }

    /// The server that the run is a run of.
    pub(super) fn server_name(&self) -> Option<ServerName> {
        self.server().name().parse().ok()
    }

    pub(super) fn session(&self) -> Option<&str> {
        match self {
            Self::Everybody(_) => None,
            Self::Session { id, .. } => Some(id),
        }
    }
}

impl Driver {
    /// Tells the clients what to expect.
    pub(super) fn tell_clients(&self) {
        self.audience.set_availability(self.availability());
    }

    /// The server is gone for good.
    pub(super) fn say_goodbye(&self) {
        self.audience.set_availability(Availability::Removed);
    }

    /// What the proxy wants to know of a run that is to be spoken to.
    pub(super) fn arrival(&self, known: Option<mainstay_proxy::Hello>) -> RunInfo {
        let after =
            self.times.ended.as_ref().map(|(_, text, _)| {
                Arc::new(Reason { text: text.clone(), stderr: self.last_lines() })
            });
        RunInfo {
            generation: self.unit.last_run().generation(),
            after,
            known,
            epoch: epoch(self.context.daemon, self.ways),
            session: self.audience.session().map(str::to_owned),
        }
    }

    fn availability(&self) -> Availability {
        let view = self.unit.view(clock::now());
        let up = matches!(view.status, Status::Running | Status::Unhealthy);
        if let Some(session) = self.session.as_ref().filter(|_| up && self.exited.is_none()) {
            return Availability::Up(Arc::clone(&session.run.run));
        }
        let why = Arc::new(self.reason(&view));
        let comes_back = self.unit.wanted() == Wanted::On && !self.retiring;
        match view.status {
            Status::Starting
            | Status::Restarting
            | Status::Running
            | Status::Unhealthy
            | Status::Waiting => {
                let due = self.reach.away.as_ref().map(|away| away.next).or(view.next_restart);
                Availability::Coming { due, why }
            }
            Status::Stopping if comes_back => Availability::Coming { due: None, why },
            Status::Stopping | Status::Stopped | Status::Removing | Status::Error => {
                Availability::Down { why }
            }
        }
    }

    /// Why the server is not up. A run that has just exited says how, before anything is decided.
    fn reason(&self, view: &View) -> Reason {
        let text = match (&self.exited, &self.reach.away) {
            (Some((_, exit)), _) => Cause::Exited(*exit).to_string(),
            (None, Some(away)) => away.why.clone(),
            (None, None) => view.reason.clone(),
        };
        Reason { text, stderr: self.last_lines() }
    }

    fn last_lines(&self) -> Vec<String> {
        let words = self.last_stderr.as_deref().unwrap_or_default();
        snapshot::tail_lines(words, LAST_LINES)
    }
}

/// A number for a way to a run that no other way had, of this daemon or an earlier one.
fn epoch(daemon: u64, ways: u64) -> u32 {
    let number = daemon.wrapping_mul(WAYS) | (ways % WAYS);
    u32::try_from(number & u64::from(u32::MAX)).expect("it was cut to size")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_of_all_daemons_differ() {
        assert_eq!([epoch(1, 0), epoch(1, 15), epoch(1, 16), epoch(2, 0)], [16, 31, 16, 32]);
        assert_eq!(epoch(u64::MAX, 3), u32::MAX - 12);
    }
}
