//! Stories of one run: deadlines, hangs, and what others do to it.

use std::time::Duration;

use super::world::*;
use crate::{Action, Cause, Event, Exit, Found, LoggedEvent, OnStop, RunId, Status, Wanted};

fn sigkill() -> Cause {
    Cause::Exited(Exit::signal(9))
}

#[test]
fn a_start_that_does_not_become_ready_is_ended_and_charged() {
    for news in [true, false] {
        let mut w = world();
        if news {
            w.news(|run| Event::Started { run });
        }
        assert_eq!(w.waits(), (secs(120), stop(1)));
        w.shows(Status::Stopping, "not ready: did not answer `initialize` within 2 min, ending it");
        assert_eq!(w.ends(Cause::Exited(Exit::code(0))), start(2));
        let end = w.unit.view(w.now).last_end.expect("it ended");
        assert_eq!(
            end.cause,
            Cause::NotReady("did not answer `initialize` within 2 min".to_owned())
        );
        assert_eq!(w.restarts(), 1);
    }
}

#[test]
fn an_answer_after_the_start_deadline_comes_too_late() {
    let mut w = world();
    assert_eq!(w.waits().1, stop(1));
    w.comes_up();
    assert_eq!(w.status(), Status::Stopping);
    assert_eq!(w.ends(sigkill()), start(2));
    assert_eq!(w.restarts(), 1);
}

#[test]
fn what_does_not_stop_is_killed_again_and_again() {
    let mut w = world();
    w.comes_up();
    assert_eq!(w.want(Wanted::Off), stop(1));
    w.shows(Status::Stopping, "stopping on request");
    assert_eq!(w.waits(), (secs(15), kill(1)));
    assert_eq!(w.waits(), (secs(5), kill(1)));
    assert_eq!(w.waits(), (secs(5), kill(1)));
    assert_eq!(w.ends(sigkill()), None);
    w.shows(Status::Stopped, "stopped on request");
    assert_eq!(w.passes(FOREVER), None);
}

#[test]
fn what_hangs_is_killed_and_keeps_that_cause() {
    let mut w = world();
    w.comes_up();
    w.passes(secs(10));
    w.logged();
    let what = "3 pings unanswered".to_owned();
    assert_eq!(w.news(|run| Event::Hung { run, what: what.clone() }), kill(1));
    w.shows(Status::Stopping, "failed: 3 pings unanswered, ending it");
    assert_eq!(w.waits(), (secs(5), kill(1)));
    // The time it takes to die does not make the run a stable one.
    w.now += secs(4);
    assert_eq!(w.ends(sigkill()), start(2));
    w.shows(Status::Restarting, "failed after 19 s: 3 pings unanswered, restarting");
    assert!(w.logged().contains(&LoggedEvent::Ended {
        run: RunId::new(1),
        cause: Cause::Hung(what),
        ran_for: secs(19),
        charged: true,
    }));
    assert_eq!(w.crashes(), None);
    assert_eq!(w.restarts(), 2);
}

#[test]
fn a_run_that_hangs_from_its_start_is_not_stable() {
    let hangs = |silent_after: u64| {
        let mut w = world();
        w.comes_up();
        w.crashes();
        w.comes_up();
        let since = w.now + secs(silent_after);
        w.passes(secs(70));
        assert_eq!(w.news(|run| Event::Silent { run, since }), None);
        w.news(|run| Event::Hung { run, what: "it reads nothing".to_owned() });
        w.ends(sigkill());
        w.unit.view(w.now).restarts
    };
    assert_eq!([hangs(1), hangs(29), hangs(30), hangs(60)], [2, 2, 1, 1]);
}

#[test]
fn a_stop_by_someone_is_a_failure() {
    let mut w = world();
    w.comes_up();
    w.passes(secs(3));
    assert_eq!(w.ends(Cause::StoppedBySomeone), start(2));
    w.shows(Status::Restarting, "stopped by someone else after 3 s, restarting");
    assert_eq!(w.restarts(), 1);
}

#[test]
fn unless_it_is_to_be_respected() {
    let mut w = world_with(|policy| policy.on_stop = OnStop::Respect);
    w.comes_up();
    assert_eq!(w.ends(Cause::StoppedBySomeone), None);
    assert_eq!(w.unit.wanted(), Wanted::Off);
    w.shows(Status::Stopped, "stopped by someone else; start it to bring it back");
    assert!(w.logged().contains(&LoggedEvent::Respected));
    assert_eq!(w.passes(FOREVER), None);
    assert_eq!(w.want(Wanted::On), start(2));
    assert_eq!(w.crashes(), start(3));
}

#[test]
fn a_restart_by_someone_is_adopted_and_not_charged() {
    let mut w = world();
    w.comes_up();
    w.passes(secs(10));
    assert_eq!(w.news(|old| Event::Adopted { old, new: RunId::new(2) }), None);
    assert_eq!((w.unit.run(), w.unit.last_run()), (Some(RunId::new(2)), RunId::new(2)));
    w.shows(Status::Restarting, "restarted by someone else, not ready yet");
    assert_eq!(w.restarts(), 0);
    assert_eq!(w.tell(Event::Gone { run: RunId::new(1), cause: sigkill() }), None);
    assert_eq!(w.waits(), (secs(120), stop(2)));
}

