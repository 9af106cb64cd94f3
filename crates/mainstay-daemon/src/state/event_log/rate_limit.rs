//! Limits the rate of events, so that one kind does not crowd out all others.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many events of one kind are admitted in which time.
const ADMITTED: u32 = 20;
const PERIOD: Duration = Duration::from_secs(30);

/// The same for requests that were answered with "is down", which would hide why it is down.
const DOWN: &str = "refused";
const DOWN_ADMITTED: u32 = 1;
const DOWN_PERIOD: Duration = Duration::from_secs(300);

/// Counts events by server and kind.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    counts: Mutex<HashMap<(String, &'static str), Count>>,
}

#[derive(Debug)]
struct Count {
    since: Instant,
    seen: u32,
}

impl RateLimit {
    /// Whether an event may be recorded, and how many of its kind were dropped before.
    pub(crate) fn admit(&self, server: &str, kind: &'static str, now: Instant) -> Option<u32> {
        let mut counts = mainstay_core::lock(&self.counts);
        // Bounded by the servers that clients use at the same time.
        counts.retain(|(_, kind), count| {
            let (admitted, period) = limits(kind);
            count.seen > admitted || now.saturating_duration_since(count.since) < period
        });
        let (admitted, period) = limits(kind);
        let fresh = || Count { since: now, seen: 0 };
        let count = counts.entry((server.to_owned(), kind)).or_insert_with(fresh);
        let mut dropped = 0;
        if now.saturating_duration_since(count.since) >= period {
            dropped = count.seen.saturating_sub(admitted);
            *count = fresh();
        }
        count.seen = count.seen.saturating_add(1);
        (count.seen <= admitted).then_some(dropped)
    }
}

fn limits(kind: &str) -> (u32, Duration) {
    if kind == DOWN { (DOWN_ADMITTED, DOWN_PERIOD) } else { (ADMITTED, PERIOD) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn events_beyond_the_limit_are_dropped_and_counted() {
        let (limit, now) = (RateLimit::default(), clock::now());
        let admit = |at| limit.admit("time", "held", at);
        for _ in 0..ADMITTED {
            assert_eq!(admit(now), Some(0));
        }
        assert_eq!((admit(now), admit(now)), (None, None));
        assert_eq!(limit.admit("time", "replayed", now), Some(0), "another kind");
        assert_eq!(limit.admit("fs", "held", now), Some(0), "another server");
        assert_eq!(admit(now + PERIOD), Some(2));
        assert_eq!(admit(now + PERIOD), Some(0));
        assert_eq!(admit(now + PERIOD * 3), Some(0));
    }

    #[test]
    fn refused_requests_are_recorded_rarely() {
        let (limit, now) = (RateLimit::default(), clock::now());
        let admit = |at| limit.admit("time", DOWN, at);
        assert_eq!([admit(now), admit(now), admit(now + PERIOD)], [Some(0), None, None]);
        assert_eq!(admit(now + DOWN_PERIOD), Some(2));
    }
}
