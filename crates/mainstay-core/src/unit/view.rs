//! The state of a unit for users.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::phase::{Moment, Phase};
use super::{Unit, reason};
use crate::{Cause, RunId, Status};

/// The state of a unit for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub status: Status,
    /// The reason of the status, as one short line.
    pub reason: String,
    pub run: Option<RunId>,
    /// The charged restarts since the last reset, one that is due included.
    pub restarts: u32,
    /// All restarts that the user did not ask for, charged or not: those that were made, one that is due, and those
    /// that a request forestalled.
    pub restarts_total: u64,
    /// When the last of them was decided on.
    pub last_restart: Option<Instant>,
    /// How many charged restarts are allowed.
    pub restart_max: u32,
    pub started: Option<Instant>,
    pub ready: Option<Instant>,
    /// When the next run is due. None while the engine is away.
    pub next_restart: Option<Instant>,
    pub last_end: Option<Ended>,
    /// Whether the present run has been up long enough for earlier failures to be forgotten.
    pub stable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended<T = Instant> {
    pub run: RunId,
    pub cause: Cause,
    /// When that became known: its exit, if that was reported separately, or its end.
    pub at: T,
    /// How long it had run.
    pub ran_for: Duration,
    /// How long it had been ready, if it was.
    pub ready_for: Option<Duration>,
}

impl Unit {
    /// What a user should see now.
    pub fn view(&self, now: Instant) -> View {
        let run = self.phase.run();
        View {
            status: reason::status(self),
            reason: reason::reason(self, now),
            run: self.run(),
            restarts: self.restarts(),
            restarts_total: self.restarts_total,
            last_restart: self.last_restart,
            restart_max: self.policy.max,
            started: run.and_then(|run| run.started).map(at),
            ready: run.and_then(|run| run.ready).map(at),
            next_restart: match &self.phase {
                Phase::Waiting(rest) if self.away.is_none() => Some(rest.until),
                Phase::Waiting(_)
                | Phase::Idle
                | Phase::Up(_)
                | Phase::Stopping { .. }
                | Phase::Failed(_)
                | Phase::Removed
                | Phase::Finished => None,
            },
            last_end: self.last_end.clone(),
            stable: run.is_some_and(|run| run.stable),
        }
    }

    /// The failure that made the unit give up had no restart.
    pub(super) fn restarts(&self) -> u32 {
        self.budget.failures().min(self.policy.max)
    }
}

fn at(moment: Moment) -> Instant {
    moment.at
}
