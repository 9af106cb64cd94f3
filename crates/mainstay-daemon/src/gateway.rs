//! Where supervision and proxy meet: a hub for every server, and what hubs need of the daemon.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use mainstay_api::EventRecord;
use mainstay_core::{ServerName, ServerSpec};
use mainstay_proxy::{
    Availability, Decision, EventSink, Hub, Hubs, Identity, Isolation, LastLine, Ports,
    SessionClock, SessionIds, Settings, StateStore, Stderr, StreamNews,
};
use tokio::sync::watch;

use crate::clock;
use crate::registry::{Registry, WeakRegistry};
use crate::state::event_log::EventLog;
use crate::state::event_log::RateLimit as Flood;
use crate::state::session_store::RecoveredState as Kept;

/// All hubs, and what they are made with.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) hubs: Arc<Hubs>,
    ports: Ports,
    isolated: Arc<Isolated>,
    /// What an earlier daemon kept, until its servers are taken up.
    kept: Arc<Mutex<Kept>>,
}

impl Gateway {
    pub(crate) fn new(
        event_log: EventLog,
        state_store: Arc<dyn StateStore>,
        kept: Kept,
        ids: SessionIds,
    ) -> Self {
        let isolated = Arc::new(Isolated::default());
        let ports = Ports {
            state_store,
            event_sink: Arc::new(Events {
                event_log,
                registry: Arc::clone(&isolated),
                flood: Flood::default(),
            }),
            isolation: Arc::clone(&isolated) as Arc<dyn Isolation>,
            stderr: Arc::clone(&isolated) as Arc<dyn Stderr>,
            identity: identity(),
            clock: SessionClock::resumed(kept.clock),
            ids,
        };
        Self { hubs: Arc::default(), ports, isolated, kept: Arc::new(Mutex::new(kept)) }
    }

    /// Runs of single sessions are had from here.
    pub(crate) fn provide_from(&self, registry: &Registry) {
        // It is called once.
        self.isolated.0.set(registry.downgrade()).ok();
    }

    /// The hub of a server that is taken up.
    pub(crate) fn hub(&self, spec: &ServerSpec) -> Arc<Hub> {
        let name = spec.name.as_str();
        let copy = self.kept().copies.extract_if(.., |(server, _)| server == name).next();
        let copy = copy.map(|(_, copy)| copy);
        let hub = Hub::new(name, settings(spec), self.ports.clone(), copy.as_deref());
        self.hubs.insert(Arc::clone(&hub));
        hub
    }

    /// Takes up the sessions that clients had, when all servers are known, and then their streams, before
    /// any run is entered. Daemons before this one may still finish some of their requests.
    pub(crate) fn restore(&self, is_relayed: bool) {
        let (sessions, streams) = {
            let mut kept = self.kept();
            (std::mem::take(&mut kept.sessions), std::mem::take(&mut kept.streams))
        };
        let mut servers = HashMap::new();
        for record in sessions {
            match self.hubs.get(&record.server) {
                Some(hub) => {
                    servers.insert(record.id.clone(), Arc::clone(&hub));
                    hub.restore(record);
                }
                // Says that a session has ended (see `Hub::end_session`).
                None if record.server.is_empty() => {}
                None => self.ports.state_store.remove(&record.id),
            }
        }
        for record in streams {
            let key = record.key.clone();
            let hub = servers.get(&*key.session);
            let recovered = hub.is_some_and(|hub| self.hubs.recover(hub, record, is_relayed));
            if !recovered {
                self.ports.state_store.note(&key, StreamNews::Over);
            }
        }
    }

    /// Ends a session.
    pub(crate) fn close(&self, server: &ServerName, session: &str) {
        if let Some(hub) = self.hubs.get(server.as_str()) {
            hub.close(session);
        }
    }

    /// Ends the sessions that nobody uses any more.
    pub(crate) fn sweep(&self) {
        self.hubs.all().iter().for_each(|hub| hub.sweep());
    }

    /// Notes when sessions were last used.
    pub(crate) fn note_use(&self) {
        self.hubs.all().iter().for_each(|hub| hub.note_use());
    }

    pub(crate) fn sessions(&self) -> usize {
        self.hubs.all().iter().map(|hub| hub.session_count()).sum()
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        mainstay_core::lock(&self.kept)
    }
}

/// Who we are, toward servers.
pub(crate) fn identity() -> Identity {
    Identity { name: "mainstay".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// What a spec says about sessions.
pub(crate) fn settings(spec: &ServerSpec) -> Settings {
    let proxy = &spec.proxy;
    Settings {
        hold: proxy.hold,
        replay: proxy.replay.clone(),
        quiet_restart: proxy.quiet_restart,
        isolate: proxy.isolate,
        isolate_idle: proxy.isolate_idle,
    }
}

/// Writes to the event log what was decided for requests, and tells who could not be reached or is
/// wanted although it is down.
struct Events {
    event_log: EventLog,
    registry: Arc<Isolated>,
    flood: Flood,
}

impl EventSink for Events {
    fn record_decision(&self, decision: Decision) {
        let Decision { server, run, cause, detail } = decision;
        tracing::debug!(server, run, cause, detail, "request");
        if cause == "refused"
            && let (Some(registry), Ok(name)) = (self.registry.registry(), server.parse())
        {
            registry.demand(&name);
        }
        let Some(unsaid) = self.flood.admit(&server, cause, clock::now()) else { return };
        let detail = match unsaid {
            0 => detail,
            unsaid => format!("{detail} ({unsaid} more like it were not recorded)"),
        };
        self.event_log.record(EventRecord {
            at: clock::wall(),
            server: server.parse().ok(),
            run,
            event: EventRecord::REQUEST.to_owned(),
            cause: Some(cause.to_owned()),
            detail,
        });
    }

    fn unreachable(&self, server: &str, generation: u64) {
        if let (Some(registry), Ok(name)) = (self.registry.registry(), server.parse()) {
            registry.unreachable(&name, generation);
        }
    }
}

/// Runs that belong to one session each.
#[derive(Default)]
struct Isolated(OnceLock<WeakRegistry>);

impl Isolated {
    fn registry(&self) -> Option<Registry> {
        self.0.get().and_then(WeakRegistry::upgrade)
    }
}

impl Isolation for Isolated {
    fn provide(&self, server: &str, session: &str) -> watch::Receiver<Availability> {
        let name: Option<ServerName> = server.parse().ok();
        let provided =
            name.zip(self.registry()).and_then(|(name, registry)| registry.isolate(&name, session));
        // A daemon that ends, or a server that has just been removed, has no more runs.
        provided.unwrap_or_else(|| watch::channel(Availability::Removed).1)
    }

    fn find(&self, server: &str, session: &str) -> Option<watch::Receiver<Availability>> {
        self.registry()?.resume_session_run(&server.parse().ok()?, session)
    }

    fn stop(&self, server: &str, session: &str) {
        if let (Some(registry), Ok(name)) = (self.registry(), server.parse()) {
            registry.stop_session_run(&name, session);
        }
    }

    fn release(&self, server: &str, session: &str) {
        if let (Some(registry), Ok(name)) = (self.registry(), server.parse()) {
            registry.release(&name, session);
        }
    }
}

impl Stderr for Isolated {
    fn last_line(&self, server: &str) -> LastLine {
        let found = self.registry().zip(server.parse::<ServerName>().ok());
        Box::pin(async move {
            let (registry, name) = found?;
            registry.last_line(&name).await
        })
    }
}
