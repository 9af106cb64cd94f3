//! Decides how a run ends: facts and the time come in, the next action goes out.
//!
//! The order is always the same: TERM (only when a daemon asks for the end), a grace, KILL repeatedly until no
//! descendant is left, and a limit after which those that are left are counted as survivors. If a server exits by itself,
//! its descendants get no grace; if it exits while it is being ended, they get the rest of theirs.

use std::time::{Duration, Instant};

use crate::limits::KILL_SERVER;

/// How often KILL is repeated for descendants that were born meanwhile.
const KILL_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Life {
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Serving,
    Asked { kill_at: Instant },
    Killing { again_at: Instant, give_up: Instant },
    Over,
}

/// What to do with the process tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Send TERM to all of it.
    Term,
    /// Send KILL to all of it.
    Kill,
    /// The run is over: count the survivors and report the end.
    Finish,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Serving }
    }

    /// A daemon wants the run to end within this grace.
    pub(super) fn end(&mut self, now: Instant, grace: Duration) -> Option<Action> {
        match self.phase {
            Phase::Serving if grace.is_zero() => Some(self.kill(now)),
            Phase::Serving => {
                self.phase = Phase::Asked { kill_at: now + grace };
                Some(Action::Term)
            }
            Phase::Asked { kill_at } => {
                self.phase = Phase::Asked { kill_at: kill_at.min(now + grace) };
                self.tick(now)
            }
            Phase::Killing { .. } | Phase::Over => None,
        }
    }

    /// The server has exited.
    pub(super) fn exited(&mut self, now: Instant) -> Option<Action> {
        match self.phase {
            Phase::Serving => Some(self.kill(now)),
            Phase::Asked { .. } | Phase::Killing { .. } | Phase::Over => None,
        }
    }

    /// No descendant is left.
    pub(super) fn childless(&mut self) -> Option<Action> {
        match self.phase {
            Phase::Serving | Phase::Asked { .. } | Phase::Killing { .. } => Some(self.finish()),
            Phase::Over => None,
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Action> {
        match self.phase {
            Phase::Asked { kill_at } if now >= kill_at => Some(self.kill(now)),
            Phase::Killing { give_up, .. } if now >= give_up => Some(self.finish()),
            Phase::Killing { again_at, give_up } if now >= again_at => {
                self.phase = Phase::Killing { again_at: now + KILL_EVERY, give_up };
                Some(Action::Kill)
            }
            Phase::Serving | Phase::Asked { .. } | Phase::Killing { .. } | Phase::Over => None,
        }
    }

    /// When [`Life::tick`] is due next, if ever.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Serving | Phase::Over => None,
            Phase::Asked { kill_at } => Some(kill_at),
            Phase::Killing { again_at, give_up } => Some(again_at.min(give_up)),
        }
    }

    /// Whether KILL was sent by us, so that a death by KILL has no other cause.
    pub(super) fn killing(&self) -> bool {
        match self.phase {
            Phase::Killing { .. } => true,
            Phase::Serving | Phase::Asked { .. } | Phase::Over => false,
        }
    }

    fn kill(&mut self, now: Instant) -> Action {
        self.phase = Phase::Killing { again_at: now + KILL_EVERY, give_up: now + KILL_SERVER };
        Action::Kill
    }

    fn finish(&mut self) -> Action {
        self.phase = Phase::Over;
        Action::Finish
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    fn start() -> (Life, Instant) {
        (Life::new(), crate::clock::now())
    }

    #[test]
    fn a_serving_run_has_no_deadline() {
        let (mut life, now) = start();
        assert_eq!(life.deadline(), None);
        assert_eq!(life.tick(now + Duration::from_secs(1_000_000)), None);
    }

    #[test]
    fn the_tree_of_an_exited_server_is_killed_at_once() {
        let (mut life, now) = start();
        assert_eq!(life.exited(now), Some(Action::Kill));
        assert_eq!(life.deadline(), Some(now + KILL_EVERY));
        assert_eq!(life.tick(now), None);
        assert_eq!(life.tick(now + KILL_EVERY), Some(Action::Kill));
        assert_eq!(life.childless(), Some(Action::Finish));
        assert_eq!((life.childless(), life.deadline()), (None, None));
    }

    #[test]
    fn an_end_is_term_then_kill_after_the_grace() {
        let (mut life, now) = start();
        assert_eq!(life.end(now, GRACE), Some(Action::Term));
        assert_eq!(life.exited(now), None, "the descendants have their grace");
        assert_eq!(life.tick(now + GRACE / 2), None);
        assert!(!life.killing());
        assert_eq!(life.tick(now + GRACE), Some(Action::Kill));
        assert!(life.killing());
        assert_eq!(life.end(now + GRACE, Duration::ZERO), None);
    }

    #[test]
    fn a_second_end_only_shortens() {
        let (mut life, now) = start();
        life.end(now, GRACE);
        assert_eq!(life.end(now, 2 * GRACE), None);
        assert_eq!(life.deadline(), Some(now + GRACE));
        assert_eq!(life.end(now, GRACE / 2), None);
        assert_eq!(life.deadline(), Some(now + GRACE / 2));
        assert_eq!(life.end(now, Duration::ZERO), Some(Action::Kill));
    }

    #[test]
    fn unkillable_processes_are_given_up() {
        let (mut life, now) = start();
        assert_eq!(life.end(now, Duration::ZERO), Some(Action::Kill));
        assert_eq!(life.tick(now + KILL_SERVER), Some(Action::Finish));
        assert_eq!((life.exited(now), life.end(now, GRACE)), (None, None));
    }
}
