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
}

#[derive(Debug, Default)]
pub(super) struct Silence {
    manner: Manner,
    /// When a request was sent that is not answered.
    sent: Option<Instant>,
    observing: Option<Connection>,
    held: Option<Connection>,
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
            last_message: self.sent.is_none().then_some(now),
            answered_ping: self.sent.is_none(),
            input: self.sent.map_or(Input::Read, |since| Input::Unread { since, bytes: 9 }),
            processes: Some(Processes {
                switches: 0,
                is_active: self.manner == Manner::Spinning,
                is_suspended: self.manner == Manner::Suspended,
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
        world.settle();
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
fn only_local_stdio_servers_are_watched() {
    for spec in [container(), remote()] {
        let mut world = World::up(spec);
        world.call(Manner::Deadlocked);
        world.live(100);
        assert_eq!((world.run(), world.supervisor.verdict()), (RunId::new(1), None));
    }
}
