//! Which faults come when; pure.

use std::time::Duration;

use crate::random::Random;

/// What is done to Mainstay, to a server of it, or to what they stand on.
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
    /// The disk of the state directory is full for a while, in which the server is killed and to be stopped.
    FillDisk(usize),
    /// The same, but the daemon is killed.
    FillDiskAndKillDaemon,
    /// Names are resolved slowly for a while, and all connections to the server that is reached by a name are cut.
    SlowResolver,
    KillEngine,
    FreezeEngine,
    /// The process in a container.
    KillContainer,
    /// A container is removed behind Mainstay's back, and with it its server.
    RemoveContainer,
}

impl Fault {
    /// Whether it may cut connections of clients to the daemon.
    pub(super) fn cuts(self) -> bool {
        match self {
            Self::KillDaemon | Self::KillDaemons | Self::KillBoth | Self::FillDiskAndKillDaemon => {
                true
            }
            Self::FreezeDaemon
            | Self::KillServer(_)
            | Self::KillShim(_)
            | Self::FreezeServer(_)
            | Self::StopServer(_)
            | Self::KillHolder
            | Self::Reload
            | Self::Update
            | Self::WipeRunDirectory
            | Self::FillDisk(_)
            | Self::SlowResolver
            | Self::KillEngine
            | Self::FreezeEngine
            | Self::KillContainer
            | Self::RemoveContainer => false,
        }
    }

    /// Whether clients of other servers must not even be delayed.
    pub(super) fn spares_others(self) -> bool {
        match self {
            Self::KillServer(_)
            | Self::KillShim(_)
            | Self::FreezeServer(_)
            | Self::StopServer(_)
            | Self::FillDisk(_)
            | Self::SlowResolver
            | Self::KillEngine
            | Self::FreezeEngine
            | Self::KillContainer
            | Self::RemoveContainer => true,
            Self::KillDaemon
            | Self::KillDaemons
            | Self::FreezeDaemon
            | Self::KillHolder
            | Self::KillBoth
            | Self::Reload
            | Self::Update
            | Self::WipeRunDirectory
            | Self::FillDiskAndKillDaemon => false,
        }
    }
}

/// All faults in a random order, then all of them in another one, and so on.
#[derive(Debug)]
pub(super) struct Faults {
    random: Random,
    servers: usize,
    has_engine: bool,
    round: Vec<Fault>,
}

impl Faults {
    /// The number of local servers, and whether there is a container engine.
    pub(super) fn new(seed: u64, servers: usize, has_engine: bool) -> Self {
        Self { random: Random::new(seed), servers, has_engine, round: Vec::new() }
    }

    /// The next fault, and how long after the one before it.
    pub(super) fn next(&mut self) -> (Duration, Fault) {
        let pause = u64::try_from(self.random.below(1800)).unwrap_or_default();
        let fault = loop {
            match self.round.len() {
                0 => self.round = round(self.servers, self.has_engine),
                left => break self.round.swap_remove(self.random.below(left)),
            }
        };
        (Duration::from_millis(200 + pause), fault)
    }
}

/// Each fault at least once.
fn round(servers: usize, has_engine: bool) -> Vec<Fault> {
    use Fault as F;
    let of_servers =
        [F::KillServer, F::KillServer, F::KillShim, F::FreezeServer, F::StopServer, F::FillDisk];
    let of_daemon = [
        F::KillDaemon,
        F::KillDaemon,
        F::KillDaemons,
        F::FreezeDaemon,
        F::KillHolder,
        F::KillBoth,
        F::Reload,
        F::Reload,
        F::Update,
        F::WipeRunDirectory,
        F::FillDiskAndKillDaemon,
        F::SlowResolver,
    ];
    let of_engine = [F::KillEngine, F::FreezeEngine, F::KillContainer, F::RemoveContainer];
    let mut round: Vec<Fault> =
        of_servers.iter().flat_map(|fault| (0..servers).map(fault)).collect();
    round.extend(of_daemon);
    round.extend(of_engine.into_iter().filter(|_| has_engine));
    round
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_story() {
        let story = |seed, has_engine| {
            let mut faults = Faults::new(seed, 2, has_engine);
            (0..50).map(|_| faults.next()).collect::<Vec<_>>()
        };
        assert_eq!(story(7, true), story(7, true));
        assert_ne!(story(7, true), story(8, true));
        assert!(story(7, true).iter().any(|(_, fault)| *fault == Fault::KillEngine));
        assert!(story(7, false).iter().all(|(_, fault)| *fault != Fault::KillEngine));
    }

    #[test]
    fn each_fault_comes_in_each_round() {
        let mut faults = Faults::new(1, 2, true);
        let all = round(2, true);
        let mut played: Vec<Fault> = (0..2 * all.len()).map(|_| faults.next().1).collect();
        for fault in all.iter().chain(&all) {
            let at = played.iter().position(|played| played == fault).unwrap();
            played.swap_remove(at);
        }
        assert_eq!(played, []);
    }
}
