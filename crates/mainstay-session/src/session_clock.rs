//! The time by which sessions age.

use std::time::{Duration, Instant};

/// Counts the time during which a daemon ran and the machine was awake, summed over all daemons. Sessions do not age
/// while the machine sleeps or is switched off.
///
/// Times are durations since the first daemon started counting.
#[derive(Debug, Clone, Copy)]
pub struct SessionClock {
    before: Duration,
    started: Instant,
}

impl SessionClock {
    /// Continues from the value that the previous daemon saved. `now` is of the monotonic clock, which does not count
    /// the time that the machine sleeps.
    pub fn resumed(before: Duration, now: Instant) -> Self {
        Self { before, started: now }
    }

    pub fn at(&self, moment: Instant) -> Duration {
        self.before + moment.saturating_duration_since(self.started)
    }
}
