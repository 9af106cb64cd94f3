//! Stories of one supervisor in virtual time.

mod properties;
mod silent;
mod slow_start;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::*;
use crate::start_activity::{StartEvidence, StartInput, StartProcess};
use crate::{FoundState, OnStop, RestartPolicy, RestartState, RunKey};

const SECOND: Duration = Duration::from_secs(1);

fn spec(workload: &serde_json::Value) -> ServerSpec {
    let spec = serde_json::json!({ "name": "time", "workload": workload });
    let Ok(spec) = serde_json::from_value(spec) else { panic!("a valid spec") };
    spec
}

fn process() -> ServerSpec {
    spec(&serde_json::json!({ "process": {
        "command": ["server"], "cwd": "/", "env": {}, "transport": "stdio",
    } }))
}

fn container() -> ServerSpec {
    spec(&serde_json::json!({ "container": {
        "image": "time", "transport": { "streamable-http": { "port": 8000, "path": "/mcp" } },
    } }))
}

fn remote() -> ServerSpec {
    spec(&serde_json::json!({ "remote": { "url": "https://h/mcp?key=secret" } }))
}

/// Executes actions like engines that always succeed, and checks the guarantees.
struct World {
    now: Instant,
    supervisor: Supervisor,
    alive: BTreeSet<RunId>,
    /// Actions whose result is reported later.
    pending: VecDeque<Action>,
    opening: Option<Connection>,
    saved_intents: Vec<Wanted>,
    saved_history: Option<UnitHistory>,
    released: Vec<WorkloadKind>,
    silence: silent::Silence,
    is_over: bool,
}

impl World {
    fn new(spec: ServerSpec) -> Self {
        Self::resumed(spec, UnitHistory::default())
    }

    #[expect(clippy::disallowed_methods, reason = "virtual time needs some origin")]
    fn resumed(spec: ServerSpec, history: UnitHistory) -> Self {
        let now = Instant::now();
        let supervisor = Supervisor::resume(now, spec, Wanted::On, false, 7, None, history);
        let mut world = Self {
            now,
            supervisor,
            alive: BTreeSet::new(),
            pending: VecDeque::new(),
            opening: None,
            saved_intents: Vec::new(),
            saved_history: None,
            released: Vec::new(),
            silence: silent::Silence::default(),
            is_over: false,
        };
        world.tell(Event::Tick);
        world
    }

    /// A server whose first run has a session.
    fn up(spec: ServerSpec) -> Self {
        let mut world = Self::new(spec);
        world.settle();
        assert_eq!(world.availability(), Availability::Up);
        world
    }

