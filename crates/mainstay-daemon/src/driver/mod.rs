//! The task of one server: reports events to its [`Supervisor`] and executes the actions.
//!
//! It never waits for anything long: what takes time runs in tasks, which report back as events. So `stop` and `rm` take
//! effect at once, whatever is in progress.

mod availability;
mod record;
mod tasks;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_core::supervisor::{Action, Connection, Event, InheritedRun};
use mainstay_core::{FoundState, News, RunId, RunKey, ServerName, Supervisor, Wanted};
use mainstay_hold::limits::REMOVE_ENTRIES;
use mainstay_proxy::{AttachedRun, Servers};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::clock;
use crate::engines::Engines;
use crate::entries::{Clients, Entries};
use crate::listen::{Access, Listener, Sockets};
use crate::random;
use crate::run_session::SessionFiles;
use crate::snapshot::{Session, Snapshot, Times};
use crate::startup::inherited::Inherited;
use crate::state::event_log::{Clocks, EventLog};
use crate::state::store::{Store, Stored};
pub(crate) use availability::Scope;
use tasks::TaskResult;

/// The capacity of a driver's inbox.
const INBOX: usize = 64;

/// What all drivers share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) engines: Engines,
    pub(crate) store: Store,
    pub(crate) event_log: EventLog,
    pub(crate) session_files: SessionFiles,
    pub(crate) servers: Arc<Servers>,
    pub(crate) clients: Clients,
    pub(crate) sockets: Sockets,
    /// Which callers listeners serve.
    pub(crate) access: Access,
    pub(crate) daemon: u64,
    /// Whether the daemon before this one has handed over, so that all of its requests are recorded.
    pub(crate) is_successor: bool,
    /// Identifies the boot of the machine.
    pub(crate) boot: Arc<str>,
}

/// What a driver receives.
#[derive(Debug)]
pub(crate) enum Message {
    /// The server has another spec, which is stored.
    Replace(Box<Stored>),
    Event(Event),
    /// The session that the run belongs to has forgotten its availability.
    Publish,
    /// Asks for the last line that the present run wrote to standard error.
    LastLine(oneshot::Sender<Option<String>>),
}

/// The inbox of a driver, which exists before it.
pub(crate) fn inbox() -> (mpsc::Sender<Message>, mpsc::Receiver<Message>) {
    mpsc::channel(INBOX)
}

impl From<Event> for Message {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

/// A handle to a driver.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) view: watch::Receiver<Snapshot>,
    /// Its entries in clients' files; a run of a single session has none.
    pub(crate) entries: Option<Entries>,
}

impl Handle {
    pub(crate) async fn send(&self, message: impl Into<Message>) {
        // A driver that has ended needs no message.
        self.inbox.send(message.into()).await.ok();
    }
}

/// How a driver ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriverEnd {
    /// The server was removed; this was its last run.
    ServerRemoved(RunId),
    /// The daemon stops.
    DaemonStops,
}

/// The task of one server.
pub(crate) struct Driver {
    context: Context,
    scope: Scope,
    supervisor: Supervisor,
    created_at: Timestamp,
    times: Times,
    /// When the present run was seen to exit, until all of it is gone.
    exited_at: Option<Timestamp>,
    last_stderr: Option<Arc<[u8]>>,
    session: Option<(Connection, Session)>,
    /// Tasks that end with the session.
    session_tasks: Vec<AbortHandle>,
    /// The intent to save when the one that is being saved is.
    unsaved_intent: Option<Wanted>,
    is_saving_intent: bool,
    inbox: mpsc::Receiver<Message>,
    view: watch::Sender<Snapshot>,
    entries: Option<Entries>,
    tasks: JoinSet<TaskResult>,
    /// The listener of the server's own port.
    port: Option<(u16, Listener)>,
}

