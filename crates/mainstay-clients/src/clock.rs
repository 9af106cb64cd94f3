//! The wall clock and chance, read in one place.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::Jitter;

/// Now.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// A pause of random length, which is returned, so that two that met once do not meet again.
pub(crate) fn pause(least: Duration, most: Duration) -> Duration {
    let pause = least + Jitter::new(random()).up_to(most.saturating_sub(least));
    std::thread::sleep(pause);
    pause
}

/// A random number.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system has a source of randomness")
}
