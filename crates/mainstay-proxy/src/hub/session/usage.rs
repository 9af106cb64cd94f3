//! Whether the client of a session is present, and when it last was.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Session, State, millis};
use crate::front::Session as _;
use crate::hub::presence::{Presence, SessionFacts};
use crate::hub::run_retention::RunUse;

/// Whether the client has used its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Usage {
    /// Nothing was sent after `initialize`.
    #[default]
    Unused,
    Used,
    /// Used recently, so the hub tracks the session as possibly active.
    Tracked,
}

impl Usage {
    pub(super) fn is_used(self) -> bool {
        self != Self::Unused
    }
}

impl Session {
    /// The facts for the decisions in [`presence`](crate::hub::presence).
    pub(in crate::hub) fn facts(&self) -> SessionFacts {
        let state = self.state();
        let is_present = !state.open.is_empty() || self.general().has_reader();
        let presence = if is_present {
            Presence::Present
        } else {
            Presence::Absent { since: self.last_present() }
        };
        let is_recorded = state.version.is_some() && !self.streams().has_kept();
        SessionFacts { presence, is_used: state.usage.is_used(), is_recorded }
    }

    /// Whether the client is present, or was within the grace period.
    pub(super) fn is_active(&self) -> bool {
        self.facts().is_active(self.hub().now())
    }

    /// How the client uses the session's own run.
    pub(in crate::hub) fn run_use(&self) -> RunUse {
        let (waits, is_subscribed) = {
            let state = self.state();
            (!state.open.is_empty(), !state.terms.subscriptions.is_empty())
        };
        let SessionFacts { presence, is_used, .. } = self.facts();
        if waits || (is_subscribed && presence == Presence::Present) {
            return RunUse::InUse;
        }
        RunUse::Idle { last_message: self.last_message(), presence, is_used }
    }

    /// When the client last sent a message or got an answer.
    fn last_message(&self) -> Duration {
        Duration::from_millis(self.inner.used.load(Ordering::Relaxed))
    }

    /// When the client was last present. Meaningful only while it is absent.
    pub(super) fn last_present(&self) -> Duration {
        let used = self.last_message();
        let left = self.general().left_at().map(|left| self.hub().clock().at(left));
        left.map_or(used, |left| left.max(used))
    }

    /// When the client was last present, if that is not on disk yet.
    pub(in crate::hub) fn unsaved_use(&self) -> Option<(String, Duration)> {
        let used = match self.facts().presence {
            Presence::Present => self.hub().now(),
            Presence::Absent { since } => since,
        };
        let is_saved = self.inner.saved_use.swap(millis(used), Ordering::Relaxed) == millis(used);
        (!is_saved).then(|| (self.inner.id.clone(), used))
    }

    /// Records that the client is present now.
    pub(in crate::hub) fn touch(&self) {
        self.inner.used.store(millis(self.hub().now()), Ordering::Relaxed);
    }

    /// As [`touch`](Self::touch), and saves it for the next daemon.
    pub(in crate::hub) fn touch_and_save(&self) {
        self.touch();
        self.keep(&self.state());
    }

    /// Records that the client has sent more than `initialize`.
    pub(super) fn mark_used(&self) {
        let mut state = self.state();
        if state.usage == Usage::Unused {
            state.usage = Usage::Used;
            self.keep(&state);
        }
        drop(state);
        self.touch();
        self.track_if_active();
    }

    /// Tracks the session as possibly active, if it is not tracked yet.
    pub(in crate::hub) fn track_if_active(&self) {
        if self.state().mark_tracked() {
            self.hub().add_active(self);
        }
    }

    /// Stops tracking the session if it is not active. Returns whether it is active.
    pub(in crate::hub) fn untrack_if_inactive(&self, now: Duration) -> bool {
        let is_active = self.facts().is_active(now);
        if !is_active {
            self.state().usage = Usage::Used;
        }
        is_active
    }
}

impl State {
    /// Marks the session as tracked. Returns whether it was not tracked before.
    fn mark_tracked(&mut self) -> bool {
        let is_new = self.usage == Usage::Used && self.kept;
        if is_new {
            self.usage = Usage::Tracked;
        }
        is_new
    }

    /// Whether [`Session::mark_used`] would change anything.
    pub(super) fn needs_marking(&self) -> bool {
        self.usage != Usage::Tracked && self.kept
    }
}
