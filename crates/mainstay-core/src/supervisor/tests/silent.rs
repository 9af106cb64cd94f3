//! Runs that do not answer, and the guarantees about them.

use super::*;
use crate::watchdog::{Evidence, Input, OpenRequest, Processes, WatchLimits};

/// What the present run does with a request that it has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Manner {
    #[default]
    Answers,
    /// It has not read the request and waits for something else.
    Deadlocked,
    Spinning,
    Suspended,
    /// It does not answer, and what it does cannot be observed.
    Hidden,
}

#[derive(Debug, Default)]
pub(super) struct Silence {
    manner: Manner,
    /// When a request was sent that is not answered.
    sent: Option<Instant>,
    observing: Option<Connection>,
    held: Option<Connection>,
    pub(super) renewals: u32,
    hung: Option<RunId>,
}

impl Silence {
    pub(super) fn begin(&mut self, now: Instant, manner: Manner) {
        self.manner = manner;
        self.sent = (manner != Manner::Answers).then_some(self.sent.unwrap_or(now));
    }

    pub(super) fn clear_run(&mut self) {
        *self = Self::default();
    }

    pub(super) fn begin_observation(&mut self, connection: Connection) {
        assert_ne!(self.observing.replace(connection), Some(connection), "observed twice at once");
    }

    pub(super) fn hold(&mut self, connection: Connection, is_held: bool) {
        assert_ne!(self.held == Some(connection), is_held, "nothing has changed");
        self.held = is_held.then_some(connection);
    }

    /// Other reasons than a silence come from the session.
    pub(super) fn record_hang(&mut self, now: Instant, run: RunId, what: &str) {
        if what.contains("read nothing") {
            let limit = WatchLimits::default().hang_after.expect("there is a limit");
            assert_eq!(self.manner, Manner::Deadlocked, "it was killed without a proof");
            assert!(self.sent.is_some_and(|sent| now >= sent + limit), "it was killed early");
            self.hung = Some(run);
        }
    }

    pub(super) fn take_kill(&mut self, run: RunId) -> bool {
        self.hung.take_if(|hung| *hung == run).is_some()
    }

    pub(super) fn observe(&mut self, now: Instant, connection: Connection) -> Evidence {
        self.observing.take_if(|observing| *observing == connection);
        let oldest = self.sent.map(|sent| OpenRequest { what: "slow".to_owned(), sent });
        let overdue = WatchLimits::default().overdue();
        Evidence {
            overdue: self.sent.into_iter().filter(|sent| now >= *sent + overdue).count(),
            being_handled: None,
            unawaited: None,
            unanswered_since: None,
            last_message: self.sent.is_none().then_some(now),
            last_answer: self.sent.is_none().then_some(now),
            answered_ping: self.sent.is_none(),
            input: match self.sent {
                _ if self.manner == Manner::Hidden => Input::Unknown,
                Some(since) => Input::Unread { since, bytes: 9 },
                None => Input::Read,
            },
            processes: (self.manner != Manner::Hidden).then_some(Processes {
                switches: 0,
                is_active: self.manner == Manner::Spinning,
                suspended: (self.manner == Manner::Suspended).then_some(7),
                waits_for: None,
            }),
            oldest,
        }
    }
}

impl World {
    /// A client calls the run, which does not answer.
    pub(super) fn call(&mut self, manner: Manner) {
        self.silence.begin(self.now, manner);
        self.tell(Event::Observe { generation: self.run().generation() });
    }

    /// Lets time pass, with the results of all actions.
    fn live(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.pass(SECOND);
            self.settle();
        }
    }

    fn shown(&self) -> String {
        let verdict = self.supervisor.verdict().expect("the run is watched");
        format!("{}: {}", verdict.as_str(), verdict.describe(self.now))
    }
}

#[test]
fn a_run_that_hangs_is_killed_and_restarted() {
    let mut world = World::up(process());
    world.call(Manner::Deadlocked);
    world.live(40);
    assert_eq!((world.run(), world.availability()), (RunId::new(1), Availability::Up));
    assert!(world.shown().starts_with("overdue: 1 call overdue"), "{}", world.shown());
    world.live(25);
    assert_eq!((world.run(), world.availability()), (RunId::new(2), Availability::Up));
    assert_eq!(world.shown(), "responsive: no request is overdue");
    let view = world.supervisor.unit().view(world.now);
    assert_eq!((view.restarts, view.last_end.map(|end| end.cause.kind())), (1, Some("hung")));
}

