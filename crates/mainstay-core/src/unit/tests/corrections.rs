//! Stories of what somebody else does to a server, and of what turns out only later.

use super::world::*;
use crate::{Action, Cause, Event, Exit, LoggedEvent, OnStop, RunId, Status, Wanted};

/// The run of that number turns out to have ended like this.
fn amend(w: &mut World, run: u64, cause: Cause) -> Option<Action> {
    w.tell(Event::Amended { run: RunId::new(run), cause })
}

/// Somebody started the workload again after that run.
fn adopt(w: &mut World, old: u64) -> Option<Action> {
    let old = RunId::new(old);
    w.tell(Event::Adopted { old, new: old.next() })
}

fn last_cause(w: &World) -> Cause {
    w.unit.view(w.now).last_end.expect("a run ended").cause
}

#[test]
fn an_exit_that_was_a_restart_does_not_count() {
    let mut w = world();
    assert_eq!(w.crashes_after(secs(3)), start(2));
    assert_eq!(w.restarts(), 1);
    w.logged();
    assert_eq!(amend(&mut w, 1, Cause::RestartedBySomeone), None);
    assert_eq!(w.restarts(), 0);
    assert_eq!(last_cause(&w), Cause::RestartedBySomeone);
    w.shows(Status::Restarting, "restarted by someone else after 3 s, restarting");
    let logged: Vec<String> = w.logged().iter().map(ToString::to_string).collect();
    assert_eq!(logged, ["it was restarted by someone else, so this does not count"]);
    assert_eq!(w.crashes(), start(3), "this is the first failure");
}

#[test]
fn a_delay_or_a_give_up_that_such_an_exit_led_to_is_dropped() {
    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.crashes_after(secs(3)), None);
    assert_eq!(amend(&mut w, 2, Cause::RestartedBySomeone), start(3));
    assert_eq!((w.restarts(), w.unit.view(w.now).restarts_total), (1, 2));

    let mut w = world_with(|policy| policy.max = 1);
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.crashes_after(secs(3)), None);
    assert_eq!(w.status(), Status::Error);
    assert_eq!(amend(&mut w, 2, Cause::RestartedBySomeone), start(3));
    assert_eq!(w.restarts(), 1);
}

#[test]
fn an_exit_that_was_a_stop_counts_and_says_so() {
    let mut w = world();
    w.crashes();
    assert_eq!(w.crashes_after(secs(3)), None);
    w.logged();
    assert_eq!(amend(&mut w, 2, Cause::StoppedBySomeone), None);
    assert_eq!(w.restarts(), 2);
    assert!(w.reason().starts_with("stopped by someone else after 3 s, restart 2 of 10 in"));
    let logged = w.logged();
    assert_eq!(logged[0].to_string(), "it was stopped by someone else");
    assert_eq!((logged[0].event(), logged[0].cause()), ("amended", Some("stopped")));
    // A restart announces itself as a stop first.
    assert_eq!(amend(&mut w, 2, Cause::RestartedBySomeone), start(3));
    assert_eq!(w.restarts(), 1);
}

#[test]
fn a_stop_that_becomes_known_late_is_respected_too() {
    let respect = || world_with(|policy| policy.on_stop = OnStop::Respect);
    let mut up = respect();
    assert_eq!(up.crashes(), start(2));
    assert_eq!(amend(&mut up, 1, Cause::StoppedBySomeone), stop(2));
    assert_eq!(up.crashes(), None);

    let mut resting = respect();
    resting.crashes();
    resting.crashes();
    assert_eq!(amend(&mut resting, 2, Cause::StoppedBySomeone), None);
    resting.shows(Status::Stopped, "stopped by someone else; start it to bring it back");

    for w in [up, resting] {
        assert_eq!((w.status(), w.unit.wanted()), (Status::Stopped, Wanted::Off));
        assert_eq!(w.unit.deadline(), None);
    }
}

#[test]
fn a_stop_that_becomes_known_late_does_not_outweigh_what_was_asked_since() {
    let respect = || world_with(|policy| policy.on_stop = OnStop::Respect);
    let mut asked = respect();
    asked.crashes();
    asked.crashes();
    assert_eq!(asked.tell(Event::Restart), start(3));
    assert_eq!(amend(&mut asked, 2, Cause::StoppedBySomeone), None);

    let mut adopted = respect();
    adopted.crashes();
    adopted.crashes();
    assert_eq!(adopt(&mut adopted, 2), None);
    assert_eq!(amend(&mut adopted, 2, Cause::StoppedBySomeone), None);

    for w in [asked, adopted] {
        assert_eq!((w.unit.wanted(), w.unit.run()), (Wanted::On, Some(RunId::new(3))));
    }
}

