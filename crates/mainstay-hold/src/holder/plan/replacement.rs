//! The replacement of one daemon by another, without a gap.
//!
//! The messages, in order: `Replace` (the old daemon asks), `Prepared` (the new one), `HandOver` (to the old one),
//! `HandedOver` (the old one), `Serve` (to the new one), `Ready` (the new one). Until `Serve` the old daemon can
//! continue as if nothing had happened. After it, only a roll-back to the previous program is possible. With
//! another program, that way stays open until the new daemon has been ready for [`TRIAL`](crate::limits::TRIAL), whether
//! anyone still waits for the update or not.

use std::path::PathBuf;
use std::time::Instant;

use super::daemon::{Daemon, HAND_OVER, LEAVE, PREPARE, SERVE};
use super::{Action, End, Id, Phase, Plan, Serving, Start};

/// The program of a successor, until it has proven itself.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) exe: PathBuf,
    /// What is renamed over `exe` in a roll-back.
    pub(super) fallback: Option<PathBuf>,
    /// Set when its daemon is ready.
    pub(super) ready: Option<TrialReady>,
}

/// When and how a trial ends if nothing happens.
#[derive(Debug)]
pub(super) struct TrialReady {
    pub(super) passes_at: Instant,
    /// Whether the program can also run as the holder.
    pub(super) can_hold: bool,
}

/// A program, and the one that it replaces in a roll-back.
#[derive(Debug, Clone)]
pub(super) struct Rollback {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
}

/// A daemon that prepares or waits.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) daemon: Daemon,
    pub(super) trial: Trial,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    Preparing,
    /// It is prepared, and the old one was asked to hand over.
    Waiting,
    /// It was killed and has not exited yet.
    Withdrawn,
}

impl Plan {
    pub(super) fn replace(
        &mut self,
        now: Instant,
        id: Id,
        exe: PathBuf,
        fallback: Option<PathBuf>,
    ) {
        if self.serves(id) {
            // A daemon that can be asked for a successor has proven itself.
            self.pass_trial();
        }
        let refusal = match &self.phase {
            Phase::Ending { .. } | Phase::Over => Some("the daemon is ending"),
            Phase::Serving(Serving { daemon, trial: None, .. })
                if daemon.id == id && self.successor.is_none() =>
            {
                None
            }
            Phase::Serving(_) | Phase::Resting { .. } | Phase::Restoring(_) => {
                Some("another reload or update is in progress")
            }
        };
        if let Some(refusal) = refusal {
            return self.actions.push(Action::NotReplaced(id, refusal.into()));
        }
        let mut daemon = Daemon::new(self.next_id());
        daemon.limit(PREPARE, now);
        self.actions.push(Action::Start(Start {
            id: daemon.id,
            exe: exe.clone(),
            standby: true,
            replacement_failed: None,
            last_output: None,
        }));
        let trial = Trial { exe, fallback, ready: None };
        self.successor = Some(Successor { daemon, trial, stage: Stage::Preparing });
    }

    pub(super) fn prepared(&mut self, now: Instant, id: Id) {
        let (Some(next), Phase::Serving(serving)) = (&mut self.successor, &mut self.phase) else {
            return;
        };
        if next.daemon.id == id && matches!(next.stage, Stage::Preparing) {
            next.stage = Stage::Waiting;
            next.daemon.unlimit();
            serving.daemon.limit(HAND_OVER, now);
            self.actions.push(Action::HandOver(serving.daemon.id));
        }
    }

    /// A daemon that hands over serves no longer, asked or not: `NotReplaced` may have crossed its message.
    pub(super) fn handed_over(&mut self, now: Instant) {
        let Phase::Serving(serving) = &mut self.phase else { return };
        if serving.trial.is_some() {
            let kill = serving.daemon.kill_because("it handed over before it was ready");
            return self.actions.extend(kill);
        }
        let ready = serving.ready;
        self.leave(now);
        match self.successor.take() {
            Some(Successor { daemon, trial, stage: Stage::Waiting }) => {
                return self.serve(now, daemon, trial);
            }
            Some(next) => self.discard_successor(next, "the daemon handed over too early"),
            None => self.replacement_failed = Some("the daemon handed over too late".into()),
        }
        self.start_again(now, ready, "it handed over".into());
    }

    /// The successor has exited before it served. The old daemon continues, and the command that asked for the successor
    /// restores the program; if the old daemon was killed, the holder does.
    pub(super) fn successor_exited(&mut self, end: &End) {
        let (Some(next), Phase::Serving(serving)) = (self.successor.take(), &mut self.phase) else {
            return;
        };
        let why = next.daemon.why(end);
        if serving.daemon.is_killed() {
            return self.roll_back(next.trial, why);
        }
        serving.daemon.unlimit();
        self.actions.push(Action::NotReplaced(serving.daemon.id, why));
    }

    /// Keeps the program of the daemon that serves, if that is ready.
    pub(super) fn pass_trial(&mut self) {
        let Phase::Serving(serving) = &mut self.phase else { return };
        if let Some(Trial { exe, ready: Some(ready), .. }) =
            serving.trial.take_if(|trial| trial.ready.is_some())
        {
            self.reexec = ready.can_hold.then(|| exe.clone());
            self.exe = exe;
        }
    }

    /// The successor has failed and no daemon serves: back to what was before it.
    pub(super) fn roll_back(&mut self, trial: Trial, why: String) {
        self.replacement_failed = Some(why);
        self.rollback = trial.fallback.map(|from| Rollback { from, to: trial.exe });
    }

    pub(super) fn restored(&mut self, now: Instant, done: bool) {
        let Phase::Restoring(Rollback { from, to }) = &mut self.phase else { return };
        self.exe = std::mem::take(if done { to } else { from });
        self.phase = Phase::rest_until(now);
    }

    /// No daemon serves any more: the successor does.
    pub(super) fn serve(&mut self, now: Instant, mut daemon: Daemon, trial: Trial) {
        daemon.limit(SERVE, now);
        self.actions.push(Action::Serve(daemon.id));
        self.phase =
            Phase::Serving(Serving { daemon, ready: None, hung: None, trial: Some(trial) });
    }

    /// The daemon serves no longer, but may finish calls.
    fn leave(&mut self, now: Instant) {
        let resting = Phase::rest_until(now);
        if let Phase::Serving(serving) = std::mem::replace(&mut self.phase, resting) {
            let mut daemon = serving.daemon;
            daemon.limit(LEAVE, now);
            self.leaving.push(daemon);
        }
    }

    /// Kills a successor that fails before it serves. The failure is reported when it has exited, with its last lines.
    pub(super) fn withdraw(&mut self, id: Id, reason: &str) {
        let Some(next) = self.successor.as_mut().filter(|next| next.daemon.id == id) else {
            return;
        };
        next.stage = Stage::Withdrawn;
        self.actions.extend(next.daemon.kill_because(reason));
        if let Phase::Serving(serving) = &mut self.phase {
            serving.daemon.unlimit();
        }
    }

    /// Kills a successor that no longer has a daemon to replace.
    pub(super) fn discard_successor(&mut self, mut next: Successor, reason: &str) {
        self.actions.extend(next.daemon.kill());
        let why = next.daemon.why(&End { how: reason.into(), last_output: String::new() });
        self.leaving.push(next.daemon);
        self.roll_back(next.trial, why);
    }
}
