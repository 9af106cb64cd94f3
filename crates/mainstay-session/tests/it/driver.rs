//! Drivers: they execute what the supervisors of runs decide, as those of the daemon do.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use mainstay_core::session_runs::Event as SessionRunEvent;
use mainstay_core::start_activity::StartEvidence;
use mainstay_core::supervisor::{
    Action, Connection, Event as SupervisorEvent, InheritedRun, RunDetails, SessionFailure,
};
use mainstay_core::{
    RestartPolicy, RunId, ServerName, ServerSpec, Status, Supervisor, UnitHistory, Wanted,
};
use mainstay_mcp::upstream::UpstreamError;
use mainstay_session::{Availability, LinkKey, LinkTarget, Run, RunInfo, epoch};

use crate::event::Event;
use crate::model::ClientState;
use crate::script::{Engine, Kind};
use crate::session_drivers::key_of;
use crate::silence::HANG_AFTER;
use crate::world::World;

/// The session whose own run something is about; none for the run that all sessions share.
pub(crate) type Scope = Option<Arc<str>>;

pub(crate) struct Driver {
    pub(crate) supervisor: Supervisor,
    session: Option<Session>,
    /// The start in progress. It ends with the driver.
    pub(crate) starting: Option<RunId>,
}

/// The MCP session with a run, or an attempt to open it.
struct Session {
    connection: Connection,
    link: Option<LinkKey>,
    is_closed: bool,
    /// Once it is open.
    run: Option<Arc<Run>>,
}

