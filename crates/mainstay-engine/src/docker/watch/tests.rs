mod properties;

use super::*;

/// A clock for tests: seconds after some instant.
fn at(seconds: u64) -> Instant {
    tokio::time::Instant::now().into_std() + Duration::from_secs(seconds)
}

fn run(generation: u64) -> RunId {
    RunId::new(generation)
}

/// The container, alive since its start number `start`.
fn alive(start: u64) -> ContainerState {
    ContainerState {
        id: "c0ffee".to_owned(),
        running: true,
        paused: false,
        unhealthy: false,
        started_at: stamp(start),
        exit_code: 0,
        oom: false,
        removing: false,
    }
}

/// The container, dead since it was started for the time `start`.
fn dead(start: u64, exit_code: i64) -> ContainerState {
    ContainerState { running: false, exit_code, ..alive(start) }
}

/// Nanoseconds are written without trailing zeros, so stamps are of different lengths.
fn stamp(start: u64) -> String {
    format!("2026-01-02T03:04:{:02}.{}Z", start / 10 % 60, 1 + start % 10)
}

/// A watch on a first run that was started by us.
fn up() -> Watch {
    let mut watch = Watch::idle(run(0));
    watch.starting(run(1));
    assert_eq!(watch.handle_event(at(0), ContainerEvent::Start), []);
    watch.started(&alive(1));
    assert_eq!(watch.handle_inspection(&alive(1), false), []);
    watch
}

fn died(generation: u64, code: i64) -> Fact {
    Fact::Died { run: run(generation), exit: exit(code, false) }
}

fn amended(generation: u64, cause: Cause) -> Fact {
    Fact::Amended { run: run(generation), cause }
}

fn restarted(old: u64) -> Fact {
    Fact::Restarted { old: run(old), new: run(old + 1) }
}

/// Handles events of that second, and expects these facts.
#[track_caller]
fn handles(watch: &mut Watch, second: Instant, event: &[ContainerEvent], expected: &[Fact]) {
    let facts: Vec<Fact> =
        event.iter().flat_map(|event| watch.handle_event(second, *event)).collect();
    assert_eq!(facts, expected);
}

#[track_caller]
fn sees(watch: &mut Watch, seen: &ContainerState, expected: &[Fact]) {
    assert_eq!(watch.handle_inspection(seen, false), expected);
}

const DIE: ContainerEvent = ContainerEvent::Die { code: 137 };

#[test]
fn an_end_is_reported_on_its_event_and_not_again() {
    let mut watch = up();
    handles(&mut watch, at(1), &[DIE], &[died(1, 137)]);
    assert_eq!((watch.run(), watch.last()), (None, run(1)));
    sees(&mut watch, &dead(1, 137), &[]);
    handles(&mut watch, at(1), &[DIE], &[]);
}

#[test]
fn an_end_is_reported_on_inspection_and_not_again() {
    let mut watch = up();
    sees(&mut watch, &dead(1, 1), &[died(1, 1)]);
    sees(&mut watch, &dead(1, 1), &[]);
    handles(&mut watch, at(1), &[DIE], &[]);
}

#[test]
fn memory_that_ran_out_is_reported_with_the_end() {
    let oom = Fact::Died { run: run(1), exit: exit(137, true) };
    let mut watch = up();
    handles(&mut watch, at(1), &[ContainerEvent::Oom, DIE], std::slice::from_ref(&oom));
    let mut watch = up();
    sees(&mut watch, &ContainerState { oom: true, ..dead(1, 137) }, &[oom]);
}

#[test]
fn a_stop_amends_the_reported_end_even_while_the_next_run_starts() {
    let mut watch = up();
    handles(&mut watch, at(1), &[DIE], &[died(1, 137)]);
    watch.starting(run(2));
    let stopped = amended(1, Cause::StoppedBySomeone);
    handles(&mut watch, at(2), &[ContainerEvent::Stop], &[stopped]);
    handles(&mut watch, at(2), &[ContainerEvent::Stop, ContainerEvent::Start], &[]);
    watch.started(&alive(2));
    sees(&mut watch, &alive(2), &[]);
    assert_eq!(watch.run(), Some(run(2)));
}

#[test]
fn a_stop_amends_an_end_that_was_seen() {
    let mut watch = up();
    sees(&mut watch, &dead(1, 143), &[died(1, 143)]);
    handles(
        &mut watch,
        at(900),
        &[DIE, ContainerEvent::Stop],
        &[amended(1, Cause::StoppedBySomeone)],
    );
}

#[test]
fn a_stop_long_after_an_end_belongs_to_another_run() {
    let mut watch = up();
    let start = at(0);
    handles(&mut watch, start, &[DIE], &[died(1, 137)]);
    watch.starting(run(2));
    watch.started(&alive(2));
    handles(&mut watch, start + Duration::from_secs(16), &[ContainerEvent::Stop], &[Fact::Inspect]);
    sees(&mut watch, &dead(2, 0), &[died(2, 0)]);
}

