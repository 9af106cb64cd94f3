//! The phases of a holder.

use std::time::Instant;

use super::Outcome;
use super::daemon::Daemon;
use super::replacement::{Rollback, Trial};

#[derive(Debug, Default)]
pub(super) enum Phase {
    /// No daemon serves. The next one is started at `until`.
    Resting {
        until: Instant,
        /// When to start watching the listeners for clients that wait; `None` if they are watched.
        watch_from: Option<Instant>,
    },
    /// No daemon serves until a program is restored.
    Restoring(Rollback),
    /// One daemon serves, or is about to.
    Serving(Serving),
    /// The holder ends.
    Ending { daemon: Option<Daemon>, outcome: Outcome },
    #[default]
    Over,
}

#[derive(Debug)]
pub(super) struct Serving {
    pub(super) daemon: Daemon,
    pub(super) ready: Option<Instant>,
    /// When it counts as hung, if it pulses.
    pub(super) hung: Option<Instant>,
    /// Set if it has replaced another daemon and may be rolled back.
    pub(super) trial: Option<Trial>,
}

impl Phase {
    /// Rests whether clients wait or not.
    pub(super) fn rest_until(until: Instant) -> Self {
        Self::Resting { until, watch_from: Some(until) }
    }
}

impl Serving {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let hung = self.hung.filter(|_| !self.daemon.is_killed());
        let trial = self.trial_passes_at().filter(|_| !self.daemon.is_killed());
        self.daemon.deadline().into_iter().chain(hung).chain(trial).min()
    }

    pub(super) fn trial_passes_at(&self) -> Option<Instant> {
        self.trial.as_ref()?.ready.as_ref().map(|ready| ready.passes_at)
    }

    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let hung = self.hung.filter(|at| now >= *at).map(|_| "it hung".to_owned());
        self.daemon.overdue(now).or(hung)
    }
}