#[test]
fn a_busy_or_suspended_run_is_not_killed_and_its_requests_are_held() {
    for (manner, shown) in [(Manner::Spinning, "busy"), (Manner::Suspended, "suspended")] {
        let mut world = World::up(process());
        world.call(manner);
        world.live(3600);
        assert_eq!(world.run(), RunId::new(1));
        assert!(world.shown().starts_with(shown), "{}", world.shown());
        assert_eq!(world.silence.held, Some(connection(1, 0)));
        assert_eq!(world.availability(), Availability::Up);
        world.silence.begin(world.now, Manner::Answers);
        world.tell(Event::Observe { generation: 1 });
        world.live(1);
        assert_eq!(world.silence.held, None);
        assert_eq!(world.shown(), "responsive: no request is overdue");
    }
}

#[test]
fn an_observation_of_another_connection_changes_nothing() {
    let mut world = World::up(process());
    world.call(Manner::Deadlocked);
    world.pass(SECOND * 40);
    world.die();
    world.settle();
    assert_eq!(
        (world.run(), world.shown().as_str()),
        (RunId::new(2), "responsive: no request is overdue")
    );
}

#[test]
fn a_container_that_hangs_is_killed_and_restarted() {
    let mut world = World::up(container());
    world.call(Manner::Deadlocked);
    world.live(65);
    assert_eq!((world.run(), world.availability()), (RunId::new(2), Availability::Up));
}

#[test]
fn a_remote_server_that_is_silent_is_unresponsive_and_its_connections_are_renewed() {
    let mut world = World::up(remote());
    world.call(Manner::Hidden);
    world.live(80);
    assert_eq!((world.run(), world.availability()), (RunId::new(1), Availability::Up));
    assert!(world.shown().starts_with("unresponsive: it accepts requests"), "{}", world.shown());
    assert_eq!(world.silence.held, Some(connection(1, 0)));
    assert_eq!(world.silence.renewals, 1);
    world.live(3600);
    assert_eq!((world.run(), world.silence.renewals), (RunId::new(1), 121));
    world.silence.begin(world.now, Manner::Answers);
    world.tell(Event::Observe { generation: 1 });
    world.live(1);
    assert_eq!(
        (world.silence.held, world.shown().as_str()),
        (None, "responsive: no request is overdue")
    );
}

#[test]
fn a_paused_container_has_no_verdict_and_its_pause_does_not_count() {
    let mut world = World::up(container());
    world.call(Manner::Deadlocked);
    world.live(50);
    let key = || RunKey::new(world.supervisor.spec().name.clone(), RunId::new(1));
    let (paused, unpaused) = (News::Paused { key: key() }, News::Unpaused { key: key() });
    world.tell(Event::News(paused));
    world.live(3600);
    assert_eq!((world.run(), world.supervisor.verdict()), (RunId::new(1), None));
    world.tell(Event::News(unpaused));
    world.live(50);
    assert_eq!(world.run(), RunId::new(1));
    world.live(20);
    assert_eq!(world.run(), RunId::new(2));
}

#[test]
fn a_server_that_ignores_pings_is_remembered_until_it_is_another_program() {
    let history = UnitHistory { ignores_ping: true, ..UnitHistory::default() };
    let mut world = World::resumed(process(), history);
    world.settle();
    let ignores_ping = |world: &World| world.saved_history.as_ref().unwrap().ignores_ping;
    assert!(ignores_ping(&world));
    let restart = RestartPolicy { max: 7, ..RestartPolicy::default() };
    world.tell(Event::Replace(Box::new(ServerSpec { restart, ..process() })));
    world.settle();
    assert!(ignores_ping(&world), "the program is the same");
    world.tell(Event::Replace(Box::new(container())));
    world.settle();
    assert!(!ignores_ping(&world));
}