#[test]
fn a_respected_stop_that_was_a_restart_is_none() {
    let respect = || world_with(|policy| policy.on_stop = OnStop::Respect);
    let mut w = respect();
    w.comes_up();
    assert_eq!(w.ends(Cause::StoppedBySomeone), None);
    assert_eq!(w.status(), Status::Stopped);
    assert_eq!(adopt(&mut w, 1), None);
    assert_eq!((w.unit.wanted(), last_cause(&w)), (Wanted::On, Cause::RestartedBySomeone));

    let mut w = respect();
    assert_eq!(w.crashes(), start(2));
    assert_eq!(amend(&mut w, 1, Cause::StoppedBySomeone), stop(2));
    assert_eq!(amend(&mut w, 1, Cause::RestartedBySomeone), None);
    assert_eq!(w.crashes(), start(3));
}

#[test]
fn a_start_by_hand_undoes_a_respected_stop_however_long_ago_that_was() {
    let mut w = world_with(|policy| policy.on_stop = OnStop::Respect);
    w.comes_up();
    w.ends(Cause::StoppedBySomeone);
    w.passes(FOREVER);
    assert_eq!(adopt(&mut w, 1), None);
    assert_eq!((w.unit.wanted(), last_cause(&w)), (Wanted::On, Cause::StoppedBySomeone));
    w.comes_up();
    w.shows(Status::Running, "ready");

    let mut w = world_with(|policy| policy.on_stop = OnStop::Respect);
    assert_eq!(w.crashes(), start(2));
    assert_eq!(amend(&mut w, 1, Cause::StoppedBySomeone), stop(2));
    assert_eq!(adopt(&mut w, 2), None, "while the next run was being stopped for it");
    assert_eq!((w.unit.wanted(), w.unit.run()), (Wanted::On, Some(RunId::new(3))));
}

#[test]
fn a_removal_is_believed_of_any_run_that_is_over() {
    let removed = |run| Event::Gone { run: RunId::new(run), cause: Cause::Removed };
    let resting = || {
        let mut w = world();
        w.crashes();
        w.crashes();
        w
    };
    for run in [1, 2] {
        assert_eq!(resting().tell(removed(run)), Some(Action::Forget), "{run}");
    }
    assert_eq!(resting().tell(removed(3)), None, "there was no such run");
    let mut up = world();
    up.crashes();
    assert_eq!(up.tell(removed(1)), None, "the present run may have a container of its own");
}

#[test]
fn only_the_last_end_is_amended_and_only_if_it_was_an_exit() {
    let mut old = world();
    old.crashes();
    old.crashes();
    let mut asked = world();
    asked.comes_up();
    asked.tell(Event::Restart);
    asked.crashes();
    let mut hung = world();
    hung.news(|run| Event::Hung { run, what: "a ping".to_owned() });
    hung.crashes();
    let mut outage = world();
    outage.loses_engine();
    outage.crashes();
    let fresh = world();
    for mut w in [old, asked, hung, outage, fresh] {
        let before = w.unit.clone();
        for cause in [Cause::StoppedBySomeone, Cause::RestartedBySomeone] {
            assert_eq!(amend(&mut w, 1, cause), None);
        }
        assert_eq!(w.unit, before);
    }

    let mut w = world();
    w.crashes();
    amend(&mut w, 1, Cause::RestartedBySomeone);
    let before = w.unit.clone();
    let others = [
        Cause::StoppedBySomeone,
        Cause::RestartedBySomeone,
        Cause::Removed,
        Cause::Exited(Exit::code(2)),
    ];
    for cause in others {
        assert_eq!(amend(&mut w, 1, cause), None);
    }
    assert_eq!(w.unit, before);
}

#[test]
fn a_charge_that_is_forgotten_is_not_taken_back() {
    let mut w = world();
    assert_eq!(w.crashes(), start(2));
    assert_eq!(w.tell(Event::Restart), stop(2));
    assert_eq!(amend(&mut w, 1, Cause::RestartedBySomeone), None);
    assert_eq!(w.crashes(), start(3));
    assert_eq!(w.crashes(), start(4));
    assert_eq!(w.restarts(), 1);
}

#[test]
fn what_somebody_starts_during_a_delay_is_adopted_and_the_charge_taken_back() {
    let mut w = world();
    w.crashes();
    w.crashes();
    w.passes(secs(2));
    w.logged();
    assert_eq!(adopt(&mut w, 2), None);
    let (old, new) = (RunId::new(2), RunId::new(3));
    assert_eq!(w.logged(), [LoggedEvent::Refunded { count: 1 }, LoggedEvent::Adopted { old, new }]);
    assert_eq!((w.unit.run(), w.unit.last_run(), w.restarts()), (Some(new), new, 1));
    w.shows(Status::Restarting, "restarted by someone else, not ready yet");
    // That it was a restart is known a little later.
    assert_eq!(amend(&mut w, 2, Cause::RestartedBySomeone), None);
    assert_eq!((w.restarts(), last_cause(&w)), (1, Cause::RestartedBySomeone));
    assert_eq!(w.passes(secs(60)), None);
}

