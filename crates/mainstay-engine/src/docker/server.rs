//! The state of one server's container.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::{ContainerSpec, Exit, OnStop, RunId, ServerName, ServerSpec, Transport};
use mainstay_hold::container::StdinPipe;
use tokio::time::Instant;

use super::api::Inspected;
use super::host::{Host, HostRequest};
use super::ownership::Need;
use super::pump::{Pump, Stdout, StreamTails};
use super::records::Record;
use super::watch::Watch;
use crate::discover::Address;
use crate::{Found, FoundState, RunKey};

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: ServerName,
    /// Held while the container is created, started or removed.
    pub(crate) busy: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) host: Arc<Host>,
    /// The engine that has its container. Another engine at the same address does not know the container.
    pub(crate) engine_id: Option<String>,
    pub(crate) container: Option<String>,
    pub(crate) digest: String,
    pub(crate) watch: Watch,
    /// When the last run was started, as the engine writes it; empty until that is known.
    pub(crate) started_at: String,
    pub(crate) ports: Ports,
    /// The port inside the container at which it speaks HTTP.
    pub(crate) http_port: Option<u16>,
    pub(crate) pump: Option<Arc<Pump>>,
    /// The input of the present run, if it is killed because it does not read.
    pub(crate) stdin: Option<(RunId, StdinPipe)>,
    pub(crate) stream_tails: StreamTails,
    /// The last standard error of the last run that ended.
    pub(crate) last_stderr: Vec<u8>,
    pub(crate) stdout: Stdout,
    pub(crate) respect_stop: bool,
    /// A run that has exited, but is not reported as gone yet: its last lines are being read, or its cause may
    /// become known.
    pub(crate) unconfirmed_exit: Option<(RunId, Exit)>,
    /// An exit before the first list, which reports it.
    pub(crate) unreported_exit: Option<(RunId, Exit)>,
    /// A container that is gone and may have been removed.
    pub(crate) missing_container: Option<String>,
    /// Whether [`News::Away`](crate::News::Away) was reported, and for which reason.
    pub(crate) away: bool,
    pub(crate) away_reason: Option<String>,
    /// Whether someone removed the container.
    pub(crate) removed: bool,
}

/// Where the ports of a container are on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ports {
    /// The published ports, by the port inside the container. They change with every start, and when the container
    /// is connected to its network again.
    Published(HashMap<u16, u16>),
    /// The container is in the network of the machine.
    HostNetwork,
}

impl Ports {
    pub(crate) fn outside(&self, inside: u16) -> Option<u16> {
        match self {
            Self::Published(ports) => ports.get(&inside).copied(),
            Self::HostNetwork => Some(inside),
        }
    }

    /// Updates the published ports. Returns whether this one has moved.
    pub(crate) fn update(&mut self, inside: u16, now: &HashMap<u16, u16>) -> bool {
        let Self::Published(ports) = self else { return false };
        // A port that is not published now may be published in a moment.
        let moved = now.get(&inside).is_some_and(|outside| ports.get(&inside) != Some(outside));
        if moved {
            ports.clone_from(now);
        }
        moved
    }
}

impl Server {
    /// A server without a container.
    pub(crate) fn new(name: ServerName, host: Arc<Host>) -> Self {
        let state = State {
            host,
            engine_id: None,
            container: None,
            digest: String::new(),
            watch: Watch::idle(RunId::default()),
            started_at: String::new(),
            ports: Ports::Published(HashMap::new()),
            http_port: None,
            pump: None,
            stdin: None,
            stream_tails: StreamTails::default(),
            last_stderr: Vec::new(),
            stdout: Stdout::Log,
            respect_stop: false,
            unconfirmed_exit: None,
            unreported_exit: None,
            missing_container: None,
            away: false,
            away_reason: None,
            removed: false,
        };
        Self { name, busy: tokio::sync::Mutex::default(), state: Mutex::new(state) }
    }