#[test]
fn an_end_by_mainstay_has_no_other_cause() {
    let mut watch = up();
    watch.ending();
    handles(&mut watch, at(1), &[DIE, ContainerEvent::Stop], &[died(1, 137)]);
    watch.starting(run(2));
    handles(&mut watch, at(2), &[ContainerEvent::Start, ContainerEvent::Restart], &[]);
}

#[test]
fn a_fast_restart_by_someone_else_is_adopted() {
    let mut watch = up();
    handles(&mut watch, at(1), &[DIE], &[died(1, 137)]);
    handles(&mut watch, at(1), &[ContainerEvent::Stop], &[amended(1, Cause::StoppedBySomeone)]);
    handles(&mut watch, at(2), &[ContainerEvent::Start], &[Fact::Inspect]);
    sees(&mut watch, &alive(2), &[restarted(1)]);
    handles(
        &mut watch,
        at(2),
        &[ContainerEvent::Restart],
        &[amended(1, Cause::RestartedBySomeone)],
    );
    assert_eq!((watch.run(), watch.last()), (Some(run(2)), run(2)));
}

#[test]
fn a_restart_during_our_start_amends_the_end() {
    let mut watch = up();
    handles(&mut watch, at(1), &[DIE], &[died(1, 137)]);
    watch.starting(run(2));
    handles(&mut watch, at(1), &[ContainerEvent::Stop], &[amended(1, Cause::StoppedBySomeone)]);
    sees(&mut watch, &alive(2), &[]);
    watch.started(&alive(2));
    handles(&mut watch, at(2), &[ContainerEvent::Start], &[Fact::Inspect]);
    sees(&mut watch, &alive(2), &[]);
    handles(
        &mut watch,
        at(2),
        &[ContainerEvent::Restart],
        &[amended(1, Cause::RestartedBySomeone)],
    );
}

#[test]
fn a_restart_that_is_inspected_before_its_event_is_reported_once() {
    let mut watch = up();
    sees(&mut watch, &alive(2), &[restarted(1)]);
    handles(&mut watch, at(1), &[DIE], &[Fact::Inspect]);
    sees(&mut watch, &alive(2), &[Fact::Inspect]);
    sees(&mut watch, &alive(2), &[]);
    handles(
        &mut watch,
        at(1),
        &[ContainerEvent::Stop, ContainerEvent::Start, ContainerEvent::Restart],
        &[Fact::Inspect],
    );
    sees(&mut watch, &alive(2), &[]);
    handles(&mut watch, at(9), &[DIE], &[died(2, 137)]);
}

#[test]
fn an_end_without_an_event_delays_the_next_by_an_inspection_only() {
    let mut watch = up();
    sees(&mut watch, &alive(2), &[restarted(1)]);
    handles(&mut watch, at(1), &[DIE], &[Fact::Inspect]);
    sees(&mut watch, &dead(2, 137), &[died(2, 137)]);
    watch.starting(run(3));
    watch.started(&alive(3));
    handles(&mut watch, at(2), &[DIE], &[died(3, 137)]);
}

#[test]
fn podman_announces_a_restart() {
    let mut watch = up();
    handles(&mut watch, at(1), &[ContainerEvent::Restart], &[Fact::Inspect]);
    sees(&mut watch, &alive(1), &[]);
    let excused = [died(1, 137), amended(1, Cause::RestartedBySomeone), Fact::Inspect];
    handles(&mut watch, at(5), &[DIE, ContainerEvent::Start], &excused);
    sees(&mut watch, &alive(2), &[restarted(1)]);
}

#[test]
fn podman_restarts_what_is_dead() {
    let mut watch = up();
    handles(&mut watch, at(1), &[DIE], &[died(1, 137)]);
    let excused = [amended(1, Cause::RestartedBySomeone), Fact::Inspect];
    handles(&mut watch, at(3), &[ContainerEvent::Restart, ContainerEvent::Start], &excused);
    sees(&mut watch, &alive(2), &[restarted(1)]);
}

#[test]
fn a_start_by_someone_else_is_a_new_run() {
    let mut watch = Watch::idle(run(4));
    sees(&mut watch, &dead(1, 0), &[]);
    handles(&mut watch, at(1), &[ContainerEvent::Start], &[Fact::Inspect]);
    let paused = ContainerState { paused: true, ..alive(2) };
    sees(&mut watch, &paused, &[restarted(4), Fact::Paused(run(5))]);
}

#[test]
fn a_start_that_failed_leaves_no_run() {
    let mut watch = Watch::idle(run(1));
    watch.starting(run(2));
    handles(&mut watch, at(1), &[DIE], &[]);
    watch.not_started();
    assert_eq!((watch.run(), watch.last()), (None, run(2)));
    sees(&mut watch, &dead(1, 127), &[]);
    // The request to the engine seemed to have failed.
    sees(&mut watch, &alive(2), &[restarted(2)]);
}