    fn tell(&mut self, event: Event) {
        let is_tick = matches!(event, Event::Tick);
        if let Event::Replace(_) = event {
            self.saved_history = None;
        }
        let actions = self.supervisor.handle(self.now, event);
        assert!(actions.is_empty() || !self.is_over, "{actions:?} after the end");
        for action in actions {
            self.execute(action);
        }
        if let Some(connection) = self.opening {
            assert_eq!(self.supervisor.unit().run(), Some(connection.run));
        }
        if let Some(deadline) = self.supervisor.deadline().filter(|_| is_tick && !self.is_over) {
            assert!(deadline > self.now, "a deadline stays in the past");
        }
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Start(run) => {
                assert!(self.alive.is_empty(), "run {run} beside {:?}", self.alive);
                assert!(!self.pending.iter().any(|action| matches!(action, Action::Release(_))));
                self.alive.insert(run);
                self.pending.push_back(action);
            }
            Action::OpenSession { connection, .. } => self.opening = Some(connection),
            Action::CloseSession => self.opening = None,
            Action::SaveIntent(wanted) => self.saved_intents.push(wanted),
            Action::SaveHistory(history) => {
                assert_ne!(self.saved_history.as_ref(), Some(&history), "nothing has changed");
                self.saved_history = Some(history);
            }
            Action::Release(engine) => {
                self.released.push(engine);
                self.pending.push_back(action);
            }
            Action::End { run, logs_stacks, .. } => {
                assert_eq!(logs_stacks, self.silence.take_kill(run), "a hang, and nothing else");
                self.pending.push_back(action);
            }
            Action::Observe(connection) => {
                self.silence.begin_observation(connection);
                self.pending.push_back(action);
            }
            Action::HoldRequests(connection) => self.silence.hold(connection, true),
            Action::SendHeldRequests(connection) => self.silence.hold(connection, false),
            Action::Record { event: LoggedEvent::Hung { run, what }, .. } => {
                self.silence.record_hang(self.now, run, &what);
            }
            Action::RenewConnections(_) => self.silence.renewals += 1,
            Action::ClearRun => self.silence.clear_run(),
            Action::CheckPort { .. } | Action::ObserveStart(_) => self.pending.push_back(action),
            Action::Forget | Action::Retired => {
                self.is_over = true;
                if self.supervisor.unit().is_engine_away() {
                    // What is left is removed when the engine is back.
                    self.alive.clear();
                }
            }
            Action::Record { .. }
            | Action::Publish
            | Action::Probe(..)
            | Action::ForgetSession(_) => {}
        }
    }

    /// Reports the result of the oldest pending action.
    fn step(&mut self) -> bool {
        let event = match self.pending.pop_front() {
            Some(Action::Start(run)) => Event::Started(run, Ok(Started::default())),
            Some(Action::Release(_)) => Event::Released,
            Some(Action::End { run, .. }) => {
                self.alive.remove(&run);
                self.gone(run, Cause::Exited(Exit::signal(15)))
            }
            Some(Action::Observe(connection)) => Event::Observed(
                connection,
                Some(Box::new(self.silence.observe(self.now, connection))),
            ),
            Some(Action::ObserveStart(run)) => Event::StartObserved(run, slow_start()),
            Some(Action::CheckPort { run, .. }) => Event::PortChecked { run, has_moved: false },
            Some(_) => return true,
            None => match self.opening.take() {
                Some(connection) => Event::SessionOpened(connection),
                None => return false,
            },
        };
        self.tell(event);
        true
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets time pass, with every deadline on the way.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.supervisor.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(deadline);
            self.tell(Event::Tick);
            if self.is_over {
                return;
            }
        }
        self.now = end;
    }

    fn run(&self) -> RunId {
        self.supervisor.unit().last_run()
    }

    fn key(&self, run: RunId) -> RunKey {
        RunKey::new(self.supervisor.spec().name.clone(), run)
    }

    fn gone(&self, run: RunId, cause: Cause) -> Event {
        Event::News(News::Gone { key: self.key(run), cause })
    }

    /// The present run dies, whatever it is doing.
    fn die(&mut self) {
        let run = self.run();
        if self.alive.remove(&run) {
            let (key, exit) = (self.key(run), Exit::code(1));
            self.tell(Event::News(News::Exited { key, exit, stderr: Vec::new() }));
            let gone = self.gone(run, Cause::Exited(exit));
            self.tell(gone);
        }
    }

    fn availability(&self) -> Availability {
        self.supervisor.availability(self.now)
    }

    fn open_session(&mut self) -> Connection {
        self.opening.take().expect("a session is being opened")
    }
}

/// What is seen of a run that has not read `initialize` and does nothing.
fn slow_start() -> StartEvidence {
    let server = StartProcess { pid: 1, command: vec!["server".to_owned()], ..Default::default() };
    StartEvidence { input: StartInput::Unread(154), processes: vec![server] }
}

fn connection(run: u64, attempt: u64) -> Connection {
    Connection { run: RunId::new(run), attempt }
}

#[test]
fn a_death_during_the_start_is_handled_after_it() {
    let mut world = World::new(process());
    world.die();
    assert_eq!(world.run(), RunId::new(1));
    world.settle();
    assert_eq!((world.run(), world.availability()), (RunId::new(2), Availability::Up));
}

#[test]
fn few_reports_are_kept_during_a_start_that_takes_long() {
    let mut world = World::new(container());
    let key = world.key(RunId::new(1));
    let server = key.server.clone();
    for _ in 0..1000 {
        for news in [
            News::Back { server: server.clone() },
            News::Paused { key: key.clone() },
            News::Unhealthy { key: key.clone() },
            News::Amended { key: key.clone(), cause: Cause::StoppedBySomeone },
            News::Unpaused { key: key.clone() },
            News::Healthy { key: key.clone() },
            News::Amended { key: key.clone(), cause: Cause::RestartedBySomeone },
            News::Away { server: server.clone(), why: "no answer".to_owned() },
            News::Back { server: server.clone() },
        ] {
            world.tell(Event::News(news));
        }
    }
    assert_eq!(world.supervisor.early.len(), 5);
    world.settle();
    assert_eq!((world.run(), world.availability()), (RunId::new(1), Availability::Up));
}

#[test]
fn a_session_that_the_run_closes_means_that_it_hangs_unless_it_exits() {
    let mut world = World::up(process());
    world.tell(Event::SessionClosed(connection(1, 0)));
    world.pass(SECOND);
    world.tell(Event::SessionClosed(connection(1, 0)));
    assert!(world.pending.is_empty());
    world.pass(SECOND);
    let kill = Action::End {
        engine: WorkloadKind::Process,
        run: RunId::new(1),
        grace: None,
        logs_stacks: false,
    };
    assert_eq!(world.pending, [kill]);

    let mut world = World::up(process());
    world.tell(Event::SessionClosed(connection(1, 0)));
    world.die();
    world.pass(SECOND * 2);
    world.settle();
    assert_eq!((world.run(), world.availability()), (RunId::new(2), Availability::Up));
}

