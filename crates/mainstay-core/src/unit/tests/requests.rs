//! Stories of what users ask for.

use super::world::*;
use crate::{Action, Cause, Event, Exit, LoggedEvent, RestartPolicy, RunId, Status, Unit, Wanted};

/// A world in the middle of a delay before its second restart.
fn resting() -> World {
    let mut w = world();
    assert_eq!(w.crashes_after(secs(3)), start(2));
    assert_eq!(w.crashes_after(secs(3)), None);
    w.passes(secs(1));
    w
}

#[test]
fn stop_removal_and_restart_act_at_once_during_a_delay() {
    let mut w = resting();
    assert_eq!(w.want(Wanted::Off), None);
    w.shows(Status::Stopped, "stopped on request");
    assert_eq!(w.passes(FOREVER), None);

    assert_eq!(resting().want(Wanted::Gone), Some(Action::Forget));

    let mut w = resting();
    assert_eq!(w.tell(Event::Restart), start(3));
    assert_eq!(w.restarts(), 0);
    w.shows(Status::Starting, "it has not answered `initialize` yet");

    assert_eq!(resting().tell(Event::Replaced(RestartPolicy::default())), start(3));
}

#[test]
fn start_during_a_delay_leaves_the_schedule_alone() {
    let mut w = resting();
    let before = w.unit.clone();
    assert_eq!(w.want(Wanted::On), None);
    assert_eq!(w.unit, before);
}

#[test]
fn a_stop_is_no_failure_however_it_ends() {
    let mut w = world();
    w.comes_up();
    w.logged();
    assert_eq!(w.want(Wanted::Off), stop(1));
    assert_eq!(w.ends(Cause::Exited(Exit::code(143))), None);
    let ended = |note: &LoggedEvent| {
        matches!(note, LoggedEvent::Ended { cause: Cause::Asked, charged: false, .. })
    };
    assert!(w.logged().iter().any(ended));
    assert_eq!(w.passes(FOREVER), None);
    assert_eq!(w.want(Wanted::On), start(2));
    assert_eq!(w.restarts(), 0);
}

#[test]
fn start_while_stopping_starts_as_soon_as_it_is_gone() {
    let mut w = world();
    w.comes_up();
    assert_eq!(w.want(Wanted::Off), stop(1));
    assert_eq!(w.want(Wanted::On), None);
    w.shows(Status::Stopping, "stopping, then starting");
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.restarts(), 0);
}

#[test]
fn a_restart_ends_the_run_and_starts_the_next_at_once() {
    let mut w = world();
    w.comes_up();
    for run in 1..20 {
        assert_eq!(w.tell(Event::Restart), stop(run));
        assert_eq!(w.tell(Event::Restart), None);
        assert_eq!(w.crashes(), start(run + 1));
    }
    let view = w.unit.view(w.now);
    assert_eq!((view.restarts, view.restarts_total), (0, 0));
}

#[test]
fn a_restart_turns_a_stopped_unit_on_but_saves_none_from_removal() {
    let mut w = world();
    assert_eq!(w.want(Wanted::Off), stop(1));
    assert_eq!(w.crashes(), None);
    assert_eq!(w.tell(Event::Restart), start(2));
    assert_eq!(w.unit.wanted(), Wanted::On);
    assert_eq!(w.want(Wanted::Gone), stop(2));
    assert_eq!(w.tell(Event::Restart), None);
    assert_eq!(w.crashes(), Some(Action::Forget));
}

#[test]
fn a_request_outweighs_the_fault_we_were_ending_a_run_for() {
    let hang = |run| Event::Hung { run, what: "ping".to_owned() };
    let mut w = world();
    assert_eq!(w.news(hang), kill(1));
    assert_eq!(w.tell(Event::Restart), None);
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.restarts(), 0);

    assert_eq!(w.news(hang), kill(2));
    assert_eq!(w.want(Wanted::Off), None);
    assert_eq!(w.want(Wanted::On), None);
    assert_eq!(w.crashes(), start(3));
    assert_eq!(w.restarts(), 0);
    assert_eq!(w.unit.view(w.now).last_end.expect("it ended").cause, Cause::Asked);
}

