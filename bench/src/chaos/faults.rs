//! Which faults come when; pure.

use std::time::Duration;

/// What is done to Mainstay or to a server of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KillServer(usize),
    KillShim(usize),
    /// The server is stopped by a signal for a while.
    FreezeServer(usize),
    /// `stop`, then `start`.
    StopServer(usize),
    KillDaemon,
    /// Five daemons are killed within three seconds.
    KillDaemons,
    FreezeDaemon,
    KillHolder,
    /// Holder and daemon at the same time.
    KillBoth,
    Reload,
    Update,
    WipeRunDirectory,
}

impl Fault {
    /// Whether it may cut connections of clients to the daemon.
    pub(super) fn cuts(self) -> bool {
        match self {
            Self::KillDaemon | Self::KillDaemons | Self::KillBoth | Self::FreezeDaemon => true,
            Self::KillServer(_)
            | Self::KillShim(_)
            | Self::FreezeServer(_)
            | Self::StopServer(_)
            | Self::KillHolder
            | Self::Reload
            | Self::Update
            | Self::WipeRunDirectory => false,
        }
    }
}

/// The same numbers for the same seed, on every machine: `SplitMix64`.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % limit).unwrap_or_default()
    }
}

/// The next fault, and how long after the one before it.
pub(super) fn next(random: &mut Random, servers: usize) -> (Duration, Fault) {
    let pause = Duration::from_millis(300 + u64::try_from(random.below(2700)).unwrap_or_default());
    let server = random.below(servers);
    let fault = match random.below(20) {
        0..=3 => Fault::KillServer(server),
        4 => Fault::KillShim(server),
        5 | 6 => Fault::FreezeServer(server),
        7 | 8 => Fault::StopServer(server),
        9 | 10 => Fault::KillDaemon,
        11 => Fault::KillDaemons,
        12 => Fault::FreezeDaemon,
        13 => Fault::KillHolder,
        14 => Fault::KillBoth,
        15..=17 => Fault::Reload,
        18 => Fault::Update,
        _ => Fault::WipeRunDirectory,
    };
    (pause, fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_story() {
        let story = |seed| {
            let mut random = Random::new(seed);
            (0..50).map(|_| next(&mut random, 2)).collect::<Vec<_>>()
        };
        assert_eq!(story(7), story(7));
        assert_ne!(story(7), story(8));
        assert!(story(7).iter().any(|(_, fault)| fault.cuts()));
    }
}
