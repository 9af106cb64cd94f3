//! The deadlines of a server. A timer may fire although it is not needed: whatever it is for looks at its own
//! state first.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::calls::CallKey;
use crate::links::LinkKey;
use crate::session::SessionKey;
use crate::streams::StreamRef;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Call(CallKey),
    /// A list is answered from the copy.
    ListPatience(CallKey),
    /// A call has taken as long as it may.
    CallTimeout(CallKey),
    /// A client gets progress.
    Progress(CallKey),
    Stream(StreamRef),
    Session(SessionKey),
    Listener(SessionKey),
    /// Requests at a link may have been lost with an interruption.
    Doubt(LinkKey),
    /// Lines of a link are confirmed although an answer is not delivered yet.
    Confirm(LinkKey),
    Lists,
    RetainedRuns,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    all: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Instant, timer: Timer) {
        self.all.insert((at, timer));
    }

    pub(crate) fn remove(&mut self, at: Instant, timer: Timer) {
        self.all.remove(&(at, timer));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.all.first().map(|(at, _)| *at)
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let (at, _) = self.all.first()?;
        if *at > now {
            return None;
        }
        self.all.pop_first().map(|(_, timer)| timer)
    }
}
