//! Random numbers that can be had again.

use std::time::Duration;

/// The same numbers for the same seed, on every machine: `SplitMix64`.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % limit).unwrap_or_default()
    }

    /// A time below `limit`, in whole milliseconds.
    pub(crate) fn time_below(&mut self, limit: Duration) -> Duration {
        let limit = usize::try_from(limit.as_millis()).unwrap_or(usize::MAX);
        Duration::from_millis(u64::try_from(self.below(limit)).unwrap_or_default())
    }
}
