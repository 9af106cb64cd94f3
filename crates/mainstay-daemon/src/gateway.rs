//! Servers as clients see them, and what these need of the daemon. Each server knows the driver that supervises it, and
//! no other part: requests for runs of single sessions go through a channel ([`SessionRunRequest`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use mainstay_api::EventRecord;
use mainstay_core::supervisor::Event;
use mainstay_core::{ServerName, ServerSpec};
use mainstay_proxy::{
    Decision, EventSink, Identity, Isolation, LastLine, Ports, Server, Servers, SessionClock,
    SessionIds, SessionStore, Settings, Stderr, StreamNews,
};
use tokio::sync::{mpsc, oneshot};

use crate::clock;
use crate::driver::Message;
use crate::state::event_log::{EventLog, RateLimit};
use crate::state::session_store::RecoveredState;

/// All servers as clients see them, and what these are made with.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) servers: Arc<Servers>,
    store: Arc<dyn SessionStore>,
    clock: SessionClock,
    ids: SessionIds,
    event_log: EventLog,
    rate_limit: Arc<RateLimit>,
    requests: mpsc::UnboundedSender<SessionRunRequest>,
    /// What an earlier daemon stored, until its servers are recovered.
    recovered: Arc<Mutex<RecoveredState>>,
}

impl Gateway {
    pub(crate) fn new(
        event_log: EventLog,
        store: Arc<dyn SessionStore>,
        recovered: RecoveredState,
        ids: SessionIds,
    ) -> (Self, SessionRunRequests) {
        let (requests, receiver) = mpsc::unbounded_channel();
        let gateway = Self {
            servers: Arc::default(),
            store,
            clock: SessionClock::resumed(recovered.clock, clock::now()),
            ids,
            event_log,
            rate_limit: Arc::default(),
            requests,
            recovered: Arc::new(Mutex::new(recovered)),
        };
        (gateway, receiver)
    }

    /// Adds a server that the driver with this inbox supervises.
    pub(crate) fn add(&self, spec: &ServerSpec, driver: mpsc::Sender<Message>) -> Server {
        let name = spec.name.as_str();
        let copy = self.recovered().copies.extract_if(.., |(server, _)| server == name).next();
        let copy = copy.map(|(_, copy)| copy);
        let port = Arc::new(DriverPort {
            server: spec.name.clone(),
            driver,
            requests: self.requests.clone(),
            event_log: self.event_log.clone(),
            rate_limit: Arc::clone(&self.rate_limit),
        });
        let ports = Ports {
            store: Arc::clone(&self.store),
            event_sink: Arc::clone(&port) as Arc<dyn EventSink>,
            isolation: Arc::clone(&port) as Arc<dyn Isolation>,
            stderr: port,
            identity: identity(),
            clock: self.clock,
            ids: self.ids.clone(),
        };
        let server = Server::new(name, settings(spec), ports, copy.as_deref());
        self.servers.insert(server.clone());
        server
    }

    /// Restores the sessions that clients had, when all servers are known, and then recovers their streams, before any
    /// run is attached. Daemons before this one may still finish some of their requests. `resume_run` continues the own
    /// run of a session, if that is alive.
    pub(crate) fn restore(&self, is_relayed: bool, resume_run: impl Fn(&ServerName, &str) -> bool) {
        let (sessions, mut streams) = {
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
                None => self.store.remove(&record.id),
            }
        }
        // In the order in which the requests were sent; those that were not sent come after them.
        streams.sort_by_key(|record| {
            let sent = record.sent.and_then(|sent| sent.line);
            (sent.is_none(), sent, record.key.number)
        });
        for record in streams {
            let key = record.key.clone();
            let server = servers.get(&*key.session);
            let is_recovered =
                server.is_some_and(|server| self.servers.recover(server, record, is_relayed));
            if !is_recovered {
                self.store.append_to_journal(&key, StreamNews::Over);
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
    pub(crate) fn save_last_used(&self) {
        self.servers.all().iter().for_each(Server::save_last_used);
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

/// What sessions with runs of their own need.
#[derive(Debug)]
pub(crate) enum SessionRunRequest {
    Start {
        server: ServerName,
        session: String,
    },
    /// The session continues without its run.
    Stop {
        server: ServerName,
        session: String,
    },
    /// The session has ended.
    Release {
        server: ServerName,
        session: String,
    },
}

pub(crate) type SessionRunRequests = mpsc::UnboundedReceiver<SessionRunRequest>;

/// Connects a server with its driver and with the event log.
struct DriverPort {
    server: ServerName,
    driver: mpsc::Sender<Message>,
    requests: mpsc::UnboundedSender<SessionRunRequest>,
    event_log: EventLog,
    rate_limit: Arc<RateLimit>,
}

impl DriverPort {
    /// For events that are repeated with every request: they may be lost while the driver is busy.
    fn report(&self, event: Event) {
        self.driver.try_send(event.into()).ok();
    }

    fn request(&self, request: SessionRunRequest) {
        // A daemon that is stopping starts and stops no runs.
        self.requests.send(request).ok();
    }
}

impl EventSink for DriverPort {
    fn record_decision(&self, decision: Decision) {
        let Decision { server, run, cause, detail } = decision;
        tracing::debug!(server, run, cause, detail, "request");
        if cause == "refused" {
            self.report(Event::Demand);
        }
        let Some(omitted) = self.rate_limit.admit(&server, cause, clock::now()) else { return };
        let detail = match omitted {
            0 => detail,
            omitted => format!("{detail} ({omitted} more like it were not recorded)"),
        };
        self.event_log.record(EventRecord {
            at: clock::wall(),
            server: Some(self.server.clone()),
            run,
            event: EventRecord::REQUEST.to_owned(),
            cause: Some(cause.to_owned()),
            detail,
        });
    }

    fn unreachable(&self, _: &str, generation: u64) {
        self.report(Event::Unreachable { generation });
    }
}

impl Isolation for DriverPort {
    fn start(&self, _: &str, session: &str) {
        let (server, session) = (self.server.clone(), session.to_owned());
        self.request(SessionRunRequest::Start { server, session });
    }

    fn stop(&self, _: &str, session: &str) {
        let (server, session) = (self.server.clone(), session.to_owned());
        self.request(SessionRunRequest::Stop { server, session });
    }

    fn release(&self, _: &str, session: &str) {
        let (server, session) = (self.server.clone(), session.to_owned());
        self.request(SessionRunRequest::Release { server, session });
    }
}

impl Stderr for DriverPort {
    fn last_line(&self, _: &str) -> LastLine {
        let (reply, line) = oneshot::channel();
        let driver = self.driver.clone();
        Box::pin(async move {
            driver.send(Message::LastLine(reply)).await.ok()?;
            line.await.ok().flatten()
        })
    }
}
