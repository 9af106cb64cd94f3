//! Decides when the shim scans its process tree. Pure.
//!
//! The kernel does not report new descendants. Servers start programs when they start and when they are used,
//! so the shim scans then, and a few times more at growing intervals. After that it sleeps. Scans take at
//! most a hundredth of the time, however many processes there are.

use std::time::{Duration, Instant};

/// The least time between two scans.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The longest interval. After it, scans stop until the next activity.
const MAX_INTERVAL: Duration = Duration::from_secs(30);

/// After a scan, the next one waits for at least this multiple of its duration.
const COST_FACTOR: u32 = 100;

#[derive(Debug)]
pub(super) struct ScanSchedule {
    next: Option<Instant>,
    /// The interval between the last scan and the next.
    pause: Duration,
    /// The earliest time for another scan.
    not_before: Instant,
}

impl ScanSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { next: Some(now), pause: MIN_INTERVAL, not_before: now }
    }

    /// The server was active, and may have started a program.
    pub(super) fn note_activity(&mut self, now: Instant) {
        let soon = self.not_before.max(now);
        if self.next.is_none_or(|next| next > soon) {
            self.next = Some(soon);
        }
        self.pause = MIN_INTERVAL;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| now >= next)
    }

    /// When [`ScanSchedule::is_due`] will be true, if ever.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Records a scan.
    pub(super) fn scanned(&mut self, began: Instant, ended: Instant) {
        let rest = ended.saturating_duration_since(began) * COST_FACTOR;
        self.not_before = ended + MIN_INTERVAL.max(rest).min(MAX_INTERVAL);
        let pause = self.pause;
        self.next = (pause <= MAX_INTERVAL).then(|| self.not_before.max(ended + pause));
        self.pause = pause * 2;
    }

    /// The run is over.
    pub(super) fn stop(&mut self) {
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn start() -> (ScanSchedule, Instant) {
        let now = crate::clock::now();
        (ScanSchedule::new(now), now)
    }

    /// Lets time pass until nothing is due, and returns the number of scans and the time of the last one.
    fn settle(schedule: &mut ScanSchedule, took: Duration) -> (u32, Option<Instant>) {
        let (mut count, mut last) = (0, None);
        while let Some(at) = schedule.deadline() {
            assert!(schedule.is_due(at));
            schedule.scanned(at, at + took);
            (count, last) = (count + 1, Some(at));
            assert!(count < 100, "it never sleeps");
        }
        (count, last)
    }

    #[test]
    fn the_first_scan_is_immediate_and_an_idle_shim_sleeps() {
        let (mut schedule, now) = start();
        assert!(schedule.is_due(now));
        let (count, last) = settle(&mut schedule, Duration::ZERO);
        assert!((8..=12).contains(&count), "{count}");
        assert!(last.unwrap() < now + 2 * MAX_INTERVAL);
        assert!(!schedule.is_due(now + Duration::from_secs(1_000_000)));
    }

    #[test]
    fn activity_after_a_rest_is_scanned_immediately() {
        let (mut schedule, now) = start();
        settle(&mut schedule, Duration::ZERO);
        let later = now + Duration::from_secs(1000);
        schedule.note_activity(later);
        assert!(schedule.is_due(later));
        schedule.scanned(later, later);
        schedule.note_activity(later + MS);
        assert_eq!(schedule.deadline(), Some(later + MIN_INTERVAL), "not more often than that");
        assert!(settle(&mut schedule, Duration::ZERO).0 >= 8);
    }

    #[test]
    fn slow_scans_are_rare() {
        let (mut schedule, now) = start();
        schedule.scanned(now, now + 20 * MS);
        schedule.note_activity(now + 21 * MS);
        assert_eq!(schedule.deadline(), Some(now + 20 * MS + 2000 * MS));
        schedule.stop();
        assert_eq!(schedule.deadline(), None);
    }
}
