//! The clocks, read in one place.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Now, on the clock that the supervisor lives by. It follows Tokio's, so tests own it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Now, on the wall.
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}

/// That long ago, on the wall.
pub(crate) fn wall_before(age: Duration) -> Timestamp {
    wall().checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// In that time, on the wall.
pub(crate) fn wall_after(delay: Duration) -> Timestamp {
    wall().checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// How long ago that was; nothing if it lies ahead.
pub(crate) fn since(then: Timestamp) -> Duration {
    Duration::try_from(wall().duration_since(then)).unwrap_or_default()
}

/// Sleeps until then, or for ever.
pub(crate) async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// How long the host has slept since it was booted.
pub(crate) fn slept() -> Duration {
    let read = |clock| {
        let time = clock_gettime(clock);
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        )
    };
    // The monotonic clock is read first, so that the difference is never negative.
    let awake = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(awake)
}
