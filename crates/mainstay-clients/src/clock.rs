//! The wall clock and chance, read in one place.

use std::time::Duration;

use jiff::Timestamp;

/// Now.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// A pause of random length, so that two that met once do not meet again.
pub(crate) fn pause(least: Duration, most: Duration) {
    let spread = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
    std::thread::sleep(least + Duration::from_micros(random() % spread.saturating_add(1)));
}

/// A random number.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system has a source of randomness")
}