#[test]
fn what_somebody_starts_after_an_error_is_adopted() {
    let mut given_up = world();
    given_up.gives_up();
    given_up.passes(secs(31));
    assert_eq!(adopt(&mut given_up, 11), None);
    assert_eq!(given_up.restarts(), 10);
    assert_eq!(given_up.crashes_after(secs(3)), None);
    assert_eq!(given_up.status(), Status::Error);

    let mut impossible = world();
    impossible.news(|run| Event::StartFailed { run, why: "no such image".to_owned() });
    assert_eq!(adopt(&mut impossible, 1), None);
    impossible.comes_up();
    impossible.shows(Status::Running, "ready");
}

#[test]
fn a_workload_that_is_lost_without_a_removal_is_an_error_and_not_forgotten() {
    let lost = |run| Event::Gone {
        run: RunId::new(run),
        cause: Cause::CannotStart("all containers are gone at once".to_owned()),
    };
    let mut up = world();
    up.comes_up();
    assert_eq!(up.tell(lost(1)), None);
    let mut resting = world();
    resting.crashes();
    resting.crashes();
    assert_eq!(resting.tell(lost(2)), None);
    let mut given_up = world();
    given_up.gives_up();
    assert_eq!(given_up.tell(lost(11)), None);
    let mut away = world();
    away.comes_up();
    away.loses_engine();
    assert_eq!(away.tell(lost(1)), None);
    assert_eq!(away.tell(Event::EngineBack), None);
    for mut w in [up, resting, given_up, away] {
        w.shows(Status::Error, "cannot start: all containers are gone at once");
        assert_eq!(w.passes(FOREVER), None);
    }

    let mut off = world();
    off.want(Wanted::Off);
    off.crashes();
    assert_eq!(off.tell(lost(1)), None);
    off.shows(Status::Stopped, "stopped on request");
}

#[test]
fn what_somebody_starts_although_it_is_off_is_stopped() {
    let mut w = world();
    w.want(Wanted::Off);
    w.crashes();
    assert_eq!(adopt(&mut w, 1), stop(2));
    assert_eq!(w.crashes(), None);
    w.shows(Status::Stopped, "stopped on request");
    assert_eq!(adopt(&mut w, 1), None, "this is no news any more");
}

#[test]
fn what_somebody_starts_during_an_outage_is_there_when_it_ends() {
    let mut w = world();
    w.comes_up();
    w.loses_engine();
    w.ends(Cause::EngineAway);
    assert_eq!(adopt(&mut w, 1), None);
    assert_eq!(w.status(), Status::Waiting);
    assert_eq!(w.tell(Event::EngineBack), None);
    w.comes_up();
    assert_eq!((w.status(), w.restarts()), (Status::Running, 0));
}

#[test]
fn a_flapping_engine_never_uses_up_a_budget() {
    let mut w = world_with(|policy| policy.max = 1);
    for round in 0..100 {
        w.comes_up();
        assert_eq!(w.passes(secs(20)), None);
        w.loses_engine();
        assert_eq!(w.passes(secs(5)), None);
        assert_eq!(w.ends(Cause::Exited(Exit::signal(9))), None);
        assert_eq!(w.passes(secs(5)), None);
        assert_eq!(w.status(), Status::Waiting);
        let started = w.tell(Event::EngineBack).or_else(|| w.passes(secs(2)));
        assert_eq!((started, w.restarts()), (start(round + 2), 0));
    }
}

#[test]
fn nor_does_one_that_kills_before_it_is_seen_to_be_away() {
    for early in [0, 1, 4, 9, 10] {
        for max in [0, 1, 10] {
            let mut w = world_with(|policy| policy.max = max);
            for _ in 0..100 {
                w.comes_up();
                w.passes(secs(20));
                // It stops: what it kills looks like an exit, then like a stop by someone, and what
                // is started meanwhile does not live long either.
                let run = w.unit.run().expect("it is up");
                let again = w.ends(Cause::Exited(Exit::signal(15)));
                w.tell(Event::Amended { run, cause: Cause::StoppedBySomeone });
                if again.is_some() {
                    w.crashes();
                }
                w.passes(secs(early));
                if w.unit.run().is_some() {
                    w.crashes();
                }
                w.loses_engine();
                assert_eq!((w.status(), w.restarts()), (Status::Waiting, 0));
                assert_eq!(w.passes(secs(10)), None);
                w.tell(Event::EngineBack).or_else(|| w.passes(secs(2))).expect("a start");
            }
        }
    }
}
