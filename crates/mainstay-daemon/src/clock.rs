//! The clocks, read in one place.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// The monotonic time of the supervisor. It follows Tokio's clock, which tests control.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}

pub(crate) fn wall_before(age: Duration) -> Timestamp {
    wall().checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(crate) fn wall_after(delay: Duration) -> Timestamp {
    wall().checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// The time that has passed; zero if `then` is in the future.
pub(crate) fn since(then: Timestamp) -> Duration {
    Duration::try_from(wall().duration_since(then)).unwrap_or_default()
}

/// Sleeps until the deadline; forever without one.
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
