//! Stories of engines that go away and hosts that sleep.

use super::world::*;
use crate::{Cause, Event, Exit, LoggedEvent, RunId, Status, Wanted};

#[test]
fn an_outage_of_an_hour_charges_nothing() {
    let mut w = world();
    w.comes_up();
    w.passes(secs(10));
    assert_eq!(w.loses_engine(), None);
    w.passes(secs(1));
    assert_eq!(w.crashes(), None);
    w.passes(secs(3599));
    w.shows(Status::Waiting, "no engine answers, for 1 h; started when it is back");
    assert_eq!(w.unit.view(w.now).next_restart, None);
    w.tell(Event::EngineBack).or_else(|| w.passes(secs(2))).expect("a start within 2 s");
    w.shows(Status::Restarting, "lost with its engine, restarting");
    let view = w.unit.view(w.now);
    assert_eq!((view.restarts, view.restarts_total), (0, 1));
    assert_eq!(view.last_end.expect("it ended").cause, Cause::EngineAway);
}

/// What an outage is told as.
fn away() -> LoggedEvent {
    LoggedEvent::EngineAway { why: "no engine answers".to_owned() }
}

#[test]
fn the_reason_of_an_outage_may_change_but_is_told_once() {
    let mut w = world();
    w.comes_up();
    w.logged();
    w.loses_engine();
    w.passes(secs(12));
    w.tell(Event::EngineAway { why: "another engine answers".to_owned() });
    assert_eq!(w.reason(), "another engine answers, for 12 s");
    assert_eq!(w.logged(), [away()]);
}

#[test]
fn a_run_may_live_through_an_outage() {
    let mut w = world();
    w.crashes();
    w.comes_up();
    w.passes(secs(29));
    w.loses_engine();
    // The charge was made within the last 30 s, so it is refunded.
    assert_eq!(w.restarts(), 0);
    w.passes(secs(3600));
    assert_eq!(w.reason(), "no engine answers, for 1 h");
    assert_eq!(w.tell(Event::EngineBack), None);
    w.shows(Status::Running, "ready");
    assert!(!w.unit.view(w.now).stable);
    w.passes(secs(1));
    assert!(w.unit.view(w.now).stable);
}

#[test]
fn clocks_stand_still_during_an_outage() {
    let mut w = world();
    w.passes(secs(100));
    w.loses_engine();
    assert_eq!(w.passes(FOREVER), None);
    assert_eq!(w.tell(Event::EngineBack), None);
    assert_eq!(w.waits(), (secs(20), stop(1)));
    w.passes(secs(10));
    w.loses_engine();
    assert_eq!(w.passes(FOREVER), None);
    assert_eq!(w.tell(Event::EngineBack), None);
    assert_eq!(w.waits(), (secs(5), kill(1)));
}

#[test]
fn a_pause_and_an_outage_may_overlap() {
    let mut w = world();
    w.passes(secs(100));
    w.news(|run| Event::Paused { run });
    w.passes(secs(50));
    w.loses_engine();
    w.passes(secs(50));
    w.news(|run| Event::Unpaused { run });
    w.passes(secs(50));
    assert_eq!(w.tell(Event::EngineBack), None);
    assert_eq!(w.waits(), (secs(20), stop(1)));
}

#[test]
fn an_old_delay_goes_on_after_an_outage() {
    let mut w = world();
    for _ in 0..5 {
        w.crashes().or_else(|| w.waits().1).expect("a restart");
    }
    assert_eq!(w.crashes(), None);
    w.passes(secs(40));
    w.loses_engine();
    assert_eq!(w.restarts(), 6);
    w.passes(secs(3600));
    assert_eq!(w.tell(Event::EngineBack), None);
    let (waited, action) = w.waits();
    assert_eq!(action, start(7));
    assert!((secs(20)..=secs(26)).contains(&waited), "{waited:?}");
}

#[test]
fn a_death_that_turns_out_to_belong_to_an_outage_is_refunded() {
    let mut w = world();
    assert_eq!(w.crashes_after(secs(3)), start(2));
    assert_eq!(w.crashes_after(secs(3)), None);
    w.logged();
    w.loses_engine();
    assert_eq!(w.logged(), [away(), LoggedEvent::Refunded { count: 2 }]);
    assert_eq!(w.restarts(), 0);
    w.passes(secs(60));
    w.tell(Event::EngineBack).or_else(|| w.passes(secs(2))).expect("a start within 2 s");
    assert_eq!(w.crashes(), start(4));
}