static SPECS: LazyLock<[ServerSpec; 3]> = LazyLock::new(|| {
    let specs = [
        r#"{"process":{"command":["sim"],"cwd":"/","env":{},"transport":"stdio"}}"#,
        r#"{"container":{"image":"sim","transport":"stdio"}}"#,
        r#"{"remote":{"url":"https://sim/mcp"}}"#,
    ];
    specs.map(|workload| {
        let spec = format!(r#"{{"name":"sim","workload":{workload}}}"#);
        serde_json::from_str(&spec).expect("it is a spec")
    })
});

/// The name by which the engine knows the run of a scope.
pub(crate) fn run_name(scope: &Scope) -> ServerName {
    let session = scope.as_ref().map_or(String::new(), |session| format!("-{}", &session[..16]));
    format!("sim{session}").parse().expect("it is a name")
}

impl World {
    fn spec(&self, scope: &Scope) -> ServerSpec {
        let spec = &SPECS[match self.script.engine {
            Engine::Process => 0,
            Engine::Container => 1,
            Engine::Remote => 2,
        }];
        let delay = Duration::from_millis(self.script.restart_delay);
        let restart = RestartPolicy {
            max: self.script.restart_max,
            initial: delay,
            cap: delay * 2,
            start_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(1),
            hang_after: Some(Duration::from_millis(HANG_AFTER)),
            ..RestartPolicy::default()
        };
        ServerSpec { name: run_name(scope), restart, ..spec.clone() }
    }

    pub(crate) fn driver(&mut self, scope: &Scope) -> Option<&mut Driver> {
        self.daemons[self.current?].drivers.get_mut(scope)
    }

    pub(crate) fn scopes(&self) -> Vec<Scope> {
        let current = self.current.map(|current| &self.daemons[current].drivers);
        current.map(|drivers| drivers.keys().cloned().collect()).unwrap_or_default()
    }

    /// Supervises a server or the run of a session, from what an earlier daemon left of it.
    pub(crate) fn add_driver(&mut self, scope: &Scope, history: UnitHistory) {
        let Some(current) = self.current else { return };
        let inherited = self.present_run(scope).map(|run| {
            let run = &self.runs[run];
            let age = Duration::from_millis(self.now - run.started_at);
            InheritedRun {
                run: run.id,
                age,
                ready_for: run.hello.is_some().then_some(age),
                details: RunDetails::default(),
                is_assumed: self.outage.is_some(),
            }
        });
        let supervisor = Supervisor::resume(
            self.instant(),
            self.spec(scope),
            self.wanted,
            scope.is_some(),
            self.now,
            inherited,
            history,
        );
        let driver = Driver { supervisor, session: None, starting: None };
        self.daemons[current].drivers.insert(scope.clone(), driver);
        self.publish(scope);
        self.tell(scope, SupervisorEvent::Tick);
        if let Some(run) = self.present_run(scope).filter(|run| self.runs[*run].is_exit_noticed) {
            self.report_exit(run);
        }
    }

    /// Passes an event to a supervisor, and executes what it decides.
    pub(crate) fn tell(&mut self, scope: &Scope, event: SupervisorEvent) {
        let now = self.instant();
        let Some(driver) = self.driver(scope) else { return };
        let session = driver.session.as_ref();
        if let Some(session) = session.filter(|session| session.is_closed && session.run.is_some())
        {
            let closed = SupervisorEvent::SessionClosed(session.connection);
            let actions = driver.supervisor.handle(now, closed);
            self.execute_all(scope, actions);
        }
        let Some(driver) = self.driver(scope) else { return };
        let actions = driver.supervisor.handle(now, event);
        self.execute_all(scope, actions);
    }

    fn execute_all(&mut self, scope: &Scope, actions: Vec<Action>) {
        let Some(daemon) = self.current else { return };
        for action in actions {
            match action {
                Action::SaveIntent(wanted) => self.wanted = wanted,
                Action::Publish => self.publish(scope),
                Action::Start(run) => {
                    self.last_runs.insert(scope.clone(), run);
                    if let Some(driver) = self.driver(scope) {
                        driver.starting = Some(run);
                    }
                    self.start_run(daemon, scope.clone(), run);
                }
                Action::End { run, grace, .. } => {
                    if let Some(run) = self.run_of(scope, run) {
                        self.runs[run].is_told_to_end = true;
                    }
                    self.end_run(scope, run, grace);
                }
                Action::OpenSession { connection, resume } => {
                    if let Some(driver) = self.driver(scope) {
                        assert!(driver.session.is_none(), "two sessions with a run");
                        let (link, is_closed, run) = (None, false, None);
                        driver.session = Some(Session { connection, link, is_closed, run });
                    }
                    let scope = scope.clone();
                    self.after(1, Event::OpenSession { daemon, scope, connection, resume });
                }
                Action::CloseSession => self.close_session(scope),
                Action::ForgetSession(run) => {
                    if let Some(run) = self.run_of(scope, run) {
                        self.runs[run].hello = None;
                    }
                }
                Action::CheckPort { run, .. } => {
                    let event = SupervisorEvent::PortChecked { run, has_moved: false };
                    self.after(2, Event::Driver { daemon, scope: scope.clone(), event });
                }
                Action::ObserveStart(run) => {
                    let event = SupervisorEvent::StartObserved(run, StartEvidence::default());
                    self.after(1, Event::Driver { daemon, scope: scope.clone(), event });
                }
                Action::Observe(connection) => {
                    self.after(1, Event::Observe { daemon, scope: scope.clone(), connection });
                }
                Action::Probe(connection, probe) => self.probe_run(scope, connection, probe),
                Action::HoldRequests(connection) => self.hold_run(scope, connection, true),
                Action::SendHeldRequests(connection) => self.hold_run(scope, connection, false),
                Action::RenewConnections(connection) => self.renew_run(scope, connection),
                Action::Forget => self.forget(scope),
                Action::Release(_) | Action::Retired => panic!("{action:?} was not asked for"),
                Action::SaveHistory(history) => self.history = history,
                Action::Record { event, .. } => self.check_hang(scope, &event),
                Action::ClearRun => {}
            }
        }
    }

    /// The link of a session with a run, while it is open.
    pub(crate) fn link_of(&mut self, scope: &Scope, connection: Connection) -> Option<LinkKey> {
        let session = self.driver(scope)?.session.as_ref();
        session.filter(|session| session.connection == connection)?.link
    }

    /// Reports to sessions whether their run can be used.
    pub(crate) fn publish(&mut self, scope: &Scope) {
        let now = self.instant();
        let Some(driver) = self.driver(scope) else { return };
        let run = driver.session.as_ref().and_then(|session| session.run.as_ref());
        if let Some(availability) = Availability::of(&driver.supervisor, now, run, Vec::new) {
            self.set_availability(scope, availability);
        }
    }

    pub(crate) fn set_availability(&mut self, scope: &Scope, availability: Availability) {
        let now = self.instant();
        if let Some(server) = self.server() {
            match scope {
                Some(session) => server.set_session_availability(now, session, availability),
                None => server.set_availability(now, availability),
            }
        }
        self.settle();
    }

    fn close_session(&mut self, scope: &Scope) {
        let link = self.driver(scope).and_then(|driver| driver.session.take()?.link);
        if let (Some(link), Some(server)) = (link, self.server()) {
            server.release_link(link);
            self.settle();
        }
    }

    /// Connects to a run, unless that is not wanted any more.
    pub(crate) fn open_session(
        &mut self,
        daemon: usize,
        scope: Scope,
        connection: Connection,
        resume: bool,
    ) {
        let is_wanted = |session: &Session| session.connection == connection;
        let driver = self.daemons[daemon].drivers.get(&scope);
        if !driver.and_then(|driver| driver.session.as_ref()).is_some_and(is_wanted) {
            return;
        }
        let is_known = |run: &usize| self.runs[*run].is_alive && self.outage.is_none();
        let Some(index) = self.run_of(&scope, connection.run).filter(is_known) else {
            let result = Err(SessionFailure::Ending);
            return self.after(1, Event::SessionResult { daemon, scope, connection, result });
        };
        let now = self.instant();
        let (is_container, is_remote) =
            (self.script.engine == Engine::Container, self.script.engine == Engine::Remote);
        let run = &mut self.runs[index];
        let first = if is_container { run.out.len() } else { run.confirmed };
        let target = match self.script.kind {
            Kind::Http if is_remote => LinkTarget::Remote,
            Kind::Http => LinkTarget::Http,
            Kind::Shared | Kind::Isolated => {
                let written = run.written + run.kept.len() as u64;
                let has_earlier_output = is_container && !run.out.is_empty();
                let earlier_output = has_earlier_output.then(|| run.out.clone());
                LinkTarget::Stdio { written, earlier_output }
            }
        };
        let info = RunInfo {
            generation: connection.run.generation(),
            after: None,
            known: run.hello.clone().filter(|_| resume),
            epoch: epoch(daemon as u64, connection.attempt),
            session: scope.as_deref().map(str::to_owned),
        };
        let it = &mut self.daemons[daemon];
        let Some(server) = it.server.as_mut() else { return };
        let link = server.attach(now, target, info);
        it.links.insert(link, index);
        if let Some(session) = it.drivers.get_mut(&scope).and_then(|it| it.session.as_mut()) {
            session.link = Some(link);
        }
        run.link = Some((daemon, link, first));
        for line in first..run.out.len() {
            self.after(1, Event::Deliver { daemon, link, run: index, index: line });
        }
        self.settle();
    }

    fn session_with(&mut self, daemon: usize, link: LinkKey) -> Option<(Scope, &mut Session)> {
        self.daemons[daemon].drivers.iter_mut().find_map(|(scope, driver)| {
            let session = driver.session.as_mut().filter(|session| session.link == Some(link))?;
            Some((scope.clone(), session))
        })
    }

    /// A server has connected to a run, or could not.
    pub(crate) fn attached(
        &mut self,
        daemon: usize,
        link: LinkKey,
        result: Result<Arc<Run>, UpstreamError>,
    ) {
        let is_remote = self.script.engine == Engine::Remote;
        let Some((scope, session)) = self.session_with(daemon, link) else { return };
        let connection = session.connection;
        if let (Ok(run), Some(index)) = (&result, self.daemons[daemon].links.get(&link)) {
            // Stored before it is reported.
            self.runs[*index].hello = Some((*run.hello).clone());
        }
        let result = result.map_err(|error| match error {
            UpstreamError::Closed { .. } | UpstreamError::Connect { .. } if is_remote => {
                SessionFailure::Unreachable(error.to_string())
            }
            UpstreamError::Closed { .. } => SessionFailure::Ending,
            other => SessionFailure::Faulty(other.to_string()),
        });
        self.after(1, Event::SessionResult { daemon, scope, connection, result });
    }

    pub(crate) fn session_result(
        &mut self,
        scope: &Scope,
        connection: Connection,
        result: Result<Arc<Run>, SessionFailure>,
    ) {
        let Some(driver) = self.driver(scope) else { return };
        let is_it = |session: &&mut Session| session.connection == connection;
        let Some(session) = driver.session.as_mut().filter(is_it) else { return };
        let is_expected = driver.supervisor.expects(connection);
        match result {
            Ok(run) if is_expected => {
                session.run = Some(run);
                self.tell(scope, SupervisorEvent::SessionOpened(connection));
            }
            Ok(_) => self.close_session(scope),
            Err(failure) => {
                self.close_session(scope);
                if is_expected {
                    self.tell(scope, SupervisorEvent::SessionFailed(connection, failure));
                }
            }
        }
    }

    /// The run has closed the connection of its session.
    pub(crate) fn session_closed(&mut self, daemon: usize, link: LinkKey) {
        let Some((scope, session)) = self.session_with(daemon, link) else { return };
        session.is_closed = true;
        let event = SupervisorEvent::SessionClosed(session.connection);
        self.after(1, Event::Driver { daemon, scope, event });
    }

    /// A supervisor has finished.
    fn forget(&mut self, scope: &Scope) {
        let Some(current) = self.current else { return };
        self.close_session(scope);
        let Some(driver) = self.daemons[current].drivers.remove(scope) else { return };
        if driver.supervisor.session_run_end().is_none() {
            self.set_availability(scope, Availability::Removed);
        }
        self.forget_runs(scope);
        let Some(session) = scope else {
            self.is_removed = true;
            let usage = self.server().map(|server| server.usage()).unwrap_or_default();
            let is_held = usage.iter().any(|(what, _)| *what == "held");
            assert!(!is_held, "requests wait for a server that was removed");
            for client in self.clients.iter_mut().filter(|client| client.local.is_none()) {
                client.state = ClientState::Over;
            }
            let removed = SessionRunEvent::ServerRemoved(run_name(&None));
            return self.handle_session_run(removed);
        };
        let last = Some(driver.supervisor.unit().last_run());
        // What sessions asked for before is handled before.
        self.handle_requests();
        self.handle_session_run(SessionRunEvent::Ended { name: key_of(session).run_name(), last });
    }

    /// The user starts, stops or removes the server. What is wanted is stored, also while no daemon runs.
    pub(crate) fn want(&mut self, wanted: Wanted) {
        if self.wanted == Wanted::Gone {
            return;
        }
        self.wanted = wanted;
        for scope in self.commanded() {
            self.tell(&scope, SupervisorEvent::Want(wanted));
        }
    }

    /// The user restarts the server.
    pub(crate) fn restart(&mut self) {
        if self.wanted == Wanted::Gone {
            return;
        }
        self.wanted = Wanted::On;
        for scope in self.commanded() {
            self.tell(&scope, SupervisorEvent::Restart);
        }
    }

    pub(crate) fn status(&mut self, scope: &Scope) -> Option<Status> {
        let now = self.instant();
        Some(self.driver(scope)?.supervisor.unit().view(now).status)
    }
}