impl Driver {
    /// A driver for a server, with what an earlier daemon left of it.
    pub(crate) fn new(
        context: Context,
        scope: Scope,
        (sender, inbox): (mpsc::Sender<Message>, mpsc::Receiver<Message>),
        stored: Stored,
        inherited: &Inherited,
    ) -> (Self, Handle) {
        let Stored { spec, wanted, created_at } = stored;
        let (clocks, name) = (Clocks::read(), spec.name.clone());
        let found = inherited.alive.as_ref().map(|(_, found)| found);
        let key = found.map(|found| RunKey::new(name.clone(), found.run));
        let ready_at =
            key.as_ref().and_then(|key| context.session_files.load(key)).map(|it| it.ready_at);
        let (history, unseen_end) = inherited.past(created_at, clocks, &context.boot);
        let ready_for = ready_at.map(clock::since);
        let resumed = found.map(|found| InheritedRun { ready_for, ..found.clone() });
        let is_session_run = scope.session().is_some();
        let supervisor = Supervisor::resume(
            clocks.now,
            spec,
            wanted,
            is_session_run,
            random::seed(),
            resumed,
            history,
        );
        let known_alive = found.filter(|found| !found.is_assumed);
        let times = Times {
            started_at: known_alive.map(|found| clock::wall_before(found.age)),
            ready_at,
            ..Times::default()
        };
        let (view, watcher) = watch::channel(Snapshot {
            revision: 0,
            spec: Arc::clone(supervisor.spec()),
            created_at,
            wanted,
            unit: supervisor.unit().clone(),
            times: times.clone(),
            details: supervisor.details().clone(),
            remote_outage: None,
            findings: None,
            session: None,
            last_stderr: None,
        });
        let entries =
            (!is_session_run).then(|| context.clients.keep(name.clone(), watcher.clone()));
        let mut driver = Self {
            context,
            scope,
            created_at,
            times,
            exited_at: None,
            last_stderr: None,
            session: None,
            session_tasks: Vec::new(),
            unsaved_intent: None,
            is_saving_intent: false,
            supervisor,
            inbox,
            view,
            entries: entries.clone(),
            tasks: JoinSet::new(),
            port: None,
        };
        driver.restore_times();
        if let Some((run, cause)) = unseen_end {
            driver.record_unseen_end(run, cause);
        }
        if let Some(key) = key.filter(|_| known_alive.is_some()) {
            driver.record_inherited(&key);
        }
        driver.publish();
        (driver, Handle { inbox: sender, view: watcher, entries })
    }

    /// Runs until the server is removed or the daemon stops.
    pub(crate) async fn run(&mut self) -> DriverEnd {
        let mut event = Some(Event::Tick);
        loop {
            if let Some(event) = event
                && let Some(end) = self.handle(event).await
            {
                return end;
            }
            event = tokio::select! {
                biased;
                message = self.inbox.recv() => match message {
                    Some(message) => self.receive(message),
                    None => return DriverEnd::DaemonStops,
                },
                Some(result) = self.tasks.join_next() => match result {
                    Ok(result) => self.finish_task(result),
                    Err(error) if error.is_cancelled() => None,
                    Err(error) => {
                        tracing::error!(server = %self.name(), %error, "a task panicked");
                        None
                    }
                },
                () = clock::wait_until(self.supervisor.deadline()) => Some(Event::Tick),
            };
        }
    }

    /// Keeps what the supervisor does not need of a message.
    fn receive(&mut self, message: Message) -> Option<Event> {
        let event = match message {
            Message::Replace(stored) => {
                self.created_at = stored.created_at;
                Event::Replace(Box::new(stored.spec))
            }
            Message::Event(event) => event,
            Message::Publish => {
                self.publish();
                return None;
            }
            Message::LastLine(reply) => {
                self.read_last_line(reply);
                return None;
            }
        };
        let present = self.supervisor.unit().run();
        match &event {
            Event::News(News::Exited { key, stderr, .. }) if present == Some(key.run) => {
                self.exited_at = Some(clock::wall());
                self.last_stderr = Some(stderr.as_slice().into());
            }
            Event::Listed { found, .. } if self.times.started_at.is_none() => {
                let alive = found.iter().find_map(|(_, run, state)| match state {
                    FoundState::Alive { age, .. } if Some(*run) == present => Some(*age),
                    _ => None,
                });
                self.times.started_at = alive.map(clock::wall_before);
            }
            _ => {}
        }
        Some(event)
    }

    /// Passes an event to the supervisor and executes what it decides.
    async fn handle(&mut self, event: Event) -> Option<DriverEnd> {
        let closed = self.session.as_ref().filter(|(_, session)| session.run.is_closed());
        if let Some(&(connection, _)) = closed {
            // Decisions depend on it, and its task may report it later.
            let actions = self.supervisor.handle(clock::now(), Event::SessionClosed(connection));
            if let Some(end) = self.execute(actions).await {
                return Some(end);
            }
        }
        let restarts = self.supervisor.unit().restarts_total();
        let was_reachable = self.supervisor.remote_outage().is_none();
        let actions = self.supervisor.handle(clock::now(), event);
        if self.supervisor.unit().restarts_total() > restarts {
            self.times.last_restart_at = Some(clock::wall());
        }
        if let Some(outage) = self.supervisor.remote_outage().filter(|_| was_reachable) {
            tracing::warn!(server = %self.name(), why = outage.why, "server cannot be reached");
        }
        self.execute(actions).await
    }