    /// A server as an earlier daemon recorded it.
    pub(crate) fn recorded(name: ServerName, host: Arc<Host>, record: Record) -> Self {
        let server = Self::new(name, host);
        {
            let mut state = server.state();
            state.watch = Watch::recorded(record.run, record.started_at.clone(), record.over);
            state.engine_id = Some(record.engine);
            state.container = Some(record.container);
            state.digest = record.digest;
            state.started_at = record.started_at;
            state.stdout = Stdout::of(record.stdio);
            state.respect_stop = record.respect;
        }
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }

    /// Which of the containers that were created for it are needed. One engine may have several
    /// addresses, so the address does not matter.
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

    /// Its run, for the engine's list. A run whose exit is not confirmed yet counts as alive. An exit before the
    /// first list is reported here.
    pub(crate) fn found(&self) -> Option<Found> {
        let mut state = self.state();
        if let Some((run, exit)) = state.unreported_exit.take() {
            return Some(Found { key: self.key(run), state: FoundState::Ended(exit) });
        }
        let run = state.watch.run().or(state.unconfirmed_exit.map(|(run, _)| run))?;
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

    /// Asks the host to inspect the container at that time.
    pub(crate) fn inspect_at(&self, at: Instant) {
        let host = Arc::clone(&self.state().host);
        host.request(HostRequest::Inspect(self.name.clone(), at));
    }

    pub(crate) fn key(&self, run: RunId) -> RunKey {
        RunKey::new(self.name.clone(), run)
    }
}

/// The time since a timestamp of an engine on the same clock.
fn age(started_at: &str) -> Duration {
    let since = |at: Timestamp| Timestamp::now().duration_since(at).try_into().ok();
    started_at.parse().ok().and_then(since).unwrap_or_default()
}

impl State {
    /// Moves the server to another address. Its container at the old one is removed later.
    pub(crate) fn move_to(&mut self, host: Arc<Host>) {
        if self.host.address != host.address {
            self.host = host;
            self.engine_id = None;
            self.drop_container();
        }
    }

    /// Forgets the container.
    pub(crate) fn drop_container(&mut self) {
        self.container = None;
        self.missing_container = None;
        self.pump = None;
        self.stdin = None;
        self.stream_tails = StreamTails::default();
        self.watch = Watch::idle(self.watch.last());
    }

    pub(crate) fn apply_spec(&mut self, spec: &ServerSpec, container: &ContainerSpec) {
        self.stdout = Stdout::of(container.transport == Transport::Stdio);
        self.respect_stop = spec.restart.on_stop == OnStop::Respect;
        self.ports = match container.network.as_deref() {
            Some("host") => Ports::HostNetwork,
            Some(_) | None => Ports::Published(HashMap::new()),
        };
    }

    /// The exit of that run, if it is not confirmed yet.
    pub(crate) fn take_unconfirmed(&mut self, run: RunId) -> Option<Exit> {
        self.unconfirmed_exit.take_if(|(unconfirmed, _)| *unconfirmed == run).map(|(_, exit)| exit)
    }

    /// Stores what an inspection shows about the start of a run.
    pub(crate) fn run_started(&mut self, inspected: &Inspected) {
        self.started_at.clone_from(&inspected.state.started_at);
        if let Ports::Published(ports) = &mut self.ports {
            ports.clone_from(&inspected.ports);
        }
    }

    /// The record for the next daemon. None without a container.
    pub(crate) fn record(&self) -> Option<Record> {
        Some(Record {
            address: self.host.address.to_string(),
            engine: self.engine_id.clone()?,
            container: self.container.clone()?,
            digest: self.digest.clone(),
            run: self.watch.last(),
            started_at: self.started_at.clone(),
            over: self.watch.run().is_none(),
            stdio: self.stdout == Stdout::Protocol,
            respect: self.respect_stop,
        })
    }

    pub(crate) fn is_at_other_engine(&self, engine: &str) -> bool {
        self.engine_id.as_deref().is_some_and(|pinned| pinned != engine)
    }

    /// Whether this is its container, or was until it went missing.
    pub(crate) fn has_container(&self, address: &Address, container: &str) -> bool {
        let own = self.container.as_ref().or(self.missing_container.as_ref());
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
        assert_eq!(check(Ports::HostNetwork, &[(80, 4002)], false), Some(80));
    }
}
