//! Calls of tools whose time is limited: a call without an answer by then is answered here, and cancelled at the server.
//!
//! The time counts from the arrival of the call, also while it is held. It counts again from the recovery by another daemon.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mainstay_core::human_duration;

use crate::calls::{Call, CallKey, Stage};
use crate::messages;
use crate::server::Server;
use crate::timers::Timer;

/// How long calls of tools may take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTimeouts {
    pub all: Option<Duration>,
    /// For single tools, instead of that.
    pub tools: BTreeMap<String, Option<Duration>>,
}

impl CallTimeouts {
    fn of(&self, call: &Call) -> Option<Duration> {
        if self.tools.is_empty() {
            return self.all;
        }
        let tool = call.message.name();
        let own = tool.and_then(|tool| self.tools.get(&*tool));
        own.map_or(self.all, |limit| *limit)
    }
}

impl Server {
    /// A call of a tool has no answer after a moment.
    pub(crate) fn limit_call(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        let arrived = call.arrived;
        self.limit_call_from(arrived, key);
    }

    fn limit_call_from(&mut self, begun: Instant, key: CallKey) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let Some(limit) = self.settings.call_timeouts.of(call) else { return };
        let due = begun + limit;
        call.due = Some(due);
        self.timers.set(due, Timer::CallTimeout(key));
    }

    /// A call is over, and its timer is not needed.
    pub(crate) fn drop_call_timeout(&mut self, key: CallKey, call: &Call) {
        if let Some(due) = call.due {
            self.timers.remove(due, Timer::CallTimeout(key));
        }
    }

    pub(crate) fn call_timed_out(&mut self, now: Instant, key: CallKey) {
        if self.is_frozen {
            // Another daemon decides about it.
            return;
        }
        let Some(call) = self.calls.get(key) else { return };
        if self.is_unawaited(call) {
            return self.give_up(now, key);
        }
        if self.is_abandoned(call.stream) {
            // The repeat that waits for it has a limit of its own.
            return self.limit_call_from(now, key);
        }
        let Some(call) = self.calls.take(key) else { return };
        let limit = human_duration(call.due.unwrap_or(now).saturating_duration_since(call.arrived));
        let text = if call.may_have_run() {
            messages::timed_out(&self.name, &limit)
        } else {
            let session = self.sessions.get(call.session);
            let present = session.map(|session| self.availability_for(session));
            messages::timed_out_unsent(&self.name, &limit, &call.stage, present)
        };
        if let Stage::Joined(earlier) = call.stage {
            self.cancel_joined(now, key, earlier);
        }
        self.cancel_at_server(now, key, &call);
        self.record_decision(&call, "call-timeout", &text, None);
        self.refuse(now, key, call, "call-timeout", &text);
    }
}

#[cfg(test)]
mod tests;
