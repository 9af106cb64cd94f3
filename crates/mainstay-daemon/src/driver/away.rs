//! Servers that run elsewhere and cannot be reached.
//!
//! What lies between us and such a server stands in for its engine: while the server cannot be
//! reached, its unit believes that the engine is away, so nothing is charged, no deadline runs and
//! requests are held. It is tried again, more and more rarely, until it answers or refuses. The engine
//! itself is here all the same, so what the user asks for ends the outage first and is then done.

use std::time::Duration;

use mainstay_core::{Event, Jitter, RunId, Wanted, Workload, backoff};

use super::Driver;
use crate::clock;
use crate::engines::Home;
use crate::random;
use crate::run_session::{Obstacle, SessionError};
use crate::snapshot::Away;

/// The delay before the second attempt.
const FIRST: Duration = Duration::from_secs(1);

/// Attempts follow each other no more rarely than this, but for the jitter.
const RAREST: Duration = Duration::from_secs(30);

/// A server that was reached for so long is tried at once when it is lost.
const STEADY: Duration = Duration::from_secs(30);

/// How well a server can be reached.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// How often it was tried since it was last reached for a while.
    attempts: u32,
    /// What is in the way of one that runs elsewhere.
    pub(super) away: Option<Away>,
    /// Whether the engine of a container is being asked for its port.
    pub(super) asks_for_port: bool,
}

impl Reach {
    /// It is being started, which is the first attempt.
    pub(super) fn begun() -> Self {
        Self { attempts: 1, ..Self::default() }
    }

    /// Something is in the way. Says when to try again.
    fn fails(&mut self, why: String) -> Duration {
        // Many servers behind one failure must not all come at once.
        let wait = Jitter::new(random::seed()).stretch(delay(self.attempts));
        self.attempts = self.attempts.saturating_add(1);
        self.away = Some(Away { why, next: clock::now() + wait });
        wait
    }
}

impl Driver {
    /// Somebody could not reach the server, although it counts as up. A local one that is ending
    /// tells so itself, but a container may have another port than before.
    pub(super) fn lost_touch(&mut self, generation: u64) -> Option<Event> {
        let run = self.unit.run().filter(|run| run.generation() == generation)?;
        let ending = self.ending.is_some_and(|(ending, _)| ending == run);
        let since = self.session.as_ref()?.since;
        if self.home != Home::Remote && !ending {
            self.look_for_port(run);
        }
        if self.home != Home::Remote || ending {
            return None;
        }
        if clock::now().saturating_duration_since(since) >= STEADY {
            self.reach.attempts = 0;
        }
        let why = format!("{} cannot be reached", self.address());
        Some(self.try_again(run, why))
    }

    /// There is no session with a server that runs elsewhere. None if that is no matter of reaching
    /// it.
    pub(super) fn not_reached(&mut self, run: RunId, error: &SessionError) -> Option<Event> {
        if self.home != Home::Remote {
            return None;
        }
        let address = self.address();
        match error.obstacle() {
            Obstacle::Away => {
                let why = format!("{address} cannot be reached: {error}");
                Some(self.try_again(run, why))
            }
            Obstacle::Refusal => {
                // Nothing of it is of use any more, and the unit takes it for gone.
                self.end(run, None);
                let why = format!("{address} refuses us: {error}");
                Some(Event::StartFailed { run, why })
            }
            Obstacle::None => None,
        }
    }

    /// Whether an outage is over with this, at least as far as the unit is concerned. That of an
    /// engine is, when the server is to run elsewhere from now on.
    pub(super) fn ends_outage(&mut self, event: &Event) -> bool {
        let moves = matches!(event, Event::Replaced(_))
            && Home::of(&self.stored.spec.workload) != self.home
            && self.unit.is_engine_away();
        moves || self.reach.away.take_if(|_| is_more_than_waiting(event)).is_some()
    }

    fn try_again(&mut self, run: RunId, why: String) -> Event {
        if self.reach.away.is_none() {
            tracing::warn!(server = %self.name(), %run, why, "server cannot be reached");
        }
        self.leave();
        let wait = self.reach.fails(why.clone());
        self.open_session(run, None, wait);
        Event::EngineAway { why }
    }

    /// Where the server is, fit for everybody to read.
    fn address(&self) -> String {
        match &self.stored.spec.workload {
            Workload::Remote(remote) => remote.url.without_query().to_owned(),
            // It was described anew, and its run is about to end.
            Workload::Process(_) | Workload::Container(_) => "its URL".to_owned(),
        }
    }
}

/// Whether this is an answer of the server, news of our own engine, or a wish.
fn is_more_than_waiting(event: &Event) -> bool {
    match event {
        Event::Ready { .. }
        | Event::StartFailed { .. }
        | Event::Hung { .. }
        | Event::Exited { .. }
        | Event::Gone { .. }
        | Event::Restart
        | Event::Replaced(_)
        | Event::Want(Wanted::Off | Wanted::Gone) => true,
        Event::Want(Wanted::On)
        | Event::Started { .. }
        | Event::Amended { .. }
        | Event::Adopted { .. }
        | Event::Paused { .. }
        | Event::Unpaused { .. }
        | Event::Unhealthy { .. }
        | Event::Healthy { .. }
        | Event::EngineAway { .. }
        | Event::EngineBack
        | Event::HostResumed
        | Event::Demand
        | Event::Tick => false,
    }
}

/// How long to wait before an attempt: not at all before the first, then 1, 2, 4, ... 30 s.
fn delay(attempt: u32) -> Duration {
    attempt.checked_sub(1).map_or(Duration::ZERO, |doublings| backoff(FIRST, doublings, RAREST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_but_never_cease() {
        let nominal = |attempt| delay(attempt).as_secs();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7, u32::MAX].map(nominal),
            [0, 1, 2, 4, 8, 16, 30, 30, 30]
        );
    }
}
