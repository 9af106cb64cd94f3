//! Servers as clients see them, and what these need of the daemon. Each server knows the driver that supervises it, and
//! no other part: what is about runs of single sessions goes through a channel ([`RunRequestSender`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use mainstay_api::EventRecord;
use mainstay_core::supervisor::Event;
use mainstay_core::{ServerName, SessionRunKey};
use mainstay_proxy::{
    Decision, Identity, LastLine, Ports, Report, RunOwner, ServerHandle, Servers, SessionClock,
    SessionIds, SessionStore, Settings, StreamChange,
};
use tokio::sync::{mpsc, oneshot};

use crate::clock;
use crate::driver::Message;
use crate::run_requests::RunRequestSender;
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
    requests: RunRequestSender,
    /// What an earlier daemon stored, until its servers are recovered.
    recovered: Arc<Mutex<RecoveredState>>,
}

impl Gateway {
    pub(crate) fn new(
        event_log: EventLog,
        store: Arc<dyn SessionStore>,
        recovered: RecoveredState,
        ids: SessionIds,
        requests: RunRequestSender,
    ) -> Self {
        Self {
            servers: Arc::default(),
            store,
            clock: SessionClock::resumed(recovered.clock, clock::now()),
            ids,
            event_log,
            rate_limit: Arc::default(),
            requests,
            recovered: Arc::new(Mutex::new(recovered)),
        }
    }

    /// Adds a server that the driver with this inbox supervises.
    pub(crate) fn add(
        &self,
        name: &ServerName,
        settings: Settings,
        driver: mpsc::Sender<Message>,
    ) -> ServerHandle {
        let is_own = |(server, _): &mut (String, _)| server == name.as_str();
        let copy = self.recovered().copies.extract_if(.., is_own).next();
        let copy = copy.map(|(_, copy)| copy);
        let port = Arc::new(DriverPort {
            server: name.clone(),
            driver,
            requests: self.requests.clone(),
            event_log: self.event_log.clone(),
            rate_limit: Arc::clone(&self.rate_limit),
        });
        let asked = Arc::clone(&port);
        let ports = Ports {
            store: Arc::clone(&self.store),
            report: Arc::new(move |report| port.report(report)),
            last_line: Arc::new(move |owner| asked.last_line(owner)),
            identity: identity(),
            clock: self.clock,
            ids: self.ids.clone(),
        };
        let server = ServerHandle::new(name.as_str(), settings, ports, copy.as_deref());
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
                self.store.append_to_journal(&key, StreamChange::Over);
            }
        }
    }

    /// Ends a session.
    pub(crate) fn close(&self, server: &ServerName, session: &str) {
        if let Some(server) = self.servers.get(server.as_str()) {
            server.close(session);
        }
    }

    /// Ends expired sessions, and stops idle runs of single sessions.
    pub(crate) fn sweep(&self) {
        self.servers.all().iter().for_each(ServerHandle::sweep);
    }

    /// Notes when sessions were last used.
    pub(crate) fn save_last_used(&self) {
        self.servers.all().iter().for_each(ServerHandle::save_last_used);
    }

    pub(crate) fn sessions(&self) -> usize {
        self.servers.all().iter().map(ServerHandle::session_count).sum()
    }

    fn recovered(&self) -> MutexGuard<'_, RecoveredState> {
        mainstay_core::lock(&self.recovered)
    }
}

/// The name and version that Mainstay sends to servers.
pub(crate) fn identity() -> Identity {
    Identity { name: "mainstay".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Connects a server with the drivers of its runs and with the event log.
struct DriverPort {
    server: ServerName,
    /// The driver of the run that all sessions share.
    driver: mpsc::Sender<Message>,
    /// Reaches the drivers of other runs.
    requests: RunRequestSender,
    event_log: EventLog,
    rate_limit: Arc<RateLimit>,
}

impl DriverPort {
    fn report(&self, report: Report) {
        match report {
            Report::StartSessionRun(session) => self.requests.start(self.key(session)),
            Report::StopSessionRun(session, why) => self.requests.stop(self.key(session), why),
            Report::Demand(owner) => self.send(owner, Event::Demand.into()),
            Report::Unreachable(owner, generation) => {
                self.send(owner, Event::Unreachable { generation }.into());
            }
            Report::Observe(owner, generation) => {
                self.send(owner, Event::Observe { generation }.into());
            }
            Report::Decision(decision) => self.record(decision),
        }
    }

    /// For messages that are repeated with every request: they may be lost while the driver is busy.
    fn send(&self, owner: RunOwner, message: Message) {
        match owner {
            Some(session) => self.requests.message(self.key(session), message),
            None => drop(self.driver.try_send(message)),
        }
    }

    fn last_line(&self, owner: RunOwner) -> LastLine {
        let (reply, line) = oneshot::channel();
        self.send(owner, Message::LastLine(reply));
        Box::pin(async move { line.await.ok().flatten() })
    }

    fn record(&self, decision: Decision) {
        let Decision { server, run, cause, detail } = decision;
        tracing::debug!(server, run, cause, detail, "request");
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

    fn key(&self, session: Arc<str>) -> SessionRunKey {
        SessionRunKey { server: self.server.clone(), session }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver;
    use crate::run_requests::{self, RunRequest};

    #[tokio::test]
    async fn what_is_about_the_run_of_a_session_reaches_only_the_driver_of_that_run() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, mut shared) = driver::inbox();
        let (requests, mut receiver) = run_requests::channel();
        let port = DriverPort {
            server: "time".parse().unwrap(),
            driver: sender,
            requests,
            event_log: EventLog::open(&dir.path().join("events.db")).unwrap(),
            rate_limit: Arc::default(),
        };
        let own = || Some(Arc::from("0123456789abcdef"));
        port.report(Report::Demand(own()));
        let RunRequest::Message(key, message) = receiver.next().await else { panic!() };
        assert_eq!(key.run_name().as_str(), "time-0123456789abcdef");
        assert!(matches!(message, Message::Event(Event::Demand)), "{message:?}");
        port.report(Report::Unreachable(own(), 3));
        let RunRequest::Message(_, message) = receiver.next().await else { panic!() };
        let is_meant = matches!(message, Message::Event(Event::Unreachable { generation: 3 }));
        assert!(is_meant, "{message:?}");
        let line = port.last_line(own());
        let RunRequest::Message(_, Message::LastLine(reply)) = receiver.next().await else {
            panic!()
        };
        reply.send(Some("last".to_owned())).unwrap();
        assert_eq!(line.await.as_deref(), Some("last"));
        assert!(shared.try_recv().is_err(), "the shared run is not concerned");

        port.report(Report::Demand(None));
        assert!(matches!(shared.recv().await, Some(Message::Event(Event::Demand))));
        // A driver that does not answer any more has no line.
        let line = port.last_line(None);
        drop(shared);
        assert_eq!(line.await, None);
    }
}
