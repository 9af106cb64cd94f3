//! What is known of one server's container.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::{ContainerSpec, Exit, OnStop, RunId, ServerName, ServerSpec, Transport};

use super::api::Inspected;
use super::host::Host;
use super::ownership::Need;
use super::pump::{Past, Pump, Stdout};
use super::records::Record;
use super::watch::Watch;
use crate::discover::Address;
use crate::{Found, FoundState, RunKey};

/// A server that is, was or will be run in a container.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: ServerName,
    /// Held by whoever changes something about the container.
    pub(crate) busy: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

/// What is known.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) host: Arc<Host>,
    /// Which engine has its container. Another one behind the same address knows nothing of it.
    pub(crate) engine: Option<String>,
    pub(crate) container: Option<String>,
    pub(crate) digest: String,
    pub(crate) watch: Watch,
    /// When the last run was started, in the engine's words; empty until that is known.
    pub(crate) started_at: String,
    pub(crate) ports: Ports,
    pub(crate) pump: Option<Arc<Pump>>,
    pub(crate) past: Past,
    /// The last words of the last run that ended.
    pub(crate) last_stderr: Vec<u8>,
    pub(crate) stdout: Stdout,
    pub(crate) respect: bool,
    /// An end that has not been told in full: its last lines are awaited, or who wanted it.
    pub(crate) unsettled: Option<(RunId, Exit)>,
    /// An end that was noticed before anybody could be told.
    pub(crate) unseen: Option<(RunId, Exit)>,
    /// A container that is gone and may have been removed.
    pub(crate) lost: Option<String>,
    /// Whether it was told that the engine is away.
    pub(crate) away: bool,
    /// Why, as it was told last.
    pub(crate) away_why: Option<String>,
    /// Whether somebody removed the container.
    pub(crate) removed: bool,
}

/// Where the ports of a container are on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ports {
    /// Where they were published, by what they are inside; that changes with every start, and when the container
    /// is connected to its network again.
    Published(HashMap<u16, u16>),
    /// It has the network of the machine, so its ports are the machine's.
    Same,
}

impl Ports {
    pub(crate) fn outside(&self, inside: u16) -> Option<u16> {
        match self {
            Self::Published(ports) => ports.get(&inside).copied(),
            Self::Same => Some(inside),
        }
    }

    /// Takes in where ports are published now. True if this one is published elsewhere than before.
    pub(crate) fn update(&mut self, inside: u16, now: &HashMap<u16, u16>) -> bool {
        let Self::Published(ports) = self else { return false };
        // One that is not published at the moment may be in a moment.
        let moved = now.get(&inside).is_some_and(|outside| ports.get(&inside) != Some(outside));
        if moved {
            ports.clone_from(now);
        }
        moved
    }
}

impl Server {
    /// A server that has no container yet.
    pub(crate) fn new(name: ServerName, host: Arc<Host>) -> Self {
        let state = State {
            host,
            engine: None,
            container: None,
            digest: String::new(),
            watch: Watch::idle(RunId::default()),
            started_at: String::new(),
            ports: Ports::Published(HashMap::new()),
            pump: None,
            past: Past::default(),
            last_stderr: Vec::new(),
            stdout: Stdout::Log,
            respect: false,
            unsettled: None,
            unseen: None,
            lost: None,
            away: false,
            away_why: None,
            removed: false,
        };
        Self { name, busy: tokio::sync::Mutex::default(), state: Mutex::new(state) }
    }

    /// A server as an earlier daemon left it.
    pub(crate) fn recorded(name: ServerName, host: Arc<Host>, record: Record) -> Self {
        let server = Self::new(name, host);
        {
            let mut state = server.state();
            state.watch = Watch::recorded(record.run, record.started_at.clone(), record.over);
            state.engine = Some(record.engine);
            state.container = Some(record.container);
            state.digest = record.digest;
            state.started_at = record.started_at;
            state.stdout = Stdout::of(record.stdio);
            state.respect = record.respect;
        }
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }

    /// What it needs of the containers that were created for it. One engine may be reached at several
    /// addresses, so where they are does not matter.
    pub(crate) fn need(&self) -> Need {
        let Ok(_idle) = self.busy.try_lock() else { return Need::Unknown };
        let state = self.state();
        match &state.container {
            Some(container) => Need::Container(container.clone()),
            None if state.removed => Need::Nothing,
            // Its container may be back with its engine; the next start decides.
            None => Need::Unknown,
        }
    }

