//! Decides which connections are closed, and when. Pure.
//!
//! Each connection records its stage and the current tick of a coarse clock, which costs one atomic store.
//! At every [`SWEEP`] the listener checks all connections and closes those that are over their time limit. When
//! the budget is used up in between, the clock ticks faster, and connections are evicted in this order: connections that never sent a
//! complete request (oldest first), idle connections (longest idle first), connections whose client has
//! stalled in the middle of a request or does not read its response, and finally event streams, which a
//! client can reopen (newest first, because a flood is younger than what it displaces). A connection with a
//! request in progress is evicted only if its client does not read.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How often connections are checked. Time limits are accurate to that.
pub(super) const SWEEP: Duration = Duration::from_secs(2);

/// The unit of the clock. While the budget is used up, a client that makes no progress keeps its connection no longer
/// than this, so that new clients are served soon.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// The age from which a whole tick has passed. A client without progress for less may merely be slow.
const WHOLE_TICK: u32 = 2;

/// The most that the clock advances at once.
pub(super) const SWEEP_TICKS: u32 = 8;

/// From the first byte of a head to its end.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// For the first byte of a new connection, when the budget is nearly used up.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Without progress in a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without a request is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// While the client does not read its response.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for an event stream, whose client may be suspended.
const UNREAD_STREAM_TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// A tick counter that the listener advances. It stands still while the process is suspended.
#[derive(Debug)]
pub(super) struct TickClock(AtomicU32);

impl Default for TickClock {
    fn default() -> Self {
        // Connections use 0 for "never".
        Self(AtomicU32::new(1))
    }
}

impl TickClock {
    pub(super) fn now(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn advance(&self, ticks: u32) {
        self.0.store(self.now().wrapping_add(ticks).max(1), Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// Nothing was read yet.
    New,
    Head,
    Body,
    /// A request is in progress.
    Answering,
    Streaming,
    /// All requests are answered.
    Idle,
    /// The client reads an event stream that it can reopen.
    Listening,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::New,
        Self::Head,
        Self::Body,
        Self::Answering,
        Self::Streaming,
        Self::Idle,
        Self::Listening,
    ];

    /// Decodes the stage from the lowest bits.
    pub(super) fn of(number: u64) -> Self {
        Self::ALL.into_iter().nth((number & 0b111) as usize).unwrap_or(Self::Listening)
    }
}

/// What a connection is doing, and for how long; times are in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activity {
    pub(super) stage: Stage,
    /// Whether a complete request was ever read.
    pub(super) used: bool,
    /// Since the stage began, or its last progress.
    pub(super) age: u32,
    /// Since the client stopped reading.
    pub(super) blocked: Option<u32>,
}

/// Why a connection may be evicted, in the order of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionClass {
    NeverUsed,
    Idle,
    Stalled,
    Unread,
    Listening,
}

impl Activity {
    /// Whether the stage is over its time limit. The limit of new connections is shorter when the budget is
    /// nearly used up.
    pub(super) fn is_overdue(self, nearly_full: bool) -> bool {
        let is_stream = matches!(self.stage, Stage::Streaming | Stage::Listening);
        let unread = if is_stream { UNREAD_STREAM_TIMEOUT } else { UNREAD_TIMEOUT };
        if let Some(blocked) = self.blocked {
            return has_passed(blocked, unread);
        }
        match self.stage {
            Stage::New if nearly_full => has_passed(self.age, FIRST_BYTE_TIMEOUT),
            Stage::New | Stage::Idle => has_passed(self.age, IDLE_TIMEOUT),
            Stage::Head => has_passed(self.age, HEAD_TIMEOUT),
            Stage::Body => has_passed(self.age, BODY_TIMEOUT),
            Stage::Answering | Stage::Streaming | Stage::Listening => false,
        }
    }

    /// Whether it was accepted within this tick and has not sent a complete request.
    pub(super) fn is_fresh(self) -> bool {
        !self.used && self.age == 0
    }

    /// The eviction class, or `None` while the connection may not be evicted.
    fn eviction_class(self) -> Option<EvictionClass> {
        if let Some(blocked) = self.blocked {
            let is_stream = matches!(self.stage, Stage::Streaming | Stage::Listening);
            let is_busy = is_stream || self.stage == Stage::Answering;
            let least = if is_busy { SWEEP_TICKS } else { WHOLE_TICK };
            return (blocked >= least).then_some(EvictionClass::Unread);
        }
        match (self.stage, self.used) {
            (Stage::New | Stage::Head | Stage::Body, false) => Some(EvictionClass::NeverUsed),
            (Stage::New | Stage::Idle, _) => Some(EvictionClass::Idle),
            (Stage::Head | Stage::Body, true) => {
                (self.age >= WHOLE_TICK).then_some(EvictionClass::Stalled)
            }
            (Stage::Listening, _) => Some(EvictionClass::Listening),
            (Stage::Answering | Stage::Streaming, _) => None,
        }
    }
}

