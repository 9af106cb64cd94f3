//! Stories of runs that exited and left something behind.

use super::world::*;
use crate::{Action, Cause, Event, Exit, LoggedEvent, RunId, Status, Wanted};

const LEFTOVERS: &str = "exited; ending what it left behind";

impl World {
    /// The own process of the present run ends.
    fn exits(&mut self) -> Option<Action> {
        self.news(|run| Event::Exited { run })
    }
}

/// A world whose second run came up, lived for 25 s and has just exited.
fn exited() -> World {
    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    w.comes_up();
    assert_eq!(w.passes(secs(25)), None);
    w.logged();
    assert_eq!(w.exits(), None);
    w
}

#[test]
fn a_run_is_judged_as_of_its_exit() {
    let mut w = exited();
    let at = w.now;
    assert_eq!(w.passes(secs(10)), None);
    assert_eq!(w.restarts(), 1);
    assert_eq!(w.crashes(), None);
    assert_eq!(w.restarts(), 2);
    let end = w.unit.view(w.now).last_end.expect("it ended");
    assert_eq!((end.ran_for, end.ready_for, end.at), (secs(25), Some(secs(25)), at));
    assert_eq!(w.logged()[0].to_string(), "exited 1 after 25 s (uses up a restart)");
    w.acts_after(secs(5), start(3));
}

#[test]
fn a_run_that_was_stable_at_its_exit_stays_so() {
    for (up, restarts) in [(secs(30), 1), (secs(29), 2)] {
        let mut w = world();
        assert_eq!(w.crashes(), start(2));
        w.comes_up();
        w.now += up;
        w.exits();
        w.passes(secs(3));
        w.crashes();
        assert_eq!(w.restarts(), restarts, "{up:?}");
    }
}

#[test]
fn what_has_exited_is_no_longer_running_and_nothing_is_awaited_of_it() {
    let mut w = exited();
    w.shows(Status::Restarting, LEFTOVERS);
    assert_eq!(w.unit.run(), Some(RunId::new(2)));
    let before = w.unit.clone();
    for event in [
        |run| Event::Started { run },
        |run| Event::Ready { run },
        |run| Event::Exited { run },
        |run| Event::Paused { run },
        |run| Event::Unhealthy { run },
        |run| Event::Hung { run, what: "ping".to_owned() },
    ] {
        assert_eq!(w.news(event), None);
    }
    assert_eq!(w.unit, before);
    assert_eq!(w.logged(), []);
}

#[test]
fn the_start_deadline_is_not_for_what_has_exited() {
    let mut w = world();
    w.passes(secs(119));
    assert_eq!(w.exits(), None);
    w.shows(Status::Restarting, LEFTOVERS);
    assert_eq!(w.passes(secs(10)), None);
    assert_eq!(w.ends(Cause::Exited(Exit::code(2))), start(2));
    w.shows(Status::Restarting, "exited 2 after 1 min 59 s, restarting");
}

#[test]
fn leftovers_that_stay_are_killed_again_and_again() {
    let mut w = exited();
    assert_eq!(w.passes(secs(10)), None);
    // Telling it twice wins no time.
    assert_eq!(w.exits(), None);
    assert_eq!(w.waits(), (secs(5), kill(2)));
    assert_eq!(w.waits(), (secs(5), kill(2)));
    assert_eq!(w.waits(), (secs(5), kill(2)));
    w.shows(Status::Restarting, LEFTOVERS);
    assert_eq!(w.ends(Cause::Exited(Exit::code(1))), None);
    assert_eq!(w.unit.view(w.now).last_end.expect("it ended").ran_for, secs(25));
}

#[test]
fn what_will_not_be_started_again_does_not_say_so() {
    let mut w = world_with(|policy| policy.max = 0);
    w.comes_up();
    w.exits();
    w.shows(Status::Stopping, LEFTOVERS);
    w.crashes();
    assert_eq!(w.status(), Status::Error);
}

#[test]
fn requests_are_heeded_while_leftovers_are_ended() {
    let mut w = exited();
    assert_eq!(w.want(Wanted::Off), None);
    w.shows(Status::Stopping, "stopping on request");
    assert_eq!(w.crashes(), None);
    w.shows(Status::Stopped, "stopped on request");

    let mut w = exited();
    assert_eq!(w.want(Wanted::Gone), None);
    w.shows(Status::Removing, "removing on request");
    assert_eq!(w.waits(), (secs(15), kill(2)));
    assert_eq!(w.crashes(), Some(Action::Forget));

    let mut w = exited();
    assert_eq!(w.tell(Event::Restart), None);
    w.shows(Status::Stopping, "stopping, then starting");
    assert_eq!(w.crashes(), start(3));
    assert_eq!(w.restarts(), 0);
}

#[test]
fn an_exit_on_request_keeps_its_cause_and_its_time() {
    let mut w = world_with(|policy| policy.stop_timeout = secs(3600));
    w.comes_up();
    w.passes(secs(10));
    assert_eq!(w.want(Wanted::Off), stop(1));
    w.passes(secs(1));
    assert_eq!(w.exits(), None);
    w.shows(Status::Stopping, "stopping on request");
    assert_eq!(w.waits(), (secs(15), kill(1)));
    assert_eq!(w.crashes(), None);
    let end = w.unit.view(w.now).last_end.expect("it ended");
    assert_eq!((end.cause, end.ran_for), (Cause::Asked, secs(11)));
}

#[test]
fn an_exit_of_what_hung_is_still_a_hang() {
    let mut w = world();
    w.comes_up();
    assert_eq!(w.news(|run| Event::Hung { run, what: "ping".to_owned() }), kill(1));
    assert_eq!(w.exits(), None);
    w.shows(Status::Stopping, "failed: ping, ending it");
    assert_eq!(w.waits(), (secs(5), kill(1)));
    assert_eq!(w.crashes(), start(2));
    w.shows(Status::Restarting, "failed after 0 ms: ping, restarting");
}

#[test]
fn what_was_asked_during_an_outage_is_not_lost_by_an_exit() {
    let mut w = world();
    w.comes_up();
    w.loses_engine();
    w.tell(Event::Restart);
    w.passes(secs(60));
    assert_eq!(w.exits(), None);
    w.passes(secs(60));
    assert_eq!(w.tell(Event::EngineBack), None);
    w.shows(Status::Stopping, "stopping, then starting");
    assert_eq!(w.waits(), (secs(15), kill(1)));
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.restarts(), 0);
}

#[test]
fn an_exit_within_the_grace_of_a_resume_is_excused_however_late_it_is_gone() {
    let mut w = world();
    w.comes_up();
    w.tell(Event::HostResumed);
    w.passes(secs(29));
    w.exits();
    w.passes(secs(10));
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.restarts(), 0);
    assert!(!w.logged().iter().any(|note| matches!(note, LoggedEvent::Scheduled { .. })));
}
