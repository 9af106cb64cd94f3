//! What outlives the daemon: the intent, and the history of runs.

use super::{Action, Life, Supervisor};
use crate::{UnitHistory, Wanted};

impl Supervisor {
    /// The user has changed the intent. It is stored already, but what the supervisor stored may have replaced it.
    pub(super) fn set_wanted(&mut self, wanted: Wanted) {
        if self.saved.take().is_some_and(|saved| saved != wanted) {
            self.actions.push(Action::SaveIntent(wanted));
        }
        self.wanted = wanted;
    }

    /// The unit changes the intent itself when someone stopped the server and that is respected.
    pub(super) fn keep_intent(&mut self) {
        let wanted = self.unit.wanted();
        if wanted != self.wanted && !self.is_retiring() && !self.is_session_run {
            self.wanted = wanted;
            self.saved = Some(wanted);
            self.actions.push(Action::SaveIntent(wanted));
        }
    }

    /// Nothing is saved of runs of single sessions, nor of a server that is removed.
    pub(super) fn keep_history(&mut self) {
        if self.is_session_run || self.life == Life::Finished {
            return;
        }
        let mut history = UnitHistory { ignores_ping: self.ignores_ping, ..self.unit.history() };
        if let Some(saved) = self.saved_history.as_ref().filter(|_| self.is_retiring()) {
            // The daemon stops the server, which does not change the consequences of its failures.
            (history.failures, history.restart_state) = (saved.failures, saved.restart_state);
        }
        if self.saved_history.as_ref() != Some(&history) {
            self.saved_history = Some(history.clone());
            self.actions.push(Action::SaveHistory(history));
        }
    }
}
