//! Stories of the restart schedule, the budget and stability.

use std::time::Duration;

use super::world::*;
use crate::{
    Action, Cause, Event, Exit, LoggedEvent, RestartPolicy, RunId, StableFrom, Status, Wanted,
};

const NOMINAL: [u64; 10] = [0, 5, 10, 20, 40, 60, 60, 60, 60, 60];

#[test]
fn success_at_the_first_go() {
    let mut w = world();
    w.shows(Status::Starting, "it has not answered `initialize` yet");
    w.comes_up();
    w.shows(Status::Running, "ready");
    assert_eq!(w.passes(FOREVER), None);
    let view = w.unit.view(w.now);
    assert_eq!((view.restarts, view.restarts_total, view.stable), (0, 0, true));
}

#[test]
fn short_runs_exhaust_the_budget() {
    let mut w = world();
    for (n, delay) in (1..).zip(NOMINAL) {
        let action = w.crashes_after(secs(3));
        if delay == 0 {
            assert_eq!(action, start(n + 1));
        } else {
            assert_eq!(action, None);
            w.acts_after(secs(delay), start(n + 1));
        }
        assert_eq!(u64::from(w.restarts()), n);
    }
    assert_eq!(w.crashes_after(secs(3)), None);
    w.shows(
        Status::Error,
        "gave up after 10 restarts; last: exited 1 after 3 s; restart it to try again",
    );
    assert_eq!(w.passes(FOREVER), None);
    let view = w.unit.view(w.now);
    assert_eq!((view.restarts, view.restarts_total), (10, 10));
}

#[test]
fn a_stable_run_in_the_middle_resets_the_budget() {
    let mut w = world();
    for n in 2..=5 {
        w.crashes_after(secs(3)).or_else(|| w.waits().1).expect("a restart");
        assert_eq!(w.unit.run(), Some(RunId::new(n)));
    }
    w.comes_up();
    w.shows(Status::Running, "ready, restarted 4 times");
    assert_eq!(w.passes(secs(30)), None);
    w.shows(Status::Running, "ready");
    assert!(w.logged().contains(&LoggedEvent::BudgetReset { run: RunId::new(5) }));
    assert_eq!(w.crashes(), start(6));
    w.shows(Status::Restarting, "exited 1 after 30 s, restarting");
    assert_eq!((w.restarts(), w.unit.view(w.now).restarts_total), (1, 5));
    assert_eq!(w.unit.view(w.now).last_restart, Some(w.now));
    assert_eq!(w.crashes_after(secs(3)), None);
    w.acts_after(secs(5), start(7));
}

#[test]
fn one_stable_run_extends_the_budget() {
    let starts = |stable_at: Option<u32>| {
        let mut w = world();
        let mut starts = 1;
        loop {
            let up = if stable_at == Some(starts) { secs(30) } else { secs(1) };
            if w.crashes_after(up).or_else(|| w.waits().1).is_none() {
                return starts;
            }
            starts += 1;
        }
    };
    assert_eq!(starts(None), 11);
    assert_eq!(starts(Some(1)), 11);
    assert_eq!(starts(Some(11)), 21);
}

#[test]
fn exactly_the_threshold_counts_and_a_nanosecond_less_does_not() {
    for (up, restarts) in [(secs(30), 1), (Duration::new(29, 999_999_999), 2)] {
        let mut w = world();
        assert_eq!(w.crashes_after(secs(1)), start(2));
        w.comes_up();
        // The crash is told before the tick, so it is judged at the death.
        w.now += up;
        w.crashes();
        assert_eq!(w.restarts(), restarts, "{up:?}");
    }
}

