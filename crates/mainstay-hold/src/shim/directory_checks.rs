//! When a shim without a daemon checks that its run directory exists: the next daemon would start another run beside it.

use std::time::{Duration, Instant};

use crate::limits::SHIM_RESTORE;

/// How often at first. A daemon that died is followed by the next one soon.
const OFTEN: Duration = Duration::from_millis(100);

/// For how long.
const OFTEN_FOR: Duration = Duration::from_secs(10);

/// How often after that.
const SELDOM: Duration = Duration::from_secs(2);

/// The schedule since the last daemon has gone.
#[derive(Debug)]
pub(super) struct DirectoryChecks {
    since: Instant,
    next: Instant,
    failing_since: Option<Instant>,
}

impl DirectoryChecks {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, next: now, failing_since: None }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.next
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Records whether daemons can find the run. Returns whether the run has to end.
    pub(super) fn checked(&mut self, now: Instant, reachable: bool) -> bool {
        let often = !reachable || now.saturating_duration_since(self.since) < OFTEN_FOR;
        self.next = now + if often { OFTEN } else { SELDOM };
        self.failing_since = (!reachable).then(|| self.failing_since.unwrap_or(now));
        self.failing_since.is_some_and(|since| now.saturating_duration_since(since) >= SHIM_RESTORE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_become_rare_and_an_unrestorable_directory_ends_the_run() {
        let begin = crate::clock::now();
        let mut checks = DirectoryChecks::new(begin);
        assert!(checks.is_due(begin), "the first check is made at once");
        assert!(!checks.checked(begin, true));
        assert_eq!(checks.deadline() - begin, OFTEN);
        let later = begin + OFTEN_FOR;
        assert!(!checks.checked(later, true));
        assert_eq!(checks.deadline() - later, SELDOM);

        assert!(!checks.checked(later, false));
        assert!(!checks.checked(later + SHIM_RESTORE / 2, false));
        assert!(!checks.checked(later + SHIM_RESTORE / 2, true), "it came back");
        let away = later + SHIM_RESTORE;
        assert!(!checks.checked(away, false));
        assert!(checks.checked(away + SHIM_RESTORE, false));
    }
}
