//! What a holder is doing.

use std::time::Instant;

use super::Outcome;
use super::daemon::Daemon;
use super::replacing::{Trial, Undone};

#[derive(Debug)]
pub(super) enum Phase {
    /// No daemon serves, until the next is started.
    Resting {
        until: Instant,
        /// When listeners are watched for clients that wait, unless they are watched already.
        watch_from: Option<Instant>,
    },
    /// No daemon serves, until a program is put back.
    Restoring(Undone),
    /// One daemon serves, or is about to.
    Serving(Serving),
    /// The end was asked for or cannot be helped.
    Ending {
        daemon: Option<Daemon>,
        outcome: Outcome,
    },
    Over,
}

#[derive(Debug)]
pub(super) struct Serving {
    pub(super) daemon: Daemon,
    pub(super) ready: Option<Instant>,
    /// When its silence is taken for a hang, if it pulses.
    pub(super) hung: Option<Instant>,
    /// Of a successor that was told to go and has to prove itself.
    pub(super) trial: Option<Trial>,
}

impl Phase {
    /// No daemon serves; clients that wait change nothing.
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

    /// When it has proven itself, if it is on trial and ready.
    pub(super) fn trial_passes_at(&self) -> Option<Instant> {
        self.trial.as_ref()?.ready.as_ref().map(|ready| ready.passes_at)
    }

    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let hung = self.hung.filter(|at| now >= *at).map(|_| "it hung".to_owned());
        self.daemon.overdue(now).or(hung)
    }
}
