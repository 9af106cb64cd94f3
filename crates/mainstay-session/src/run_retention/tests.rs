use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(1_000);
const IDLE: Duration = Duration::from_secs(1_800);
const MOMENT: Duration = Duration::from_millis(1);

fn seconds() -> impl Strategy<Value = Duration> {
    (0..=1_000_u64).prop_map(Duration::from_secs)
}

fn run_use() -> impl Strategy<Value = RunUse> {
    let presence = prop_oneof![
        1 => Just(Presence::Present),
        4 => seconds().prop_map(|since| Presence::Absent { since }),
    ];
    prop_oneof![
        1 => Just(RunUse::InUse),
        6 => (seconds(), presence, any::<bool>()).prop_map(|(last_message, presence, is_used)| {
            RunUse::Idle { last_message, presence, is_used }
        }),
        2 => (900..=1_000_u64).prop_map(|at| RunUse::SessionEnded { at: Duration::from_secs(at) }),
    ]
}

fn absent(since: Duration, is_used: bool) -> RunUse {
    RunUse::Idle { last_message: since, presence: Presence::Absent { since }, is_used }
}

fn listening(last_message: Duration) -> RunUse {
    RunUse::Idle { last_message, presence: Presence::Present, is_used: true }
}

fn ends(usage: RunUse, now: Duration) -> bool {
    runs_to_end([((), usage)], now, IDLE).len() == 1
}

proptest! {
    #[test]
    fn runs_in_use_stay_and_a_limited_number_of_absent_clients_keep_theirs(
        runs in vec(run_use(), 0..60),
        idle in (1..1_000_u64).prop_map(Duration::from_secs),
    ) {
        let ended: BTreeSet<usize> =
            runs_to_end(runs.iter().copied().enumerate(), NOW, idle).into_iter().collect();
        let is_due = |run: &RunUse| run.ends_at(idle).is_some_and(|at| at <= NOW);
        let (kept, gone): (Vec<_>, Vec<_>) =
            runs.iter().enumerate().partition(|(number, _)| !ended.contains(number));
        prop_assert!(!gone.iter().any(|(_, run)| **run == RunUse::InUse));
        prop_assert!(!kept.iter().any(|(_, run)| is_due(run)));
        let counted: Vec<Rank> = kept.iter().filter_map(|(_, run)| run.rank()).collect();
        prop_assert!(counted.len() <= MAX_IDLE_RUNS);
        // A run is stopped early only because of the limit, lowest rank first.
        for (_, early) in gone.iter().filter(|(_, run)| !is_due(run)) {
            prop_assert_eq!(counted.len(), MAX_IDLE_RUNS);
            let rank = early.rank();
            prop_assert!(rank.is_some() && counted.iter().all(|kept| rank <= Some(*kept)));
        }
    }

    #[test]
    fn a_run_that_is_due_stays_due(usage in run_use(), at in 0..5_000_u64) {
        let (now, later) = (Duration::from_secs(at), Duration::from_secs(at + 1));
        prop_assert!(!ends(usage, now) || ends(usage, later));
    }

    #[test]
    fn presence_does_not_delay_the_end_of_an_idle_run(last_message in seconds(), now in seconds()) {
        prop_assert_eq!(ends(listening(last_message), now), ends(absent(last_message, true), now));
    }
}

#[test]
fn a_run_ends_by_the_last_message_of_its_client_or_the_end_of_its_session() {
    for usage in [absent(NOW, true), absent(NOW, false), listening(NOW)] {
        assert!(!ends(usage, (NOW + IDLE).saturating_sub(MOMENT)), "{usage:?}");
        assert!(ends(usage, NOW + IDLE), "{usage:?}");
    }
    // A client that leaves later than it sent its last message gets no more time.
    let presence = Presence::Absent { since: (NOW + IDLE).saturating_sub(MOMENT) };
    assert!(ends(RunUse::Idle { last_message: NOW, presence, is_used: true }, NOW + IDLE));
    let usage = RunUse::SessionEnded { at: NOW };
    assert!(!ends(usage, (NOW + RETENTION).saturating_sub(MOMENT)));
    assert!(ends(usage, NOW + RETENTION));
    assert!(!ends(RunUse::InUse, NOW + IDLE * 1_000));
}

#[test]
fn at_the_limit_runs_of_ended_sessions_go_first_then_those_of_unused_sessions() {
    let ended =
        |ago: u64| RunUse::SessionEnded { at: NOW.saturating_sub(Duration::from_secs(ago)) };
    let mut runs = vec![("ended last", ended(1)), ("ended first", ended(2))];
    runs.extend([("unused", absent(NOW, false))]);
    runs.extend((0..MAX_IDLE_RUNS).map(|_| ("used", absent(Duration::ZERO, true))));
    runs.extend((0..50).map(|_| ("listening", listening(Duration::ZERO))));
    let check = |runs: &[(&'static str, RunUse)], expected: &[&str]| {
        let mut gone = runs_to_end(runs.iter().copied(), NOW, IDLE);
        gone.sort_unstable();
        assert_eq!(gone, expected);
    };
    check(&runs, &["ended first", "ended last", "unused"]);
    let used = runs.iter().position(|(name, _)| *name == "used").unwrap();
    runs.remove(used);
    check(&runs, &["ended first", "ended last"]);
    runs.remove(used);
    check(&runs, &["ended first"]);
    runs.remove(used);
    check(&runs, &[]);
}
