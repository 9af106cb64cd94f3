//! Servers as clients see them, and what these need of the daemon. It does not know the registry: what servers ask of
//! that goes through a channel ([`GatewayRequest`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mainstay_api::EventRecord;
use mainstay_core::{ServerName, ServerSpec};
use mainstay_proxy::{
    Decision, EventSink, Identity, Isolation, LastLine, Ports, Server, Servers, SessionClock,
    SessionIds, SessionStore, Settings, Stderr, StreamNews,
};
use tokio::sync::{mpsc, oneshot};

use crate::clock;
use crate::state::event_log::{EventLog, RateLimit};
use crate::state::session_store::RecoveredState;

/// All servers as clients see them, and what these are made with.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) servers: Arc<Servers>,
    ports: Ports,
    /// What an earlier daemon stored, until its servers are recovered.
    recovered: Arc<Mutex<RecoveredState>>,
    /// How many requests that are repeated anyway wait for the registry.
    waiting: Arc<AtomicUsize>,
}

impl Gateway {
    pub(crate) fn new(
        event_log: EventLog,
        store: Arc<dyn SessionStore>,
        recovered: RecoveredState,
        ids: SessionIds,
    ) -> (Self, GatewayRequests) {
        let (requests, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let rate_limit = RateLimit::default();
        let outbox =
            Arc::new(Outbox { requests, waiting: Arc::clone(&waiting), event_log, rate_limit });
        let ports = Ports {
            store,
            event_sink: Arc::clone(&outbox) as Arc<dyn EventSink>,
            isolation: Arc::clone(&outbox) as Arc<dyn Isolation>,
            stderr: outbox,
            identity: identity(),
            clock: SessionClock::resumed(recovered.clock, clock::now()),
            ids,
        };
        let recovered = Arc::new(Mutex::new(recovered));
        (Self { servers: Arc::default(), ports, recovered, waiting }, receiver)
    }

    /// A request that is repeated anyway was handled.
    pub(crate) fn handled_repeated(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a server.
    pub(crate) fn add(&self, spec: &ServerSpec) -> Server {
        let name = spec.name.as_str();
        let copy = self.recovered().copies.extract_if(.., |(server, _)| server == name).next();
        let copy = copy.map(|(_, copy)| copy);
        let server = Server::new(name, settings(spec), self.ports.clone(), copy.as_deref());
        self.servers.insert(server.clone());
        server
    }

    /// Restores the sessions that clients had, when all servers are known, and then recovers their streams, before any
    /// run is attached. Daemons before this one may still finish some of their requests. `resume_run` continues the own
    /// run of a session, if that is alive.
    pub(crate) fn restore(&self, is_relayed: bool, resume_run: impl Fn(&ServerName, &str) -> bool) {
        let (sessions, streams) = {
            let mut recovered = self.recovered();
            (std::mem::take(&mut recovered.sessions), std::mem::take(&mut recovered.streams))
        };
        let mut servers = HashMap::new();
        for record in sessions {
            match self.servers.get(&record.server) {
                Some(server) => {
                    servers.insert(record.id.clone(), server.clone());
                    let name = record.server.parse().ok();
                    let resume_run =
                        |id: &str| name.as_ref().is_some_and(|name| resume_run(name, id));
                    server.restore(record, resume_run);
                }
                // Says that a session has ended.
                None if record.server.is_empty() => {}
                None => self.ports.store.remove(&record.id),
            }
        }
        for record in streams {
            let key = record.key.clone();
            let server = servers.get(&*key.session);
            let is_recovered =
                server.is_some_and(|server| self.servers.recover(server, record, is_relayed));
            if !is_recovered {
                self.ports.store.note(&key, StreamNews::Over);
            }
        }
    }

    /// Ends a session.
    pub(crate) fn close(&self, server: &ServerName, session: &str) {
        if let Some(server) = self.servers.get(server.as_str()) {
            server.close(session);
        }
    }

    /// Ends the sessions that nobody uses any more.
    pub(crate) fn sweep(&self) {
        self.servers.all().iter().for_each(Server::sweep);
    }

    /// Notes when sessions were last used.
    pub(crate) fn note_use(&self) {
        self.servers.all().iter().for_each(Server::note_use);
    }

    pub(crate) fn sessions(&self) -> usize {
        self.servers.all().iter().map(Server::session_count).sum()
    }

    fn recovered(&self) -> MutexGuard<'_, RecoveredState> {
        mainstay_core::lock(&self.recovered)
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

/// What servers ask of the registry.
#[derive(Debug)]
pub(crate) enum GatewayRequest {
    /// A session needs a run of its own.
    StartRun { server: ServerName, session: String },
    /// A session continues without its run.
    StopRun { server: ServerName, session: String },
    /// A session with a run of its own has ended.
    ReleaseRun { server: ServerName, session: String },
    /// A client wants a server that is down.
    Demand { server: ServerName },
    /// The run of that generation, which speaks HTTP, did not take a request.
    Unreachable { server: ServerName, generation: u64 },
    /// The last line that the server wrote to standard error.
    LastLine { server: ServerName, reply: oneshot::Sender<Option<String>> },
}

/// Where the registry receives what servers ask of it.
pub(crate) type GatewayRequests = mpsc::UnboundedReceiver<GatewayRequest>;

/// Beyond this many requests that were not handled yet, those that are repeated anyway are dropped.
const MAX_REPEATED_REQUESTS: usize = 1024;

/// Sends the requests of servers to the registry, and writes to the event log what was decided for calls.
struct Outbox {
    requests: mpsc::UnboundedSender<GatewayRequest>,
    waiting: Arc<AtomicUsize>,
    event_log: EventLog,
    rate_limit: RateLimit,
}

impl Outbox {
    fn send(&self, request: impl FnOnce(ServerName) -> GatewayRequest, server: &str) {
        if let Ok(name) = server.parse() {
            // A daemon that ends starts and stops nothing.
            self.requests.send(request(name)).ok();
        }
    }

    /// For requests that are made again and again: some of them may be lost.
    fn send_repeated(&self, request: impl FnOnce(ServerName) -> GatewayRequest, server: &str) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MAX_REPEATED_REQUESTS {
            self.send(request, server);
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl EventSink for Outbox {
    fn record_decision(&self, decision: Decision) {
        let Decision { server, run, cause, detail } = decision;
        tracing::debug!(server, run, cause, detail, "request");
        if cause == "refused" {
            self.send_repeated(|server| GatewayRequest::Demand { server }, &server);
        }
        let Some(unsaid) = self.rate_limit.admit(&server, cause, clock::now()) else { return };
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
        self.send_repeated(|server| GatewayRequest::Unreachable { server, generation }, server);
    }
}

impl Isolation for Outbox {
    fn start(&self, server: &str, session: &str) {
        let session = session.to_owned();
        self.send(|server| GatewayRequest::StartRun { server, session }, server);
    }

    fn stop(&self, server: &str, session: &str) {
        let session = session.to_owned();
        self.send(|server| GatewayRequest::StopRun { server, session }, server);
    }

    fn release(&self, server: &str, session: &str) {
        let session = session.to_owned();
        self.send(|server| GatewayRequest::ReleaseRun { server, session }, server);
    }
}

impl Stderr for Outbox {
    fn last_line(&self, server: &str) -> LastLine {
        let (reply, line) = oneshot::channel();
        self.send(|server| GatewayRequest::LastLine { server, reply }, server);
        Box::pin(async move { line.await.ok().flatten() })
    }
}