#[test]
fn a_session_is_retried_after_a_local_failure() {
    let mut world = World::new(process());
    world.step();
    let first = world.open_session();
    world.tell(Event::SessionFailed(first, SessionFailure::Local));
    assert!(!world.supervisor.expects(first));
    world.pass(SECOND);
    assert_eq!(world.open_session(), connection(1, 1));
    // A result that is late changes nothing.
    world.tell(Event::SessionOpened(first));
    assert_ne!(world.availability(), Availability::Up);
    world.tell(Event::SessionOpened(connection(1, 1)));
    assert_eq!(world.availability(), Availability::Up);
}

#[test]
fn a_remote_server_is_tried_again_until_it_answers() {
    let mut world = World::new(remote());
    world.step();
    for _ in 0..4 {
        let failed = world.open_session();
        let why = "no route".to_owned();
        world.tell(Event::SessionFailed(failed, SessionFailure::Unreachable(why)));
        let Availability::Coming { due: Some(due), why } = world.availability() else { panic!() };
        assert_eq!(why, "no route");
        assert_eq!(world.supervisor.unit().view(world.now).status, Status::Waiting);
        world.pass(due - world.now);
    }
    world.settle();
    assert_eq!(world.availability(), Availability::Up);
    assert_eq!(world.supervisor.unit().view(world.now).restarts, 0);
    assert_eq!(world.supervisor.remote_outage(), None);
    // A request that is not accepted begins another outage.
    world.tell(Event::Unreachable { generation: 1 });
    let outage = world.supervisor.remote_outage().expect("an outage");
    assert_eq!(outage.why, "https://h/mcp cannot be reached");
}

#[test]
fn a_remote_server_that_answers_wrongly_after_an_outage_is_charged() {
    let mut world = World::new(remote());
    world.step();
    let failed = world.open_session();
    world.tell(Event::SessionFailed(failed, SessionFailure::Unreachable("no route".to_owned())));
    world.pass(SECOND * 2);
    let failed = world.open_session();
    world.tell(Event::SessionFailed(failed, SessionFailure::Faulty("HTTP 500".to_owned())));
    world.settle();
    let view = world.supervisor.unit().view(world.now);
    assert_eq!((view.restarts, world.availability()), (1, Availability::Up));
}

#[test]
fn a_container_whose_port_has_moved_gets_another_session() {
    let mut world = World::up(container());
    world.tell(Event::Unreachable { generation: 1 });
    world.tell(Event::Unreachable { generation: 1 });
    assert_eq!(world.pending, [Action::CheckPort { run: RunId::new(1), port: 8000 }]);
    world.step();
    world.tell(Event::Unreachable { generation: 1 });
    assert!(world.pending.is_empty(), "it was checked a moment ago");
    world.pass(SECOND);
    world.tell(Event::Unreachable { generation: 1 });
    world.pending.clear();
    world.tell(Event::PortChecked { run: RunId::new(1), has_moved: true });
    assert_eq!(world.open_session(), connection(1, 1));
}

#[test]
fn another_engine_starts_the_server_when_the_last_one_has_released_it() {
    let mut world = World::up(container());
    world.tell(Event::Replace(Box::new(process())));
    while !matches!(world.pending.front(), Some(Action::Release(_))) {
        assert!(world.step());
    }
    assert_eq!((world.run(), world.alive.len()), (RunId::new(2), 0), "not started yet");
    world.settle();
    assert_eq!(
        (world.released.as_slice(), world.run()),
        (&[WorkloadKind::Container][..], RunId::new(2))
    );
    assert_eq!(world.availability(), Availability::Up);
}

#[test]
fn a_start_that_waits_for_another_engine_is_dropped_if_the_run_is_ended() {
    for is_restarted in [false, true] {
        let mut world = World::up(container());
        world.tell(Event::Replace(Box::new(process())));
        while !matches!(world.pending.front(), Some(Action::Release(_))) {
            assert!(world.step());
        }
        world.tell(if is_restarted { Event::Restart } else { Event::Want(Wanted::Off) });
        assert_eq!(world.pending, [Action::Release(WorkloadKind::Container)]);
        world.step();
        assert!(!world.alive.contains(&RunId::new(2)), "it was ended before it existed");
        world.settle();
        if is_restarted {
            assert_eq!((world.run(), world.availability()), (RunId::new(3), Availability::Up));
        } else {
            assert!(world.alive.is_empty());
            assert_eq!(world.supervisor.unit().view(world.now).status, Status::Stopped);
        }
    }
}

