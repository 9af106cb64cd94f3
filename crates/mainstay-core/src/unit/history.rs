//! What of a unit outlives the daemon that drives it.
//!
//! What runs is what the engine lists, but no engine knows how often a server has failed. Without that, a
//! server that crashes over and over would have its whole budget again after every death of a daemon, and
//! one that was given up would be started again.

use std::time::{Duration, Instant};

use super::budget::Budget;
use super::phase::{Failure, Phase, Run, StartReason, Wait, after};
use super::{Ended, Found, Unit};
use crate::{Cause, RestartPolicy, RunId, Wanted};

/// What is known of the earlier life of a unit. That of a server that never ran is the default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnitHistory {
    /// The newest run there ever was.
    pub last: RunId,
    /// The charged failures since the last reset.
    pub failures: u32,
    /// All restarts that were decided on without being asked for.
    pub restarts_total: u64,
    /// When the last of them was decided on.
    pub last_restart: Option<Instant>,
    /// What the failures have led to.
    pub restart_state: RestartState,
    /// How the last run ended.
    pub last_end: Option<Ended>,
}

impl UnitHistory {
    /// The newest run, if its end is not known.
    pub fn unfinished_run(&self) -> Option<RunId> {
        let ended = self.last_end.as_ref().map_or(RunId::default(), |end| end.run);
        (self.last > ended).then_some(self.last)
    }

    /// The past after a restart of the machine: the unfinished run has ended with it.
    #[must_use]
    pub fn after_reboot(self, now: Instant) -> Self {
        let Some(run) = self.unfinished_run() else { return self };
        let (cause, ran_for) = (Cause::MachineRestarted, Duration::ZERO);
        Self { last_end: Some(Ended { run, cause, at: now, ran_for, ready_for: None }), ..self }
    }
}

/// What failures have led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartState {
    /// Nothing that would keep a run from being started.
    #[default]
    Free,
    /// A charged restart is due at a certain time.
    Due {
        /// Its number.
        attempt: u32,
        /// When.
        at: Instant,
    },
    /// No restart is left.
    GivenUp {
        /// Since when.
        since: Instant,
    },
}

impl Unit {
    /// A unit as the daemon finds it at its start, from intent and observation at once: on half
    /// the facts it would stop a healthy server or start a second. Its first deadline is now.
    ///
    /// The past matters only where nothing is observed: a run that was found is there, whatever was due.
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

    /// What the next daemon has to know. It changes only when something happens, not with time.
    pub fn history(&self) -> UnitHistory {
        UnitHistory {
            last: self.last,
            failures: self.budget.failures(),
            restarts_total: self.restarts_total,
            last_restart: self.last_restart,
            restart_state: restart_state(&self.phase),
            last_end: self.last_end.clone(),
        }
    }
}

fn restart_state(phase: &Phase) -> RestartState {
    match phase {
        Phase::Waiting(Wait { until, again: StartReason::Charged { attempt } }) => {
            RestartState::Due { attempt: *attempt, at: *until }
        }
        Phase::Failed(Failure::GivenUp { since }) => RestartState::GivenUp { since: *since },
        // Whoever comes next may find that the reason is gone.
        Phase::Failed(Failure::CannotStart { .. })
        | Phase::Waiting(_)
        | Phase::Idle
        | Phase::Up(_)
        | Phase::Stopping { .. }
        | Phase::Removed
        | Phase::Finished => RestartState::Free,
    }
}

/// The phase of a unit without a run. A clock that was set meanwhile makes no delay longer than it
/// can be.
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
