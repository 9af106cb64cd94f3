//! Virtual time around one unit, so that a story is a few lines.

#![expect(clippy::unnecessary_wraps, reason = "they are compared with what a unit answers")]

use std::time::{Duration, Instant};

use super::super::{Action, Event, Found, LoggedEvent, Unit, UnitHistory};
use crate::{Cause, Exit, RestartPolicy, RunId, Status, Wanted};

pub(super) const FOREVER: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) unit: Unit,
}

/// Where virtual time begins.
#[expect(clippy::disallowed_methods, reason = "some origin is needed, and which one is no matter")]
pub(super) fn origin() -> Instant {
    Instant::now()
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) fn start(run: u64) -> Option<Action> {
    Some(Action::Start(RunId::new(run)))
}

pub(super) fn stop(run: u64) -> Option<Action> {
    Some(Action::Stop(RunId::new(run)))
}

pub(super) fn kill(run: u64) -> Option<Action> {
    Some(Action::Kill(RunId::new(run)))
}

/// A world whose unit is on and whose first run is being started.
pub(super) fn world() -> World {
    world_with(|_| {})
}

pub(super) fn world_with(change: impl FnOnce(&mut RestartPolicy)) -> World {
    let mut policy = RestartPolicy::default();
    change(&mut policy);
    let mut world = World { now: origin(), unit: Unit::new(policy, 7) };
    assert_eq!(world.want(Wanted::On), start(1));
    world
}

/// A world as the daemon finds it at its start, after the first tick.
pub(super) fn resumed(wanted: Wanted, found: Option<Found>) -> (World, Option<Action>) {
    let now = origin();
    let policy = RestartPolicy::default();
    let past = UnitHistory { last: RunId::new(4), ..UnitHistory::default() };
    first_tick(now, Unit::resume(now, policy, 7, wanted, found, past))
}

/// The world of a daemon that takes up a unit where another left it, after the first tick.
pub(super) fn taken_up(
    left: World,
    policy: RestartPolicy,
    found: Option<Found>,
) -> (World, Option<Action>) {
    let World { now, unit } = left;
    first_tick(now, Unit::resume(now, policy, 8, unit.wanted(), found, unit.history()))
}

fn first_tick(now: Instant, unit: Unit) -> (World, Option<Action>) {
    assert_eq!(unit.deadline(), Some(now));
    let mut world = World { now, unit };
    let action = world.tell(Event::Tick);
    (world, action)
}

impl World {
    pub(super) fn tell(&mut self, event: Event) -> Option<Action> {
        let action = self.unit.handle(self.now, event);
        assert!(self.unit.deadline().is_none_or(|at| at > self.now), "{:?}", self.unit);
        action
    }

    pub(super) fn want(&mut self, wanted: Wanted) -> Option<Action> {
        self.tell(Event::Want(wanted))
    }

    /// Tells an event of the present run.
    pub(super) fn news(&mut self, event: impl FnOnce(RunId) -> Event) -> Option<Action> {
        let run = self.unit.run().expect("there is a run");
        self.tell(event(run))
    }

    pub(super) fn loses_engine(&mut self) -> Option<Action> {
        self.tell(Event::EngineAway { why: "no engine answers".to_owned() })
    }

    /// The present run comes up and is ready at once.
    pub(super) fn comes_up(&mut self) {
        assert_eq!(self.news(|run| Event::Started { run }), None);
        assert_eq!(self.news(|run| Event::Ready { run }), None);
    }

    pub(super) fn ends(&mut self, cause: Cause) -> Option<Action> {
        self.news(|run| Event::Gone { run, cause })
    }

    pub(super) fn crashes(&mut self) -> Option<Action> {
        self.ends(Cause::Exited(Exit::code(1)))
    }

    /// The present run comes up, is ready for so long, and crashes.
    pub(super) fn crashes_after(&mut self, up: Duration) -> Option<Action> {
        self.comes_up();
        assert_eq!(self.passes(up), None);
        self.crashes()
    }

    /// Lets time pass, with ticks when they are due, until the first action or the end of the
    /// time. It stops right at the action.
    pub(super) fn passes(&mut self, time: Duration) -> Option<Action> {
        let end = self.now + time;
        while let Some(at) = self.unit.deadline().filter(|&at| at <= end) {
            self.now = at;
            let action = self.tell(Event::Tick);
            if action.is_some() {
                return action;
            }
        }
        self.now = end;
        None
    }

    /// Waits for the next action and says how long that took.
    pub(super) fn waits(&mut self) -> (Duration, Option<Action>) {
        let before = self.now;
        let action = self.passes(FOREVER);
        (self.now - before, action)
    }

    /// The next action comes after the nominal delay and at most a tenth more.
    #[track_caller]
    pub(super) fn acts_after(&mut self, nominal: Duration, action: Option<Action>) {
        let (waited, acted) = self.waits();
        assert_eq!(acted, action);
        assert!((nominal..=nominal * 11 / 10).contains(&waited), "{waited:?} for {nominal:?}");
    }

    /// Crashes until the unit gives up.
    pub(super) fn gives_up(&mut self) {
        while self.status() != Status::Error {
            if self.unit.run().is_none() {
                self.passes(FOREVER).expect("a restart is due");
            }
            self.crashes();
        }
        self.logged();
    }

    pub(super) fn status(&self) -> Status {
        self.unit.view(self.now).status
    }

    pub(super) fn reason(&self) -> String {
        self.unit.view(self.now).reason
    }

    pub(super) fn restarts(&self) -> u32 {
        self.unit.view(self.now).restarts
    }

    pub(super) fn logged(&mut self) -> Vec<LoggedEvent> {
        self.unit.take_logged_events()
    }

    #[track_caller]
    pub(super) fn shows(&self, status: Status, reason: &str) {
        assert_eq!((self.status(), self.reason().as_str()), (status, reason));
    }
}