#[test]
fn a_give_up_that_belongs_to_an_outage_is_undone_and_an_old_one_is_not() {
    for (ago, undone) in [(30, true), (31, false)] {
        let mut w = world();
        w.gives_up();
        w.passes(secs(ago));
        w.loses_engine();
        assert_eq!(w.status() == Status::Waiting, undone);
        let action = w.tell(Event::EngineBack).or_else(|| w.passes(secs(2)));
        assert_eq!(action, undone.then_some(start(12)).flatten());
    }
}

#[test]
fn a_start_that_fails_for_want_of_an_engine_is_tried_again() {
    let failed = |run| Event::StartFailed { run, why: "connection refused".to_owned() };
    let mut before = world();
    before.news(failed);
    before.passes(secs(1));
    before.loses_engine();

    let mut during = world();
    during.loses_engine();
    during.news(failed);

    for mut w in [before, during] {
        assert_eq!(w.status(), Status::Waiting);
        assert_eq!(w.tell(Event::EngineBack).or_else(|| w.passes(secs(2))), start(2));
    }
}

#[test]
fn a_run_found_lost_after_the_return_is_not_charged() {
    let mut w = world();
    w.comes_up();
    w.loses_engine();
    w.passes(secs(60));
    w.tell(Event::EngineBack);
    assert_eq!(w.ends(Cause::EngineAway).or_else(|| w.passes(secs(2))), start(2));
    assert_eq!(w.restarts(), 0);
}

/// An engine that lost a container's standard input in the outage starts it with that closed, once.
#[test]
fn a_clean_exit_right_after_an_outage_is_excused_once() {
    let after_an_outage = || {
        let mut w = world();
        w.comes_up();
        w.loses_engine();
        w.crashes();
        w.tell(Event::EngineBack).or_else(|| w.passes(secs(2))).expect("a start within 2 s");
        w
    };
    let clean = || Cause::Exited(Exit::code(0));
    let mut w = after_an_outage();
    w.ends(clean()).or_else(|| w.passes(secs(2))).expect("started again");
    assert_eq!(w.restarts(), 0);
    w.ends(clean());
    assert_eq!(w.restarts(), 1, "once");

    let mut w = after_an_outage();
    w.ends(Cause::Exited(Exit::code(1)));
    assert_eq!(w.restarts(), 1, "an error is an error");
    let mut w = after_an_outage();
    w.comes_up();
    w.ends(clean());
    assert_eq!(w.restarts(), 1, "it had its standard input");
}

#[test]
fn what_is_asked_during_an_outage_is_done_at_its_end() {
    let mut w = world();
    w.comes_up();
    w.loses_engine();
    assert_eq!(w.want(Wanted::Off), None);
    assert_eq!(w.reason(), "no engine answers, for 0 ms; stopped when it is back");
    assert_eq!(w.tell(Event::EngineBack), stop(1));

    let mut w = world();
    w.loses_engine();
    assert_eq!(w.tell(Event::Restart), None);
    assert_eq!(w.tell(Event::EngineBack), stop(1));
    assert_eq!(w.crashes(), start(2));

    let mut w = world();
    w.want(Wanted::Off);
    w.crashes();
    w.loses_engine();
    assert_eq!(w.status(), Status::Stopped);
    assert_eq!(w.want(Wanted::On), None);
    assert_eq!(w.tell(Event::EngineBack), start(2));
}

#[test]
fn what_is_removed_during_an_outage_does_not_wait_for_its_end() {
    let mut up = world();
    up.comes_up();
    let mut stopping = world();
    stopping.want(Wanted::Off);
    let mut resting = world();
    resting.crashes();
    resting.crashes();
    let mut failed = world();
    failed.gives_up();
    let mut off = world();
    off.want(Wanted::Off);
    off.crashes();
    for mut w in [up, stopping, resting, failed, off] {
        w.loses_engine();
        assert_eq!(w.want(Wanted::Gone), Some(crate::Action::Forget));
        w.shows(Status::Removing, "removed");
        assert_eq!(w.tell(Event::EngineBack), None);
    }

    let mut w = world();
    w.want(Wanted::Gone);
    assert_eq!(w.loses_engine(), Some(crate::Action::Forget));
}