    async fn execute(&mut self, actions: Vec<Action>) -> Option<DriverEnd> {
        for action in actions {
            match action {
                Action::Record { event, detail } => self.record(&event, detail),
                Action::SaveIntent(wanted) => self.save_intent(wanted),
                Action::SaveHistory(history) => self.save_history(&history),
                Action::Publish => self.publish(),
                Action::ClearRun => {
                    self.times.started_at = None;
                    self.times.ready_at = None;
                }
                Action::Start(run) => self.start(run),
                Action::End { engine, run, grace, logs_stacks } => {
                    self.end(engine, run, grace, logs_stacks);
                }
                Action::Release(engine) => self.release(engine),
                Action::OpenSession { connection, resume } => self.open_session(connection, resume),
                Action::CloseSession => self.close_session(),
                Action::ForgetSession(run) => self.context.session_files.remove(&self.key(run)),
                Action::CheckPort { run, port } => self.check_port(run, port),
                Action::Observe(connection) => self.observe(connection),
                Action::ObserveStart(run) => self.observe_start(run),
                Action::Probe(connection, probe) => {
                    self.at_run(connection, |run| run.probe(probe));
                }
                Action::HoldRequests(connection) => {
                    self.at_run(connection, AttachedRun::hold_requests);
                }
                Action::SendHeldRequests(connection) => {
                    self.at_run(connection, AttachedRun::send_held_requests);
                }
                Action::RenewConnections(connection) => {
                    self.at_run(connection, AttachedRun::renew_connections);
                }
                Action::Forget => {
                    self.close_inbox();
                    self.forget().await;
                    return Some(DriverEnd::ServerRemoved(self.supervisor.unit().last_run()));
                }
                Action::Retired => {
                    self.close_inbox();
                    self.finish_saving().await;
                    self.tasks.shutdown().await;
                    return Some(DriverEnd::DaemonStops);
                }
            }
        }
        None
    }

    /// Others must not wait for a driver that ends.
    fn close_inbox(&mut self) {
        self.inbox.close();
        while self.inbox.try_recv().is_ok() {}
    }

    async fn forget(&mut self) {
        self.tasks.shutdown().await;
        if self.supervisor.session_run_end().is_none() {
            self.scope.set_availability(mainstay_proxy::Availability::Removed);
        }
        if let Some(entries) = &self.entries {
            // What was done is in the event log. A client that locks its file for long is not waited for: the entry is
            // removed when the lock is released.
            timeout(REMOVE_ENTRIES, entries.leave().await).await.ok();
        }
        let name = self.name().clone();
        let last = self.key(self.supervisor.unit().last_run());
        self.context.session_files.remove(&last);
        if let Err(error) = self.context.engines.forget(&name).await {
            tracing::warn!(server = %name, %error, "not everything of the server could be removed");
        }
        if self.scope.session().is_some() {
            return;
        }
        let _token_guard = self.context.access.token_lock.lock().await;
        if let Err(error) = self.context.store.delete(name.clone()).await {
            tracing::error!(server = %name, %error,
                "the server cannot be deleted; the next start of the daemon deletes it");
        }
        self.context.access.callers.tokens.forget_server(name.as_str());
        self.context.event_log.set_progress(&name, None);
    }

    fn publish(&mut self) {
        let supervisor = &self.supervisor;
        self.view.send_modify(|shown| {
            shown.revision += 1;
            shown.spec = Arc::clone(supervisor.spec());
            shown.created_at = self.created_at;
            shown.wanted = supervisor.wanted();
            shown.unit.clone_from(supervisor.unit());
            shown.times.clone_from(&self.times);
            shown.details.clone_from(supervisor.details());
            shown.remote_outage = supervisor.remote_outage().cloned();
            shown.findings = supervisor.findings();
            shown.session = self.session.as_ref().map(|(_, session)| session.clone());
            shown.last_stderr.clone_from(&self.last_stderr);
        });
        self.report_availability();
        self.update_port();
    }

    /// Listens on the server's own port, if it should.
    fn update_port(&mut self) {
        let (spec, port) = (self.supervisor.spec(), self.supervisor.port());
        if self.port.as_ref().map(|(port, _)| *port) != port {
            let listen = |port| (port, Listener::for_one(port, spec.name.as_str(), &self.context));
            self.port = port.map(listen);
        }
    }

    fn key(&self, run: RunId) -> RunKey {
        RunKey::new(self.name().clone(), run)
    }

    fn name(&self) -> &ServerName {
        &self.supervisor.spec().name
    }
}