#[test]
fn a_fall_after_a_stable_run_and_then_success() {
    let mut w = world();
    w.comes_up();
    assert_eq!(w.passes(secs(7200)), None);
    let oom = Exit { oom: true, ..Exit::code(137) };
    assert_eq!(w.ends(Cause::Exited(oom)), start(2));
    w.shows(Status::Restarting, "exited 137 (OOM) after 2 h, restarting");
    w.comes_up();
    w.shows(Status::Running, "ready, restarted once");
    let crashed = w.now;
    assert_eq!(w.passes(FOREVER), None);
    w.shows(Status::Running, "ready");
    let view = w.unit.view(w.now);
    let total = (view.restarts_total, view.last_restart);
    assert_eq!((view.restarts, total), (0, (1, Some(crashed))), "the total outlives the budget");
}

#[test]
fn a_crash_loop_tells_what_comes_next() {
    let mut w = world();
    for _ in 0..3 {
        w.crashes_after(secs(3)).or_else(|| w.waits().1).expect("a restart");
    }
    assert_eq!(w.crashes_after(secs(3)), None);
    let view = w.unit.view(w.now);
    let due = view.next_restart.expect("a restart is due");
    assert!(view.reason.starts_with("exited 1 after 3 s, restart 4 of 10 in 2"), "{}", view.reason);
    let early = (due - w.now).saturating_sub(secs(20));
    assert_eq!(w.passes(early), None);
    w.shows(Status::Restarting, "exited 1 after 3 s, restart 4 of 10 in 20 s");
    assert_eq!(w.passes(secs(20)), start(5));
    w.shows(Status::Restarting, "exited 1 after 3 s, restart 4 of 10");
    w.comes_up();
    assert_eq!((w.status(), w.unit.view(w.now).next_restart), (Status::Running, None));
}

#[test]
fn an_error_that_is_no_exit_is_final_at_once() {
    let mut w = world();
    let why = "no such program".to_owned();
    assert_eq!(w.news(|run| Event::StartFailed { run, why }), None);
    w.shows(Status::Error, "cannot start: no such program");
    assert_eq!(w.passes(FOREVER), None);
    assert_eq!(w.tell(Event::Demand), None);
    assert_eq!(w.restarts(), 0);
    for event in [
        Event::Restart,
        Event::Want(Wanted::On),
        Event::Replaced(RestartPolicy { max: 3, ..RestartPolicy::default() }),
    ] {
        let run = w.unit.last_run();
        assert_eq!(w.tell(event), Some(Action::Start(run.next())));
        w.news(|run| Event::StartFailed { run, why: "still none".to_owned() });
        assert_eq!(w.status(), Status::Error);
    }
}

#[test]
fn a_start_that_the_machine_had_no_room_for_is_postponed_and_never_charged() {
    let full = || Cause::NotStarted("no space left".to_owned());
    let mut w = world();
    w.logged();
    assert_eq!(w.crashes(), start(2));
    for attempt in 0..20_u32 {
        w.logged();
        assert_eq!(w.ends(full()), None);
        assert!(w.reason().starts_with("could not be started: no space left, trying again in "));
        let log: Vec<String> = w.logged().iter().map(ToString::to_string).collect();
        assert_eq!(log, ["could not be started: no space left"]);
        let delay = Duration::from_millis(500 << attempt.min(6)).min(secs(30));
        w.acts_after(delay, start(u64::from(attempt) + 3));
    }
    let end = w.unit.view(w.now).last_end.expect("it ended");
    assert_eq!((end.cause.kind(), end.cause.charged(), w.restarts()), ("not-started", false, 1));

    // A start that succeeds makes the next delay short again.
    w.news(|run| Event::Started { run });
    assert_eq!(w.crashes(), None);
    w.acts_after(secs(5), start(23));
    assert_eq!(w.ends(full()), None);
    w.acts_after(Duration::from_millis(500), start(24));

    w.gives_up();
    let run = w.unit.last_run().next();
    assert_eq!(w.tell(Event::Restart), Some(Action::Start(run)));
    // It took so long that we had lost patience, yet this is the better explanation.
    assert_eq!(w.waits().1, Some(Action::Stop(run)));
    assert_eq!(w.ends(full()), None);
    assert_eq!(w.unit.view(w.now).last_end.expect("it ended").cause, full());
}