#[test]
fn a_run_may_be_over_before_it_counts_as_started() {
    let mut watch = Watch::idle(run(0));
    watch.starting(run(1));
    handles(&mut watch, at(1), &[ContainerEvent::Start, DIE], &[]);
    watch.started(&dead(1, 137));
    sees(&mut watch, &dead(1, 137), &[died(1, 137)]);

    let mut watch = Watch::idle(run(0));
    watch.starting(run(1));
    handles(&mut watch, at(1), &[ContainerEvent::Start, DIE], &[]);
    watch.started(&alive(1));
    sees(&mut watch, &alive(1), &[Fact::Inspect]);
    sees(&mut watch, &dead(1, 137), &[died(1, 137)]);
}

#[test]
fn an_end_event_after_the_next_start_is_not_taken_for_its_own() {
    let mut watch = up();
    sees(&mut watch, &dead(1, 137), &[died(1, 137)]);
    watch.starting(run(2));
    watch.started(&alive(2));
    sees(&mut watch, &alive(2), &[]);
    handles(&mut watch, at(1), &[DIE], &[Fact::Inspect]);
    sees(&mut watch, &alive(2), &[Fact::Inspect]);
    sees(&mut watch, &alive(2), &[]);
    assert_eq!(watch.run(), Some(run(2)));
}

#[test]
fn a_contradicting_inspection_is_accepted_only_when_repeated() {
    let mut watch = up();
    handles(&mut watch, at(1), &[DIE], &[died(1, 137)]);
    sees(&mut watch, &alive(1), &[Fact::Inspect]);
    sees(&mut watch, &dead(1, 137), &[]);
    watch.starting(run(2));
    watch.started(&alive(2));
    sees(&mut watch, &dead(1, 137), &[Fact::Inspect]);
    sees(&mut watch, &alive(2), &[]);
    // A clock that was set back.
    sees(&mut watch, &alive(1), &[Fact::Inspect]);
    sees(&mut watch, &alive(1), &[restarted(2)]);
}

#[test]
fn a_container_that_was_started_and_died_unseen_ends_the_run() {
    let mut watch = up();
    sees(&mut watch, &dead(2, 3), &[died(1, 3)]);
    sees(&mut watch, &dead(2, 3), &[]);
}

#[test]
fn only_runs_that_are_dead_after_an_outage_are_lost_in_it() {
    let took = Fact::LostInOutage { run: run(1) };
    assert_eq!(up().handle_inspection(&alive(1), true), []);
    let mut watch = up();
    assert_eq!(watch.handle_inspection(&dead(1, 137), true), [took]);
    assert_eq!(watch.handle_inspection(&dead(1, 137), true), []);
    assert_eq!(up().handle_inspection(&alive(2), true), [restarted(1)]);
}

#[test]
fn a_run_of_an_earlier_daemon_is_resumed() {
    let recorded = |over| Watch::recorded(run(7), stamp(1), over);
    sees(&mut recorded(false), &alive(1), &[]);
    sees(&mut recorded(false), &dead(1, 2), &[died(7, 2)]);
    sees(&mut recorded(false), &alive(2), &[restarted(7)]);
    sees(&mut recorded(true), &dead(1, 2), &[]);
    sees(&mut recorded(true), &alive(2), &[restarted(7)]);
    handles(&mut recorded(false), at(1), &[DIE], &[died(7, 137)]);
}

#[test]
fn pauses_and_health_are_reported_when_they_change() {
    let mut watch = up();
    handles(
        &mut watch,
        at(1),
        &[ContainerEvent::Pause, ContainerEvent::Pause],
        &[Fact::Paused(run(1))],
    );
    // As Podman sees it.
    let mut seen = ContainerState { running: false, paused: true, ..alive(1) };
    sees(&mut watch, &seen, &[]);
    seen.unhealthy = true;
    sees(&mut watch, &seen, &[Fact::Unhealthy(run(1))]);
    sees(&mut watch, &alive(1), &[Fact::Unpaused(run(1)), Fact::Healthy(run(1))]);
    handles(&mut watch, at(2), &[ContainerEvent::Unpause, ContainerEvent::Healthy], &[]);
}

#[test]
fn nothing_is_reported_after_a_removal() {
    let mut watch = up();
    let removed = Fact::Removed(run(1));
    handles(&mut watch, at(1), &[DIE, ContainerEvent::Destroy], &[died(1, 137), removed.clone()]);
    handles(&mut watch, at(1), &[ContainerEvent::Destroy, ContainerEvent::Start], &[]);
    sees(&mut watch, &alive(1), &[]);
    assert_eq!((watch.run(), watch.last()), (None, run(1)));

    let mut watch = up();
    handles(&mut watch, at(1), &[DIE], &[died(1, 137)]);
    watch.starting(run(2));
    handles(&mut watch, at(1), &[ContainerEvent::Destroy], &[Fact::Removed(run(2))]);
    watch.not_started();
    handles(&mut watch, at(1), &[ContainerEvent::Destroy], &[]);
}
