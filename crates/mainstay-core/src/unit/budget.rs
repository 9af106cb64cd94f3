//! The charged failures of a server.

use std::time::{Duration, Instant};

use crate::RunId;

/// Charges younger than this are refunded when an outage begins.
pub(super) const PROVISIONAL: Duration = Duration::from_secs(30);
/// Charges younger than this are refunded when the host has woken up, which is
/// noticed a little late. At most [`PROVISIONAL`].
pub(super) const WAKING: Duration = Duration::from_secs(5);

/// The charged failures since the last reset. They may outnumber the allowed restarts: the one
/// that made the unit give up is counted too, as is each failed half-open start, so every further
/// failure before a stable run means giving up again.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Budget {
    failures: u32,
    /// The charges that may still be refunded: run and time.
    recent: Vec<(RunId, Instant)>,
}

impl Budget {
    /// The failures of earlier daemons, which are not refunded any more.
    pub(super) fn restored(failures: u32) -> Self {
        Self { failures, recent: Vec::new() }
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn charge(&mut self, run: RunId, at: Instant) {
        self.recent.retain(|&(_, earlier)| is_recent(earlier, at, PROVISIONAL));
        self.recent.push((run, at));
        self.failures = self.failures.saturating_add(1);
    }

    /// Forgets all failures. Returns whether there were any.
    pub(super) fn clear(&mut self) -> bool {
        let any = self.failures > 0;
        *self = Self::default();
        any
    }

    /// Refunds the charge for the end of that run. Returns false if there is none, or it was long ago.
    pub(super) fn refund_run(&mut self, run: RunId) -> bool {
        let found = self.recent.iter().position(|&(charged, _)| charged == run);
        if let Some(which) = found {
            self.recent.swap_remove(which);
            self.failures = self.failures.saturating_sub(1);
        }
        found.is_some()
    }

    /// Refunds recent charges. Returns their number.
    pub(super) fn refund(&mut self, now: Instant, within: Duration) -> u32 {
        let before = self.recent.len();
        self.recent.retain(|&(_, at)| !is_recent(at, now, within));
        let count = u32::try_from(before - self.recent.len()).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_sub(count);
        count
    }
}

/// Whether something happened no longer ago than this.
pub(super) fn is_recent(at: Instant, now: Instant, within: Duration) -> bool {
    now.saturating_duration_since(at) <= within
}
