//! Interruptions of the connection to a run that continues.
//!
//! A container may outlive its engine: what it writes meanwhile is read from the engine's log, so answers arrive after
//! all. But a request that was sent moments before the engine died may have died with it, and so may an answer.

use std::time::{Duration, Instant};

use mainstay_core::Interruption;

use super::{Pending, Target};
use crate::exchange::Failure;
use crate::links::{LinkKey, OwnPurpose};
use crate::replay::MAX_INTERRUPTIONS;
use crate::server::Server;
use crate::timers::Timer;

/// Requests that were sent less than this before the connection was lost may have been on their way, or their answers.
/// An engine that takes longer to pass a line on counts as away.
const IN_TRANSIT_WINDOW: Duration = Duration::from_secs(2);

/// How long the answers to those may take once the connection is back, and how much longer if they may not be sent
/// again.
const IN_TRANSIT_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const NO_REPLAY_EXTRA_TIMEOUT: Duration = Duration::from_secs(9);

/// How long the answers to all others may take. The server has these requests, so an answer is lost only if the engine
/// died in the very moment in which it passed it on.
const RECEIVED_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Requests to be doubted after an interruption.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doubt {
    at: Instant,
    interruption: Interruption,
    /// Whether this concerns all requests that were sent before, or only recent ones.
    is_for_all: bool,
}

impl Server {
    /// The connection to the run was lost and made again. Requests without an answer are in doubt after a while: they
    /// are sent again if that is safe, and otherwise answered with "effect unknown".
    pub fn link_interrupted(&mut self, now: Instant, key: LinkKey, interruption: Interruption) {
        let Some(stdio) = self.stdio(key) else { return };
        let first = now + IN_TRANSIT_ANSWER_TIMEOUT;
        let all = first + RECEIVED_ANSWER_TIMEOUT;
        stdio.interruptions.push(Doubt { at: first, interruption, is_for_all: false });
        stdio.interruptions.push(Doubt { at: all, interruption, is_for_all: true });
        self.timers.set(first, Timer::Doubt(key));
        self.timers.set(all, Timer::Doubt(key));
    }

    pub(crate) fn doubt_requests(&mut self, now: Instant, key: LinkKey) {
        let Some(stdio) = self.stdio(key) else { return };
        let due: Vec<_> = stdio.interruptions.extract_if(.., |doubt| doubt.at <= now).collect();
        let mut doubted = Vec::new();
        for Doubt { interruption, is_for_all, .. } in due {
            let is_recent = |sent: Option<Instant>| {
                sent.is_some_and(|sent| sent + IN_TRANSIT_WINDOW > interruption.at)
            };
            for (id, pending) in &mut stdio.pending {
                if pending.line <= interruption.written && (is_for_all || is_recent(pending.sent)) {
                    let wait = if is_for_all { Duration::ZERO } else { NO_REPLAY_EXTRA_TIMEOUT };
                    doubted.push((*id, now + wait));
                }
            }
        }
        for (id, pending) in &mut stdio.pending {
            if pending.lost_at.is_some_and(|at| at <= now) {
                doubted.push((*id, now));
            }
        }
        doubted.sort_unstable();
        for (id, lost_at) in doubted {
            self.doubt(now, key, id, lost_at);
        }
    }

    /// A request may have been lost. If it may not be sent again, its answer is awaited a while longer.
    fn doubt(&mut self, now: Instant, key: LinkKey, id: u64, lost_at: Instant) {
        let generation = self.generation(key);
        let Some(pending) = self.stdio(key).and_then(|stdio| stdio.pending.get(&id)) else {
            return;
        };
        let call = match &pending.target {
            Target::Call(call) => *call,
            Target::Own(_) => return self.repeat_own(now, key, id),
        };
        let is_safe = self.calls.get(call).is_some_and(|call| self.is_safe(call, generation));
        if !is_safe && lost_at > now {
            if let Some(pending) = self.stdio(key).and_then(|stdio| stdio.pending.get_mut(&id)) {
                pending.lost_at = Some(lost_at);
            }
            return self.timers.set(lost_at, Timer::Doubt(key));
        }
        self.record_unanswerable(call);
        self.cancel_at_stdio(key, id);
        self.lost(now, call, generation, Failure::Interrupted);
    }

    /// All requests of Mainstay itself may be sent twice. A list that was answered from the copy needs no answer.
    fn repeat_own(&mut self, now: Instant, key: LinkKey, id: u64) {
        let pending = self.stdio(key).and_then(|stdio| stdio.pending.remove(&id));
        let Some(Pending { target: Target::Own(mut request), .. }) = pending else { return };
        request.repetitions += 1;
        if request.repetitions < MAX_INTERRUPTIONS && request.purpose != OwnPurpose::AnsweredList {
            return self.ask(now, key, request);
        }
        self.own_lost(now, key, &request, true);
    }
}