#[test]
fn a_removal_stops_first_and_forgets_then() {
    let mut w = world();
    w.comes_up();
    assert_eq!(w.want(Wanted::Gone), stop(1));
    w.shows(Status::Removing, "removing on request");
    assert_eq!(w.waits(), (secs(15), kill(1)));
    assert_eq!(w.crashes(), Some(Action::Forget));
    assert_eq!(w.logged().last(), Some(&LoggedEvent::Removed));
}

#[test]
fn what_never_ran_is_forgotten_at_once() {
    let mut unit = Unit::new(RestartPolicy::default(), 7);
    assert_eq!((unit.wanted(), unit.run(), unit.deadline()), (Wanted::Off, None, None));
    assert_eq!(unit.handle(origin(), Event::Want(Wanted::Gone)), Some(Action::Forget));
}

#[test]
fn stopping_a_given_up_unit_ends_the_error() {
    let mut w = world();
    w.gives_up();
    assert_eq!(w.want(Wanted::Off), None);
    w.shows(Status::Stopped, "stopped on request");
    assert_eq!(w.want(Wanted::On), start(12));
    assert_eq!(w.restarts(), 0);
}

/// What is told when the server is described anew, with just one restart allowed.
fn replaced() -> Event {
    Event::Replaced(RestartPolicy { max: 1, ..RestartPolicy::default() })
}

#[test]
fn what_is_described_anew_is_ended_and_started_as_soon_as_it_is_gone() {
    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    w.comes_up();
    w.logged();
    assert_eq!(w.tell(replaced()), stop(2));
    w.shows(Status::Stopping, "stopping, then starting");
    assert_eq!(w.tell(replaced()), None);
    assert_eq!(w.crashes(), start(3));
    let events: Vec<_> = w.logged().iter().map(LoggedEvent::event).collect();
    assert_eq!(events, ["replaced", "stopping", "replaced", "ended", "starting"]);
    assert_eq!(w.unit.view(w.now).last_end.expect("it ended").cause, Cause::Asked);
    let view = w.unit.view(w.now);
    assert_eq!((view.restarts, view.restart_max, view.restarts_total), (0, 1, 1));
    assert_eq!(w.crashes(), start(4));
    assert_eq!(w.crashes(), None);
    assert_eq!(w.status(), Status::Error);
}

#[test]
fn what_is_described_anew_without_a_run_is_started_once() {
    let mut given_up = world();
    given_up.gives_up();
    let mut impossible = world();
    impossible.news(|run| Event::StartFailed { run, why: "no such program".to_owned() });
    let mut away = resting();
    away.loses_engine();
    for mut w in [resting(), given_up, impossible] {
        let next = w.unit.last_run().next();
        assert_eq!(w.tell(replaced()), Some(Action::Start(next)));
        assert_eq!(w.restarts(), 0);
        w.shows(Status::Starting, "it has not answered `initialize` yet");
        w.comes_up();
        assert_eq!(w.passes(FOREVER), None);
    }
    assert_eq!(away.tell(replaced()), None);
    assert_eq!(away.tell(Event::EngineBack), start(3));
}

#[test]
fn what_is_described_anew_keeps_its_intent() {
    let mut w = world();
    w.want(Wanted::Off);
    assert_eq!(w.tell(replaced()), None);
    assert_eq!(w.crashes(), None);
    assert_eq!(w.tell(replaced()), None);
    w.shows(Status::Stopped, "stopped on request");
    assert_eq!(w.want(Wanted::On), start(2));
    assert_eq!(w.want(Wanted::Gone), stop(2));
    assert_eq!(w.tell(replaced()), None);
    assert_eq!(w.crashes(), Some(Action::Forget));
}

#[test]
fn news_of_another_run_changes_nothing() {
    let mut w = world();
    w.crashes();
    w.comes_up();
    let before = w.unit.clone();
    for run in [RunId::new(1), RunId::new(3)] {
        for event in [
            Event::Started { run },
            Event::StartFailed { run, why: String::new() },
            Event::Ready { run },
            Event::Exited { run },
            Event::Gone { run, cause: Cause::Removed },
            Event::Adopted { old: run, new: RunId::new(9) },
            Event::Paused { run },
            Event::Unpaused { run },
            Event::Unhealthy { run },
            Event::Healthy { run },
            Event::Hung { run, what: String::new() },
        ] {
            assert_eq!(w.tell(event), None);
        }
    }
    assert_eq!(w.unit, before);
}