#[test]
fn starts_after_an_outage_are_spread() {
    let waits = (0..50).map(|seed| {
        let mut w = world();
        w.unit = super::super::Unit::new(crate::RestartPolicy::default(), seed);
        w.want(Wanted::On);
        w.loses_engine();
        w.crashes();
        w.passes(secs(10));
        w.tell(Event::EngineBack).map_or_else(|| w.waits().0, |_| secs(0))
    });
    let waits: Vec<_> = waits.collect();
    assert!(waits.iter().all(|wait| *wait <= secs(2)));
    assert!(waits.iter().any(|wait| *wait < secs(1) / 2));
    assert!(waits.iter().any(|wait| *wait > secs(3) / 2));
}

#[test]
fn deaths_after_a_resume_are_excused_but_never_in_a_hot_loop() {
    let mut w = world();
    w.comes_up();
    w.passes(secs(10));
    w.tell(Event::HostResumed);
    assert_eq!(w.crashes(), start(2));
    let resumed = w.now;
    while w.now - resumed < secs(29) {
        assert_eq!(w.crashes(), None);
        assert_eq!(w.waits().0, secs(1));
        assert_eq!(w.restarts(), 0);
    }
    w.passes(secs(1));
    assert_eq!(w.crashes(), start(32));
    w.passes(secs(1));
    assert_eq!(w.restarts(), 0);
    assert_eq!(w.crashes(), start(33));
    assert_eq!(w.restarts(), 1);
    assert!(w.logged().contains(&LoggedEvent::HostResumed));
}

#[test]
fn deaths_just_before_a_resume_was_noticed_are_refunded() {
    let mut w = world();
    assert_eq!(w.crashes_after(secs(3)), start(2));
    w.comes_up();
    w.passes(secs(10));
    assert_eq!(w.crashes(), None);
    w.passes(secs(5));
    w.logged();
    assert_eq!(w.restarts(), 2);
    // The first charge was made 15 s ago, so it stays, but an outage would still refund it.
    assert_eq!(w.tell(Event::HostResumed), start(3));
    assert_eq!(w.logged()[..2], [LoggedEvent::HostResumed, LoggedEvent::Refunded { count: 1 }]);
    assert_eq!((w.restarts(), w.unit.view(w.now).restarts_total), (1, 2));
    w.shows(Status::Restarting, "exited 1 after 10 s, restarting");
    w.loses_engine();
    assert_eq!(w.restarts(), 0);

    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.crashes(), None);
    assert_eq!(w.tell(Event::HostResumed), None);
    assert_eq!(w.restarts(), 0);
    assert_eq!(w.waits(), (secs(1), start(3)));
}

#[test]
fn a_give_up_just_before_a_resume_was_noticed_is_undone() {
    for (ago, undone) in [(5, true), (6, false)] {
        let mut w = world();
        w.gives_up();
        w.passes(secs(ago));
        assert_eq!(w.tell(Event::HostResumed), undone.then_some(start(12)).flatten());
        assert_eq!(w.status() == Status::Error, !undone);
    }
}

#[test]
fn a_resume_does_not_make_an_impossible_start_possible() {
    let mut w = world();
    w.news(|run| Event::StartFailed { run, why: "no such program".to_owned() });
    assert_eq!(w.tell(Event::HostResumed), None);
    assert_eq!(w.status(), Status::Error);
}

#[test]
fn an_outage_does_not_hide_a_stop_on_request() {
    let mut w = world();
    w.comes_up();
    w.want(Wanted::Off);
    w.loses_engine();
    assert_eq!(w.ends(Cause::Exited(Exit::code(0))), None);
    w.shows(Status::Stopped, "stopped on request");
    assert_eq!(w.unit.view(w.now).last_end.expect("it ended").cause, Cause::Asked);
    assert_eq!(w.tell(Event::EngineBack), None);
    assert_eq!(w.unit.last_run(), RunId::new(1));
}

#[test]
fn a_run_that_set_ready_during_an_outage_is_stable_from_its_end_on() {
    let mut w = world();
    w.crashes();
    w.passes(secs(40));
    w.loses_engine();
    w.passes(secs(60));
    w.comes_up();
    w.passes(secs(60));
    w.tell(Event::EngineBack);
    w.passes(secs(29));
    assert_eq!(w.restarts(), 1);
    w.passes(secs(1));
    assert_eq!(w.restarts(), 0);
}

#[test]
fn a_call_during_an_outage_does_not_use_up_the_half_open_start() {
    let mut w = world();
    w.gives_up();
    w.passes(secs(300));
    w.loses_engine();
    assert_eq!(w.tell(Event::Demand), None);
    assert_eq!(w.status(), Status::Error);
    assert_eq!(w.tell(Event::EngineBack), None);
    assert_eq!(w.tell(Event::Demand), start(12));
}
