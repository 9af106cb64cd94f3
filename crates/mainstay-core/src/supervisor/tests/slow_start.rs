//! Runs that take long to become ready.

use super::*;
use crate::start_activity::StartKind;

impl World {
    /// Lets time pass while the run does not answer `initialize`; observations are answered with this evidence.
    fn wait_for_start(&mut self, time: Duration, evidence: &StartEvidence) -> usize {
        let (end, mut observed) = (self.now + time, 0);
        while let Some(deadline) = self.supervisor.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(deadline);
            self.tell(Event::Tick);
            while let Some(action) = self.pending.pop_front() {
                let event = match action {
                    Action::Start(run) => Event::Started(run, Ok(Started::default())),
                    Action::ObserveStart(run) => {
                        observed += 1;
                        Event::StartObserved(run, evidence.clone())
                    }
                    Action::End { run, .. } => {
                        self.alive.remove(&run);
                        self.gone(run, Cause::Exited(Exit::signal(15)))
                    }
                    Action::Observe(connection) => Event::Observed(connection, None),
                    other => panic!("{other:?}"),
                };
                self.tell(event);
            }
        }
        self.now = end;
        observed
    }

    /// A server whose first run exists and has not answered.
    fn starting(spec: ServerSpec) -> Self {
        let mut world = Self::new(spec);
        world.step();
        assert!(world.opening.is_some());
        world
    }

    fn reason(&self) -> String {
        self.supervisor.unit().view(self.now).reason
    }
}

#[test]
fn a_fast_start_is_not_observed() {
    let mut world = World::starting(process());
    assert_eq!(world.wait_for_start(2 * SECOND, &slow_start()), 0);
    world.settle();
    assert_eq!(world.availability(), Availability::Up);
    assert_eq!(world.wait_for_start(20 * SECOND, &slow_start()), 0);
}

#[test]
fn a_slow_start_is_explained_until_it_is_ready() {
    let mut world = World::starting(process());
    assert_eq!(world.wait_for_start(4 * SECOND, &slow_start()), 1);
    assert_eq!(world.reason(), "it has not answered `initialize` yet");
    world.wait_for_start(8 * SECOND, &slow_start());
    let doing =
        "it has not read `initialize` (154 bytes unread), and none of its threads ran for 9 s";
    assert_eq!(world.reason(), format!("starting for 12 s: {doing}"));
    let Availability::Coming { why, .. } = world.availability() else { panic!() };
    assert!(why.ends_with(doing), "{why}");
    assert!(world.wait_for_start(60 * SECOND, &slow_start()) < 12);
    world.settle();
    assert_eq!(world.availability(), Availability::Up);
    assert_eq!(world.supervisor.unit().start_activity(), None);
}

#[test]
fn the_end_of_a_start_names_what_the_run_did() {
    let mut world = World::starting(process());
    world.wait_for_start(122 * SECOND, &slow_start());
    let end = world.supervisor.unit().view(world.now).last_end.expect("it has timed out");
    let Cause::NotReady(what) = &end.cause else { panic!("{end:?}") };
    let expected =
        "did not answer `initialize` within 2 min: at the end, it has not read `initialize`";
    assert!(what.starts_with(expected), "{what}");
    // What the next run does is not known yet.
    assert_eq!(world.supervisor.unit().start_activity(), None);
}

#[test]
fn nothing_false_is_said_where_nothing_can_be_seen() {
    let mut world = World::starting(container());
    world.wait_for_start(20 * SECOND, &StartEvidence::default());
    assert_eq!(world.reason(), "it has not answered `initialize` yet");
    // A server that speaks HTTP has no input of which it could have read something.
    world.wait_for_start(20 * SECOND, &slow_start());
    let activity = world.supervisor.unit().start_activity().expect("its process is seen");
    assert_eq!((activity.kind, activity.input), (StartKind::Running, StartInput::Unknown));
}

#[test]
fn evidence_about_an_older_run_changes_nothing() {
    let mut world = World::starting(process());
    world.wait_for_start(4 * SECOND, &slow_start());
    world.tell(Event::StartObserved(RunId::new(9), slow_start()));
    assert_eq!(world.supervisor.unit().start_activity(), None);
    world.die();
    world.tell(Event::StartObserved(RunId::new(1), slow_start()));
    assert_eq!(world.supervisor.unit().start_activity(), None);
}
