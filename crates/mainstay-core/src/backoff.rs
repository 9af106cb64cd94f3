//! Delays before another attempt.

use std::time::Duration;

/// The delay after `doublings` attempts that failed: `first`, then twice as long each time, and never more than `cap`.
///
/// ```
/// # use std::time::Duration;
/// let delay = |doublings| {
///     mainstay_core::backoff(Duration::from_secs(5), doublings, Duration::from_secs(60)).as_secs()
/// };
/// assert_eq!([0, 1, 2, 3, 4, u32::MAX].map(delay), [5, 10, 20, 40, 60, 60]);
/// ```
pub fn backoff(first: Duration, doublings: u32, cap: Duration) -> Duration {
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(cap)
}

/// A seedable source of random delays (splitmix64), so that servers that failed together are not restarted
/// at the same moment, and tests are deterministic.
#[derive(Debug, Clone, PartialEq)]
pub struct Jitter(u64);

impl Jitter {
    /// The same seed gives the same delays.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The nominal delay plus up to a tenth of it.
    pub fn stretch(&mut self, nominal: Duration) -> Duration {
        nominal.saturating_add(self.up_to(nominal / 10))
    }

    /// A delay between zero and the limit.
    pub fn up_to(&mut self, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let scaled = (u128::from(self.next()) * (u128::from(limit) + 1)) >> 64;
        Duration::from_nanos(u64::try_from(scaled).unwrap_or(limit))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_nothing_and_a_tenth_and_is_repeatable() {
        let nominal = Duration::from_secs(20);
        let draw = |seed| {
            let mut jitter = Jitter::new(seed);
            (0..1000).map(|_| jitter.stretch(nominal)).collect::<Vec<_>>()
        };
        let delays = draw(7);
        assert!(delays.iter().all(|d| (nominal..=nominal * 11 / 10).contains(d)));
        assert!(delays.iter().any(|d| *d < nominal * 102 / 100));
        assert!(delays.iter().any(|d| *d > nominal * 108 / 100));
        assert_eq!(delays, draw(7));
        assert_ne!(delays, draw(8));
        assert_eq!(Jitter::new(7).stretch(Duration::ZERO), Duration::ZERO);
        assert_eq!(Jitter::new(7).stretch(Duration::MAX), Duration::MAX);
    }
}