    /// What has become of its run, as far as that is known. One whose end has not been told in full is
    /// still there; one that ended before anybody could be told is told with this.
    pub(crate) fn found(&self) -> Option<Found> {
        let mut state = self.state();
        if let Some((run, exit)) = state.unseen.take() {
            return Some(Found { key: self.key(run), state: FoundState::Ended(exit) });
        }
        let run = state.watch.run().or(state.unsettled.map(|(run, _)| run))?;
        let found = if state.away {
            FoundState::Unknown
        } else {
            FoundState::Alive {
                pid: None,
                container: state.container.clone(),
                age: age(&state.started_at),
            }
        };
        Some(Found { key: self.key(run), state: found })
    }

    pub(crate) fn key(&self, run: RunId) -> RunKey {
        RunKey::new(self.name.clone(), run)
    }
}

/// How long ago something was, in the words of an engine on the same clock.
fn age(started_at: &str) -> Duration {
    let since = |at: Timestamp| Timestamp::now().duration_since(at).try_into().ok();
    started_at.parse().ok().and_then(since).unwrap_or_default()
}

impl State {
    /// The server is run at another engine from now on; what it had at the old one is left to be swept.
    pub(crate) fn move_to(&mut self, host: Arc<Host>) {
        if self.host.address != host.address {
            self.host = host;
            self.engine = None;
            self.lose_container();
        }
    }

    /// Its container is no more, or no longer its own.
    pub(crate) fn lose_container(&mut self) {
        self.container = None;
        self.lost = None;
        self.pump = None;
        self.past = Past::default();
        self.watch = Watch::idle(self.watch.last());
    }

    /// Takes in how the server is to be run.
    pub(crate) fn describe(&mut self, spec: &ServerSpec, container: &ContainerSpec) {
        self.stdout = Stdout::of(container.transport == Transport::Stdio);
        self.respect = spec.restart.on_stop == OnStop::Respect;
        self.ports = match container.network.as_deref() {
            Some("host") => Ports::Same,
            Some(_) | None => Ports::Published(HashMap::new()),
        };
    }

    /// Takes in what an inspection says about the beginning of a run.
    pub(crate) fn begin(&mut self, inspected: &Inspected) {
        self.started_at.clone_from(&inspected.seen.started_at);
        if let Ports::Published(ports) = &mut self.ports {
            ports.clone_from(&inspected.ports);
        }
    }

    /// What the next daemon has to know; nothing if there is no container.
    pub(crate) fn record(&self) -> Option<Record> {
        Some(Record {
            address: self.host.address.to_string(),
            engine: self.engine.clone()?,
            container: self.container.clone()?,
            digest: self.digest.clone(),
            run: self.watch.last(),
            started_at: self.started_at.clone(),
            over: self.watch.run().is_none(),
            stdio: self.stdout == Stdout::Protocol,
            respect: self.respect,
        })
    }

    /// Whether its container is at another engine than that one.
    pub(crate) fn is_elsewhere(&self, engine: &str) -> bool {
        self.engine.as_deref().is_some_and(|pinned| pinned != engine)
    }

    /// Whether its container is that one, or was when it was last seen, at that address.
    pub(crate) fn is_in(&self, address: &Address, container: &str) -> bool {
        let own = self.container.as_ref().or(self.lost.as_ref());
        own.is_some_and(|own| own == container) && self.host.address == *address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_moved_only_when_it_is_published_elsewhere() {
        let check = |mut ports: Ports, now: &[(u16, u16)], expected| {
            assert_eq!(ports.update(80, &now.iter().copied().collect()), expected, "{now:?}");
            ports.outside(80)
        };
        let published = || Ports::Published(HashMap::from([(80, 4001)]));
        assert_eq!(check(published(), &[(80, 4002)], true), Some(4002));
        assert_eq!(check(published(), &[(80, 4001)], false), Some(4001));
        assert_eq!(check(published(), &[], false), Some(4001));
        assert_eq!(check(Ports::Same, &[(80, 4002)], false), Some(80));
    }
}