#[test]
fn adoption_keeps_what_was_asked_and_forgets_faults() {
    let new = RunId::new(2);
    let mut w = world();
    assert_eq!(w.tell(Event::Restart), stop(1));
    assert_eq!(w.news(|old| Event::Adopted { old, new }), stop(2));
    assert_eq!(w.ends(sigkill()), start(3));
    assert_eq!(w.restarts(), 0);

    let mut w = world();
    assert_eq!(w.news(|run| Event::Hung { run, what: "ping".to_owned() }), kill(1));
    assert_eq!(w.news(|old| Event::Adopted { old, new }), None);
    w.comes_up();
    assert_eq!(w.status(), Status::Running);
}

#[test]
fn a_run_number_is_never_used_twice() {
    let mut w = world();
    w.comes_up();
    let before = w.unit.clone();
    assert_eq!(w.news(|old| Event::Adopted { old, new: old }), None);
    assert_eq!(w.unit, before);
}

#[test]
fn what_is_paused_is_never_killed() {
    let mut w = world();
    w.passes(secs(100));
    assert_eq!(w.news(|run| Event::Paused { run }), None);
    w.shows(Status::Waiting, "paused by someone else");
    assert_eq!(w.passes(FOREVER), None);
    assert_eq!(w.news(|run| Event::Hung { run, what: "ping".to_owned() }), None);
    assert_eq!(w.news(|run| Event::Unpaused { run }), None);
    assert_eq!(w.waits(), (secs(20), stop(1)));
}

#[test]
fn a_pause_is_no_time_of_stability() {
    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    w.comes_up();
    w.passes(secs(29));
    w.news(|run| Event::Paused { run });
    w.passes(secs(100));
    w.news(|run| Event::Unpaused { run });
    assert_eq!(w.restarts(), 1);
    w.passes(secs(1));
    assert_eq!(w.restarts(), 0);
}

#[test]
fn a_paused_run_still_stops_on_request() {
    let mut w = world();
    w.news(|run| Event::Paused { run });
    assert_eq!(w.want(Wanted::Off), stop(1));
    assert_eq!(w.waits(), (secs(15), kill(1)));
}

#[test]
fn health_shows_only_once_a_run_was_ready() {
    let mut w = world();
    w.news(|run| Event::Unhealthy { run });
    assert_eq!(w.status(), Status::Starting);
    w.comes_up();
    w.shows(Status::Unhealthy, "does not answer as it used to");
    w.news(|run| Event::Healthy { run });
    w.shows(Status::Running, "ready");
}

#[test]
fn a_removal_is_final_in_every_state() {
    let removed = |run| Event::Gone { run, cause: Cause::Removed };
    let mut starting = world();
    assert_eq!(starting.news(removed), Some(Action::Forget));

    let mut resting = world();
    resting.crashes();
    assert_eq!(resting.crashes(), None);
    assert_eq!(resting.tell(removed(RunId::new(2))), Some(Action::Forget));

    let mut given_up = world();
    given_up.gives_up();
    assert_eq!(given_up.tell(removed(given_up.unit.last_run())), Some(Action::Forget));

    let mut stopping = world();
    assert_eq!(stopping.want(Wanted::Off), stop(1));
    assert_eq!(stopping.news(removed), Some(Action::Forget));

    let mut away = world();
    assert_eq!(away.loses_engine(), None);
    assert_eq!(away.news(removed), Some(Action::Forget));

    for mut w in [starting, resting, given_up, stopping, away] {
        w.shows(Status::Removing, "removed");
        w.logged();
        let before = w.unit.clone();
        for event in [Event::Restart, Event::Want(Wanted::On), Event::Tick, Event::EngineBack] {
            assert_eq!(w.tell(event), None);
        }
        assert_eq!(w.unit, before);
    }
}

#[test]
fn a_healthy_run_is_found_and_left_alone() {
    let run = RunId::new(4);
    let found = Found { run, age: secs(100), ready_for: Some(secs(90)) };
    let (mut w, action) = resumed(Wanted::On, Some(found));
    assert_eq!(action, None);
    w.shows(Status::Running, "ready");
    let view = w.unit.view(w.now);
    assert_eq!(view.started.map(|at| w.now - at), Some(secs(100)));
    assert!(view.stable);
    assert_eq!(w.crashes(), start(5));
}

#[test]
fn a_run_found_unready_gets_a_whole_start_deadline() {
    let found = Found { run: RunId::new(9), age: secs(1000), ready_for: None };
    let (mut w, action) = resumed(Wanted::On, Some(found));
    assert_eq!(action, None);
    assert_eq!(w.waits(), (secs(120), stop(9)));
    assert_eq!(w.ends(sigkill()), start(10));
}

#[test]
fn what_is_found_against_the_intent_is_ended() {
    let found = Found { run: RunId::new(4), age: secs(1), ready_for: Some(Duration::ZERO) };
    assert_eq!(resumed(Wanted::Off, Some(found)).1, stop(4));
    let (mut w, action) = resumed(Wanted::Gone, Some(found));
    assert_eq!(action, stop(4));
    assert_eq!(w.ends(sigkill()), Some(Action::Forget));
}

#[test]
fn without_a_run_the_intent_alone_decides() {
    assert_eq!(resumed(Wanted::On, None).1, start(5));
    assert_eq!(resumed(Wanted::Gone, None).1, Some(Action::Forget));
    let (w, action) = resumed(Wanted::Off, None);
    assert_eq!(action, None);
    w.shows(Status::Stopped, "not started");
}
