//! Stories of daemons that die: what the next one makes of what is left.

use super::super::{Found, RestartState, Unit};
use super::world::*;
use crate::{Cause, Event, LoggedEvent, OnStop, RestartPolicy, RunId, Status, Wanted};

/// Another daemon takes up the unit; no run is left.
fn next(left: World) -> (World, Option<crate::Action>) {
    taken_up(left, RestartPolicy::default(), None)
}

#[test]
fn what_was_given_up_stays_given_up() {
    let mut w = world();
    w.gives_up();
    let (total, reason) = (w.unit.view(w.now).restarts_total, w.reason());
    w.now += secs(100);
    let (mut w, action) = next(w);
    assert_eq!(action, None);
    w.shows(Status::Error, &reason);
    assert_eq!((w.restarts(), w.unit.view(w.now).restarts_total), (10, total));
    assert_eq!(w.passes(FOREVER), None);

    assert_eq!(w.tell(Event::Restart), start(12));
    assert_eq!(w.restarts(), 0);
}

#[test]
fn the_half_open_try_is_due_when_it_was() {
    let mut w = world();
    w.gives_up();
    w.passes(secs(200));
    let (mut w, _) = next(w);
    w.passes(secs(99));
    assert_eq!(w.tell(Event::Demand), None);
    w.passes(secs(1));
    assert_eq!(w.tell(Event::Demand), start(12));
    assert_eq!(w.crashes(), None);
    assert_eq!(w.status(), Status::Error);
}

#[test]
fn a_restart_is_due_when_it_was() {
    let mut w = world();
    for _ in 0..4 {
        w.crashes();
        w.waits();
    }
    w.crashes();
    let due = w.unit.view(w.now).next_restart.expect("it is due");
    w.passes(secs(30));
    let (mut w, action) = next(w);
    assert_eq!((action, w.unit.view(w.now).next_restart), (None, Some(due)));
    let left = due - w.now;
    assert_eq!(w.waits(), (left, start(6)));
    assert_eq!(w.logged(), [LoggedEvent::Starting { run: RunId::new(6), attempt: 5 }]);
    w.crashes();
    assert_eq!(w.restarts(), 6);
}

#[test]
fn a_restart_that_was_due_meanwhile_is_made_at_once() {
    let mut w = world();
    w.crashes();
    w.crashes();
    w.now += secs(60);
    let (mut w, action) = next(w);
    assert_eq!(action, start(3));
    assert_eq!(w.crashes(), None);
    w.acts_after(secs(10), start(4));
}

#[test]
fn a_clock_that_was_set_back_makes_no_delay_longer() {
    let mut w = world();
    w.crashes();
    w.crashes();
    let mut past = w.unit.history();
    past.restart_state = RestartState::Due { attempt: 2, at: w.now + FOREVER };
    let policy = RestartPolicy::default();
    w.unit = Unit::resume(w.now, policy, 7, Wanted::On, None, past);
    w.tell(Event::Tick);
    w.acts_after(secs(5), start(3));
}

#[test]
fn failures_count_across_daemons() {
    let mut w = world();
    let mut run = 1;
    for _ in 0..10 {
        w.comes_up();
        let found = Found { run: RunId::new(run), age: secs(1), ready_for: Some(secs(1)) };
        let (taken, action) = taken_up(w, RestartPolicy::default(), Some(found));
        w = taken;
        assert_eq!((action, w.status()), (None, Status::Running));
        run += 1;
        let started = w.crashes().or_else(|| w.passes(FOREVER));
        assert_eq!(started, start(run));
    }
    assert_eq!(w.crashes(), None);
    assert_eq!(w.status(), Status::Error);
}

#[test]
fn a_run_that_becomes_stable_under_the_next_daemon_resets_the_budget() {
    let mut w = world();
    w.crashes();
    w.comes_up();
    w.passes(secs(20));
    let found = Found { run: RunId::new(2), age: secs(20), ready_for: Some(secs(20)) };
    let (mut w, _) = taken_up(w, RestartPolicy::default(), Some(found));
    w.passes(secs(9));
    assert_eq!(w.restarts(), 1);
    w.passes(secs(1));
    assert_eq!(w.restarts(), 0);
    assert_eq!(w.logged(), [LoggedEvent::BudgetReset { run: RunId::new(2) }]);
}

#[test]
fn a_stop_that_was_respected_is_respected_by_the_next_daemon() {
    let policy = RestartPolicy { on_stop: OnStop::Respect, ..RestartPolicy::default() };
    let mut w = world_with(|ours| *ours = policy.clone());
    w.comes_up();
    assert_eq!(w.ends(Cause::StoppedBySomeone), None);
    w.now += secs(1000);
    let (mut w, action) = taken_up(w, policy, None);
    assert_eq!(action, None);
    w.shows(Status::Stopped, "stopped by someone else; start it to bring it back");
    assert_eq!(w.passes(FOREVER), None);
    // Whoever starts the workload by hand takes the stop back.
    assert_eq!(w.tell(Event::Adopted { old: RunId::new(1), new: RunId::new(2) }), None);
    assert_eq!(w.unit.wanted(), Wanted::On);
}

#[test]
fn a_restart_of_the_machine_ends_the_run_whose_end_nobody_saw() {
    let mut w = world();
    assert_eq!(Unit::new(RestartPolicy::default(), 7).history().unfinished_run(), None);
    w.crashes();
    w.comes_up();
    let past = w.unit.history();
    assert_eq!(past.last_end.as_ref().map(|end| end.run), Some(RunId::new(1)));
    assert_eq!(past.unfinished_run(), Some(RunId::new(2)));
    let (failures, past) = (past.failures, past.after_reboot(w.now));
    let end = past.last_end.clone().unwrap();
    assert_eq!(
        (end.run, end.cause.after(end.ran_for)),
        (RunId::new(2), "the machine restarted".to_owned())
    );
    assert_eq!((past.unfinished_run(), past.failures), (None, failures));
    w.unit = Unit::resume(w.now, RestartPolicy::default(), 7, Wanted::On, None, past);
    assert_eq!(w.tell(Event::Tick), start(3), "it is neither charged nor waited for");

    w.crashes();
    let past = w.unit.history();
    assert_eq!(past.clone().after_reboot(w.now), past, "that end was seen");
}

#[test]
fn what_is_not_wanted_waits_for_nothing() {
    let mut w = world();
    w.crashes();
    w.crashes();
    w.want(Wanted::Off);
    let (mut w, action) = next(w);
    assert_eq!((action, w.status()), (None, Status::Stopped));
    assert_eq!(w.want(Wanted::On), start(3));
    assert_eq!(w.restarts(), 0);
}