/// Selects up to `count` connections to evict. Later connections have higher numbers.
pub(super) fn select_for_eviction<K>(
    all: impl Iterator<Item = (u64, K, Activity)>,
    count: usize,
) -> Vec<K> {
    let rank = |(number, key, activity): (u64, K, Activity)| {
        let class = activity.eviction_class()?;
        let age = activity.blocked.unwrap_or(activity.age);
        let oldest_first = (u32::MAX - age, number);
        let newest_first = (age, u64::MAX - number);
        let order = if class == EvictionClass::Listening { newest_first } else { oldest_first };
        Some(((class, order), key))
    };
    let mut candidates: Vec<_> = all.filter_map(rank).collect();
    if count < candidates.len() {
        candidates.select_nth_unstable_by_key(count, |(rank, _)| *rank);
        candidates.truncate(count);
    }
    candidates.into_iter().map(|(_, key)| key).collect()
}

/// Whether at least this time has passed. The ticks of one sweep are not counted, because the event may have come
/// right before it.
fn has_passed(ticks: u32, time: Duration) -> bool {
    TICK * ticks.saturating_sub(SWEEP_TICKS) >= time
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn activity() -> impl Strategy<Value = Activity> {
        let stage = prop::sample::select(Stage::ALL.to_vec());
        (stage, any::<bool>(), 0..3000_u32, prop::option::weighted(0.2, 0..3000_u32)).prop_map(
            |(stage, used, age, blocked)| {
                let used = used || !matches!(stage, Stage::New | Stage::Head | Stage::Body);
                Activity { stage, used, age, blocked: blocked.filter(|_| used) }
            },
        )
    }

    /// The first age at which a connection is overdue, in seconds, if it ever is.
    fn limit(stage: Stage, nearly_full: bool) -> Option<u64> {
        let at = |age| Activity { stage, used: true, age, blocked: None };
        (0..3000).find(|age| at(*age).is_overdue(nearly_full)).map(|age| (TICK * age).as_secs())
    }

    #[test]
    fn every_stage_has_a_limit_except_a_request_in_progress() {
        // At the limit and at most one sweep later.
        assert_eq!(limit(Stage::New, false), Some(302));
        assert_eq!(limit(Stage::New, true), Some(12));
        assert_eq!(limit(Stage::Idle, true), Some(302));
        assert_eq!(limit(Stage::Head, false), Some(12));
        assert_eq!(limit(Stage::Body, false), Some(32));
        assert_eq!(limit(Stage::Answering, true), None);
        assert_eq!(limit(Stage::Streaming, true), None);
        assert_eq!(limit(Stage::Listening, true), None);
    }

    #[test]
    fn a_client_that_does_not_read_times_out() {
        let overdue = |stage, blocked| {
            Activity { stage, used: true, age: 0, blocked: Some(blocked) }.is_overdue(false)
        };
        assert!(!overdue(Stage::Idle, 127) && overdue(Stage::Idle, 128));
        assert!(!overdue(Stage::Streaming, 487) && overdue(Stage::Streaming, 488));
    }

    #[test]
    fn stages_round_trip_through_their_encoding() {
        for stage in Stage::ALL {
            assert_eq!(Stage::of(stage as u64 | 7 << 32 | 1 << 8), stage);
        }
    }

    #[test]
    fn event_streams_are_evicted_last_and_newest_first() {
        let listens = |age| Activity { stage: Stage::Listening, used: true, age, blocked: None };
        let idle = Activity { stage: Stage::Idle, used: true, age: 0, blocked: None };
        let busy = Activity { stage: Stage::Answering, used: true, age: 900, blocked: None };
        let all = [listens(900), listens(3), idle, busy, listens(3)];
        let closed = |count| {
            let mut closed =
                select_for_eviction((0..).zip(all).map(|(number, it)| (number, number, it)), count);
            closed.sort_unstable();
            closed
        };
        assert_eq!(closed(1), [2]);
        assert_eq!(closed(2), [2, 4]);
        assert_eq!(closed(3), [1, 2, 4]);
        assert_eq!(closed(9), [0, 1, 2, 4]);
    }

    proptest! {
        #[test]
        fn eviction_order(
            all in prop::collection::vec(activity(), 0..60),
            count in 0..40_usize,
        ) {
            let keyed = || all.iter().copied().enumerate();
            let numbered = (0_u64..).zip(keyed()).map(|(number, (key, it))| (number, key, it));
            let closed = select_for_eviction(numbered, count);
            prop_assert!(closed.len() <= count);
            let is_closed = |key: &usize| closed.contains(key);
            for (key, activity) in keyed() {
                if is_closed(&key) {
                    let is_read = activity.blocked.is_none();
                    let is_busy = matches!(activity.stage, Stage::Answering | Stage::Streaming);
                    prop_assert!(!(is_busy && is_read), "{activity:?}");
                } else if closed.len() < count {
                    prop_assert!(activity.eviction_class().is_none(), "there was need for {activity:?}");
                }
            }
            // Connections that were never used are evicted first, oldest first.
            let unused = |key: &usize| all[*key].eviction_class() == Some(EvictionClass::NeverUsed);
            let resumable: Vec<_> = (0..all.len()).filter(|key| !is_closed(key) && unused(key)).collect();
            for key in &closed {
                prop_assert!(resumable.is_empty() || unused(key));
                prop_assert!(resumable.iter().all(|resumable| all[*resumable].age <= all[*key].age));
            }
        }

        #[test]
        fn a_connection_with_progress_is_never_overdue(stage in prop::sample::select(Stage::ALL.to_vec())) {
            let activity = Activity { stage, used: true, age: 0, blocked: None };
            prop_assert!(!activity.is_overdue(true));
        }
    }
}