#[test]
fn the_history_is_saved_when_it_changes_and_a_stop_of_the_daemon_hides_no_failures() {
    let mut world = World::up(process());
    world.die();
    world.settle();
    world.die();
    let saved = world.saved_history.clone().expect("it has changed");
    assert_eq!((saved.failures, saved), (2, world.supervisor.unit().history()));
    let state = world.saved_history.as_ref().map(|saved| saved.restart_state);
    assert!(matches!(state, Some(RestartState::Due { attempt: 2, .. })), "{state:?}");
    // The unit that is turned off forgets them.
    world.tell(Event::Retire);
    assert!(world.is_over);
    let saved = world.saved_history.expect("it has changed");
    assert_eq!((saved.failures, Some(saved.restart_state)), (2, state));
}

#[test]
fn another_spec_has_a_history_of_its_own() {
    let mut world = World::up(process());
    world.tell(Event::Replace(Box::new(process())));
    assert_eq!(world.saved_history, Some(world.supervisor.unit().history()));
}

#[test]
fn a_server_listens_on_its_own_port_while_it_is_on() {
    let mut spec = process();
    spec.proxy.port = Some(4000);
    let mut world = World::up(spec.clone());
    assert_eq!(world.supervisor.port(), Some(4000));
    world.die();
    assert_eq!(world.supervisor.port(), Some(4000));
    world.tell(Event::Want(Wanted::Off));
    assert_eq!(world.supervisor.port(), None);
    world.settle();
    world.tell(Event::Want(Wanted::On));
    assert_eq!(world.supervisor.port(), Some(4000));
    world.tell(Event::Retire);
    assert_eq!(world.supervisor.port(), None);
    let history = UnitHistory::default();
    let of_session = Supervisor::resume(world.now, spec, Wanted::On, true, 7, None, history);
    assert_eq!(of_session.port(), None, "it belongs to the shared run");
}

#[test]
fn another_spec_for_a_stopped_server_does_not_change_its_intent() {
    let mut world = World::up(process());
    world.tell(Event::Want(Wanted::Off));
    world.settle();
    let restart = RestartPolicy { max: 3, ..RestartPolicy::default() };
    world.tell(Event::Replace(Box::new(ServerSpec { restart, ..process() })));
    world.tell(Event::Want(Wanted::On));
    world.settle();
    assert_eq!((world.availability(), world.saved_intents), (Availability::Up, Vec::new()));
}

#[test]
fn a_stop_before_the_run_exists_is_executed_when_it_does() {
    let mut world = World::new(process());
    world.tell(Event::Want(Wanted::Off));
    let ends = |world: &World| {
        world.pending.iter().filter(|action| matches!(action, Action::End { .. })).count()
    };
    assert_eq!(ends(&world), 1);
    world.step();
    assert_eq!(ends(&world), 2, "again, now that it exists");
    world.settle();
    assert!(world.alive.is_empty());
}

#[test]
fn an_inherited_session_is_resumed_also_after_a_local_failure() {
    let mut world = World::new(process());
    let inherited = InheritedRun {
        run: RunId::new(7),
        age: SECOND,
        ready_for: Some(SECOND),
        details: RunDetails::default(),
        is_assumed: false,
    };
    let (spec, history) = (process(), UnitHistory::default());
    world.supervisor =
        Supervisor::resume(world.now, spec, Wanted::On, false, 7, Some(inherited), history);
    let opens = |world: &mut World| {
        let actions = world.supervisor.handle(world.now, Event::Tick);
        actions.into_iter().find_map(|action| match action {
            Action::OpenSession { connection, resume } => Some((connection, resume)),
            _ => None,
        })
    };
    assert_eq!(opens(&mut world), Some((connection(7, 0), true)));
    world
        .supervisor
        .handle(world.now, Event::SessionFailed(connection(7, 0), SessionFailure::Local));
    world.now += SECOND;
    assert_eq!(opens(&mut world), Some((connection(7, 1), true)));
}

#[test]
fn a_start_replaces_the_intent_that_a_respected_stop_has_stored() {
    let mut spec = container();
    spec.restart.on_stop = OnStop::Respect;
    let mut world = World::up(spec);
    world.alive.clear();
    let gone = world.gone(RunId::new(1), Cause::StoppedBySomeone);
    world.tell(gone);
    assert_eq!(world.saved_intents, [Wanted::Off]);
    world.tell(Event::Want(Wanted::On));
    world.settle();
    assert_eq!(
        (world.availability(), world.saved_intents),
        (Availability::Up, vec![Wanted::Off, Wanted::On])
    );
}
