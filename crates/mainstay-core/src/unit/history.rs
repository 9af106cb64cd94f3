//! The state of a unit that outlives the daemon.
//!
//! Engines list what runs, but do not know how often a server has failed. Without its history, a
//! server that crashes repeatedly would have its whole budget again after every death of a daemon, and
//! one that was given up would be started again.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::phase::{Failure, Phase, Run, StartReason, Wait, after};
use super::{Ended, Found, Unit};
use crate::{Cause, RestartPolicy, RunId, Wanted};

/// The history of a unit. The default is that of a server that never ran. It is stored in wall-clock time, which
/// continues across reboots ([`UnitHistory::map_times`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitHistory<T = Instant> {
    pub last: RunId,
    /// The charged failures since the last reset.
    pub failures: u32,
    /// All restarts that the user did not ask for.
    pub restarts_total: u64,
    /// When the last of them was decided on.
    pub last_restart: Option<T>,
    /// The consequence of the failures.
    #[serde(rename = "standing")]
    pub restart_state: RestartState<T>,
    pub last_end: Option<Ended<T>>,
    /// Whether runs of the server were seen to ignore pings. Its supervisor sets it.
    #[serde(default)]
    pub ignores_ping: bool,
}

impl<T> Default for UnitHistory<T> {
    fn default() -> Self {
        Self {
            last: RunId::default(),
            failures: 0,
            restarts_total: 0,
            last_restart: None,
            restart_state: RestartState::Free,
            last_end: None,
            ignores_ping: false,
        }
    }
}

impl<T> UnitHistory<T> {
    /// The same history on another clock.
    pub fn map_times<U>(self, convert: impl Fn(T) -> U) -> UnitHistory<U> {
        UnitHistory {
            last: self.last,
            failures: self.failures,
            restarts_total: self.restarts_total,
            last_restart: self.last_restart.map(&convert),
            restart_state: match self.restart_state {
                RestartState::Free => RestartState::Free,
                RestartState::Due { attempt, at } => RestartState::Due { attempt, at: convert(at) },
                RestartState::GivenUp { since } => RestartState::GivenUp { since: convert(since) },
            },
            last_end: self.last_end.map(|Ended { run, cause, at, ran_for, ready_for }| Ended {
                run,
                cause,
                at: convert(at),
                ran_for,
                ready_for,
            }),
            ignores_ping: self.ignores_ping,
        }
    }
}

impl UnitHistory {
    /// The newest run, if its end is not known.
    pub fn unfinished_run(&self) -> Option<RunId> {
        let ended = self.last_end.as_ref().map_or(RunId::default(), |end| end.run);
        (self.last > ended).then_some(self.last)
    }

    /// The history after a restart of the machine, which ended the unfinished run.
    #[must_use]
    pub fn after_reboot(self, now: Instant) -> Self {
        let Some(run) = self.unfinished_run() else { return self };
        let (cause, ran_for) = (Cause::MachineRestarted, Duration::ZERO);
        Self { last_end: Some(Ended { run, cause, at: now, ran_for, ready_for: None }), ..self }
    }
}

/// The consequence of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartState<T = Instant> {
    /// A run may be started.
    #[default]
    Free,
    /// A charged restart is due at a certain time.
    Due {
        attempt: u32,
        at: T,
    },
    GivenUp {
        since: T,
    },
}

impl Unit {
    /// A unit at the start of a daemon, from intent and observation at once: with only one of them
    /// it would stop a healthy server or start a second one. Its first deadline is now.
    ///
    /// An observed run takes precedence over the history.
    pub fn resume(
        now: Instant,
        policy: RestartPolicy,
        seed: u64,
        wanted: Wanted,
        found: Option<Found>,
        past: UnitHistory,
    ) -> Self {
        let run = found.map(|found| Run::found(now, found.run, found.age, found.ready_for));
        let last = run.as_ref().map_or(past.last, |run| past.last.max(run.id));
        let phase = match run {
            Some(run) => Phase::Up(run),
            None if wanted == Wanted::On => waiting(now, &policy, past.restart_state),
            None => Phase::Idle,
        };
        Self {
            wanted,
            phase,
            last,
            last_end: past.last_end,
            budget: Budget::restored(past.failures),
            restarts_total: past.restarts_total,
            last_restart: past.last_restart,
            undecided_since: Some(now),
            ..Self::new(policy, seed)
        }
    }

    /// The history for the next daemon. It changes only with events, not with time.
    pub fn history(&self) -> UnitHistory {
        UnitHistory {
            last: self.last,
            failures: self.budget.failures(),
            restarts_total: self.restarts_total,
            last_restart: self.last_restart,
            restart_state: restart_state(&self.phase),
            last_end: self.last_end.clone(),
            ignores_ping: false,
        }
    }
}

fn restart_state(phase: &Phase) -> RestartState {
    match phase {
        Phase::Waiting(Wait { until, again: StartReason::Charged { attempt } }) => {
            RestartState::Due { attempt: *attempt, at: *until }
        }
        Phase::Failed(Failure::GivenUp { since }) => RestartState::GivenUp { since: *since },
        // The reason may be gone by the next start.
        Phase::Failed(Failure::CannotStart { .. })
        | Phase::Waiting(_)
        | Phase::Idle
        | Phase::Up(_)
        | Phase::Stopping { .. }
        | Phase::Removed
        | Phase::Finished => RestartState::Free,
    }
}

/// The phase of a unit without a run. Limits the delay, because the clock may have been set.
fn waiting(now: Instant, policy: &RestartPolicy, restart_state: RestartState) -> Phase {
    match restart_state {
        RestartState::Free => Phase::Idle,
        RestartState::Due { attempt, at } => {
            let nominal = policy.delay(attempt);
            let latest = after(now, nominal.saturating_add(nominal / 10));
            Phase::Waiting(Wait { until: at.min(latest), again: StartReason::Charged { attempt } })
        }
        RestartState::GivenUp { since } => {
            Phase::Failed(Failure::GivenUp { since: since.min(now) })
        }
    }
}
