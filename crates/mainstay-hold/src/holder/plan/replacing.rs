//! One daemon after another, without a gap.
//!
//! Asked, prepared, give way, yielded, go, ready: until `go` the old daemon can go on as if nothing
//! had been; from `go` on there is only the way back to the program that was there before. With another program, that way
//! stays open until the new daemon has been ready for 30 s, whether anybody still waits for the update or not.

use std::path::PathBuf;
use std::time::Instant;

use super::daemon::{Daemon, HAND_OVER, LEAVE, PREPARE, SERVE};
use super::{Action, End, Id, Phase, Plan, Serving, Start};
use crate::holder::HolderEvent;

/// What a successor is tried for.
#[derive(Debug)]
pub(super) struct Trial {
    /// The program that becomes the daemon's.
    pub(super) exe: PathBuf,
    /// What is renamed over it if it is no good.
    pub(super) fallback: Option<PathBuf>,
    /// Set when its daemon is ready.
    pub(super) ready: Option<TrialReady>,
}

/// How a trial ends if nothing happens.
#[derive(Debug)]
pub(super) struct TrialReady {
    pub(super) passes_at: Instant,
    /// Whether the program can also run as the holder.
    pub(super) can_hold: bool,
}

/// A program, and the one in whose place it belongs.
#[derive(Debug, Clone)]
pub(super) struct Undone {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
}

/// A daemon that was not told to go yet.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) daemon: Daemon,
    pub(super) trial: Trial,
    pub(super) stage: Stage,
}

/// How far a successor is.
#[derive(Debug)]
pub(super) enum Stage {
    Preparing,
    /// It is prepared; the old one was told to give way.
    Waiting,
    /// It was killed and has not ended yet.
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
            // A daemon that can be asked for this has proven itself.
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
                Some("another reload or update is under way")
            }
        };
        if let Some(refusal) = refusal {
            return self.actions.push(Action::Tell(id, HolderEvent::NotReplaced(refusal.into())));
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
            self.actions.push(Action::Tell(serving.daemon.id, HolderEvent::GiveWay));
        }
    }

    /// Whoever yields is out, asked or not: the order to go on may have crossed its word.
    pub(super) fn yielded(&mut self, now: Instant) {
        let Phase::Serving(serving) = &mut self.phase else { return };
        if serving.trial.is_some() {
            let kill = serving.daemon.kill_because("it gave way before it was ready");
            return self.actions.extend(kill);
        }
        let ready = serving.ready;
        self.leave(now);
        match self.successor.take() {
            Some(Successor { daemon, trial, stage: Stage::Waiting }) => {
                return self.go(now, daemon, trial);
            }
            Some(next) => self.drop_successor(next, "the daemon gave way too early"),
            None => self.replacement_failed = Some("the daemon gave way too late".into()),
        }
        self.start_again(now, ready, "it gave way".into());
    }

    /// The successor has ended before it was told to go. The old daemon goes on, and whoever asked for
    /// the successor puts its program back, unless there is nobody left to do so.
    pub(super) fn bury_successor(&mut self, end: &End) {
        let (Some(next), Phase::Serving(serving)) = (self.successor.take(), &mut self.phase) else {
            return;
        };
        let why = next.daemon.why(end);
        if serving.daemon.is_killed() {
            return self.undo(next.trial, why);
        }
        serving.daemon.unlimit();
        self.actions.push(Action::Tell(serving.daemon.id, HolderEvent::NotReplaced(why)));
    }

    /// The program of the daemon that serves stays, if that is ready.
    pub(super) fn pass_trial(&mut self) {
        let Phase::Serving(serving) = &mut self.phase else { return };
        if let Some(Trial { exe, ready: Some(ready), .. }) =
            serving.trial.take_if(|trial| trial.ready.is_some())
        {
            self.reexec = ready.can_hold.then(|| exe.clone());
            self.exe = exe;
        }
    }

    /// A successor was no good, and nobody serves any more: back to what was before it.
    pub(super) fn undo(&mut self, trial: Trial, why: String) {
        self.replacement_failed = Some(why);
        self.undone = trial.fallback.map(|from| Undone { from, to: trial.exe });
    }

    pub(super) fn restored(&mut self, now: Instant, done: bool) {
        let Phase::Restoring(Undone { from, to }) = &mut self.phase else { return };
        self.exe = std::mem::take(if done { to } else { from });
        self.phase = Phase::rest_until(now);
    }

    /// Nobody serves any more: the successor may.
    pub(super) fn go(&mut self, now: Instant, mut daemon: Daemon, trial: Trial) {
        daemon.limit(SERVE, now);
        self.actions.push(Action::Tell(daemon.id, HolderEvent::Go));
        self.phase =
            Phase::Serving(Serving { daemon, ready: None, hung: None, trial: Some(trial) });
    }

    /// The daemon that serves does so no more, and may finish what it has begun.
    fn leave(&mut self, now: Instant) {
        let resting = Phase::rest_until(now);
        if let Phase::Serving(serving) = std::mem::replace(&mut self.phase, resting) {
            let mut daemon = serving.daemon;
            daemon.limit(LEAVE, now);
            self.leaving.push(daemon);
        }
    }

    /// A successor that is no good before it was told to go. What becomes of that is told when it has
    /// ended, with its last lines.
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

    /// A successor that comes too late, because nobody is left whom it could follow.
    pub(super) fn drop_successor(&mut self, mut next: Successor, reason: &str) {
        self.actions.extend(next.daemon.kill());
        let why = next.daemon.why(&End { how: reason.into(), last_output: String::new() });
        self.leaving.push(next.daemon);
        self.undo(next.trial, why);
    }
}