#[test]
fn never_ready_is_never_stable() {
    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    w.news(|run| Event::Started { run });
    assert_eq!(w.passes(secs(119)), None);
    assert_eq!(w.restarts(), 1);
    assert!(!w.unit.view(w.now).stable);
    assert_eq!(w.crashes(), None);
    assert_eq!(w.restarts(), 2);
}

#[test]
fn unless_stability_counts_from_the_start() {
    let mut w = world_with(|policy| policy.stable_from = StableFrom::Start);
    assert_eq!(w.crashes(), start(2));
    w.news(|run| Event::Started { run });
    assert_eq!(w.passes(secs(30)), None);
    assert_eq!(w.restarts(), 0);
    assert_eq!(w.crashes(), start(3));
}

#[test]
fn with_no_stable_time_a_run_is_stable_as_soon_as_it_is_ready() {
    let mut w = world_with(|policy| policy.stable_after = Duration::ZERO);
    assert_eq!(w.crashes(), start(2));
    w.comes_up();
    assert!(w.unit.view(w.now).stable);
    assert_eq!(w.crashes(), start(3));
    assert_eq!(w.crashes(), None);
}

#[test]
fn without_restarts_the_first_failure_is_the_last() {
    let mut w = world_with(|policy| policy.max = 0);
    assert_eq!(w.crashes_after(secs(60)), None);
    w.shows(Status::Error, "exited 1 after 1 min, and is not restarted; restart it to try again");
}

#[test]
fn a_given_up_unit_comes_back_on_demand_once_in_five_minutes() {
    let mut w = world();
    w.gives_up();
    assert_eq!(w.passes(secs(299)), None);
    assert_eq!(w.tell(Event::Demand), None);
    w.passes(secs(1));
    assert_eq!(w.tell(Event::Demand), start(12));
    assert_eq!(w.reason(), "gave up after 10 restarts, trying once more");
    assert!(w.logged().contains(&LoggedEvent::HalfOpen { run: RunId::new(12) }));
    assert_eq!(w.crashes_after(secs(29)), None);
    assert_eq!(w.status(), Status::Error);
    assert_eq!(w.tell(Event::Demand), None);
    w.passes(secs(300));
    assert_eq!(w.status(), Status::Error);
    assert_eq!(w.tell(Event::Demand), start(13));
    assert_eq!(w.crashes_after(secs(30)), start(14));
    assert_eq!(w.restarts(), 1);
}

#[test]
fn a_given_up_unit_comes_back_with_a_full_budget_when_asked() {
    for event in
        [Event::Restart, Event::Want(Wanted::On), Event::Replaced(RestartPolicy::default())]
    {
        let mut w = world();
        w.gives_up();
        assert_eq!(w.tell(event), start(12));
        assert_eq!(w.restarts(), 0);
        assert_eq!(w.crashes(), start(13));
    }
}

#[test]
fn a_restart_that_a_request_forestalled_counts_in_the_sum() {
    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.crashes(), None);
    let counts = |w: &World| (w.restarts(), w.unit.view(w.now).restarts_total);
    assert_eq!(counts(&w), (2, 2));
    assert_eq!(w.tell(Event::Restart), start(3));
    assert_eq!(counts(&w), (0, 2));
}

#[test]
fn absurd_policies_do_no_harm() {
    let mut w = world_with(|policy| {
        policy.initial = Duration::MAX;
        policy.cap = Duration::MAX;
        policy.stable_after = Duration::MAX;
        policy.start_timeout = Duration::ZERO;
        policy.stop_timeout = Duration::MAX;
    });
    assert_eq!(w.crashes_after(secs(1)), start(2));
    assert_eq!(w.waits().1, stop(2));
    assert_eq!(w.crashes(), None);
    assert_eq!(w.passes(FOREVER), None);
}
