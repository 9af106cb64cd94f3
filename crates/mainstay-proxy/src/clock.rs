//! The clock that measures the age of sessions.

use std::time::Duration;

use tokio::time::Instant;

/// Counts the time during which a daemon ran and the machine was awake, summed over all daemons. Sessions do
/// not age while the machine sleeps or is switched off.
///
/// Times are durations since the first daemon started counting.
#[derive(Debug, Clone, Copy)]
pub struct SessionClock {
    before: Duration,
    started: Instant,
}

impl SessionClock {
    /// Continues from the value that the previous daemon saved.
    pub fn resumed(before: Duration) -> Self {
        // The monotonic clock does not count the time that the machine sleeps.
        Self { before, started: Instant::now() }
    }

    /// The current time.
    pub fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    /// Converts an instant of this process.
    pub(crate) fn at(&self, moment: Instant) -> Duration {
        self.before + moment.saturating_duration_since(self.started)
    }
}
