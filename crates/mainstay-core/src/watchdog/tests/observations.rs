//! Observations that fail, probes, and messages of runs that do not read.

use super::*;

#[test]
fn a_run_that_sends_and_does_not_read_is_busy() {
    for period in [1, 5, 20] {
        let mut world = unread_call(Behaviour::Sends(period));
        world.pass(seconds(3600));
        world.shows("it is working, and has read nothing for 1 h");
        assert!(world.watchdog.verdict().holds_requests());
        assert_eq!(world.killed_after(), None);
    }
    let mut world = unread_call(Behaviour::Sends(20));
    world.pass(seconds(3600));
    world.behaviour = Behaviour::Deadlocked;
    world.pass(seconds(59));
    assert_eq!(world.killed_after(), None);
    world.pass(seconds(22));
    assert!(world.killed_after().is_some());
}

#[test]
fn each_limit_counts_its_own_time_although_the_verdict_alternates() {
    // It wakes up so rarely that it is blocked in between.
    let limits = WatchLimits { block_limit: Some(seconds(600)), ..WatchLimits::default() };
    let mut world = World::new(limits);
    world.behaviour = Behaviour::Timer(20);
    world.call_that_is_read();
    world.begin_call();
    world.pass(seconds(10));
    world.last_message = Some(world.now);
    world.pass(seconds(600));
    assert_eq!(world.killed_after(), None);
    world.pass(seconds(900));
    assert!(world.killed_after().is_some(), "{world:?}");

    // It sends so rarely that nothing is proven in between.
    let limits = WatchLimits { busy_limit: Some(seconds(600)), ..WatchLimits::default() };
    let mut world = World::new(limits);
    world.behaviour = Behaviour::Sends(40);
    world.begin_call();
    world.pass(seconds(600));
    assert_eq!(world.killed_after(), None);
    world.pass(seconds(300));
    assert!(world.killed_after().is_some(), "{world:?}");
}

#[test]
fn requests_to_a_server_that_serves_others_are_hardly_held() {
    let mut world = unread_call(Behaviour::OneUnread);
    let mut held = 0;
    for _ in 0..600 {
        world.pass(seconds(1));
        held += u32::from(world.watchdog.verdict().holds_requests());
    }
    assert!(held <= 40, "{held}");
    assert_eq!(world.killed_after(), None);
}

#[test]
fn a_failed_observation_changes_nothing() {
    let mut world = unread_call(Behaviour::Deadlocked);
    for _ in 0..4 {
        world.failures = 3;
        world.pass(seconds(15));
    }
    world.pass(seconds(2));
    assert_eq!(world.killed_after(), Some(seconds(60)));

    let limits = WatchLimits { busy_limit: Some(seconds(30)), ..WatchLimits::default() };
    let mut world = World::new(limits);
    world.behaviour = Behaviour::Deadlocked;
    world.call_that_is_read();
    world.begin_call();
    world.pass(seconds(600));
    for failures in [1, 9] {
        world.failures = failures;
        world.pass(seconds(60));
        assert_eq!((world.watchdog.verdict().as_str(), world.killed_after()), ("blocked", None));
    }
}

#[test]
fn a_server_that_has_answered_a_ping_is_pinged_again() {
    let mut world = World::new(WatchLimits::default());
    world.pass(IDLE_PROBE + seconds(10));
    world.answers_ping = false;
    world.pass(seconds(86_400));
    assert!(!world.actions.iter().any(|(_, action)| *action == WatchAction::IgnoresPing));
}

#[test]
fn what_was_not_read_for_less_than_a_second_says_nothing_about_a_stopped_process() {
    let mut world = World::new(WatchLimits::default());
    world.behaviour = Behaviour::Suspended;
    world.begin_call();
    world.shows("no request is overdue");
    world.pass(seconds(3));
    assert_eq!(world.watchdog.verdict().as_str(), "suspended");
}

#[test]
fn a_server_that_ignores_pings_is_pinged_once() {
    let mut world = World::new(WatchLimits::default());
    world.answers_ping = false;
    world.pass(seconds(86_400));
    let count = |wanted: &WatchAction| world.actions.iter().filter(|(_, a)| a == wanted).count();
    assert_eq!(count(&WatchAction::Probe(Probe::Ping)), 1);
    assert_eq!(count(&WatchAction::IgnoresPing), 1);
    assert!(count(&WatchAction::Probe(Probe::List)) > 100);
    world.shows("no request is overdue");
}

#[test]
fn a_server_that_cannot_be_observed_and_ignores_pings_is_pinged_once() {
    let mut world = World::new(WatchLimits::default());
    (world.can_observe, world.answers_ping) = (false, false);
    world.pass(seconds(86_400));
    let pings = world.actions.iter().filter(|(_, it)| *it == WatchAction::Probe(Probe::Ping));
    assert_eq!(pings.count(), 1);
    world.shows("no request is overdue");
}

#[test]
fn a_run_that_answers_probes_is_not_probed_all_the_time() {
    let mut world = unread_call(Behaviour::LosesAnswers);
    world.pass(seconds(3600));
    let probes = world.actions.iter().filter(|(_, it)| matches!(it, WatchAction::Probe(_)));
    assert!((100..=120).contains(&probes.count()), "{world:?}");
}
