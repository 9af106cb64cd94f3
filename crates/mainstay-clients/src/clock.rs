//! The wall clock and random numbers.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::Jitter;

pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Sleeps for a random time, which is returned, so that two processes do not collide repeatedly.
pub(crate) fn pause(least: Duration, most: Duration) -> Duration {
    let pause = least + Jitter::new(random()).up_to(most.saturating_sub(least));
    std::thread::sleep(pause);
    pause
}

pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system has a source of randomness")
}
