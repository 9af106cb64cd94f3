//! What holds for every script of events; [`Engine`] does the checking.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::engine::{Engine, Mood, Starts, Step};
use crate::{Cause, Event, Exit, Found, OnStop, RestartPolicy, RunId, StableFrom, Wanted};

proptest! {
    // PROPTEST_CASES asks for more.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_script_keeps_the_rules_and_comes_to_its_end(
        policy in policy(),
        seed: u64,
        resumed in prop::option::of((wanted(), prop::option::of(found()))),
        script in vec(step(), 0..80),
    ) {
        let mut engine = match resumed {
            Some((wanted, found)) => Engine::resumed(policy, seed, wanted, found),
            None => Engine::new(policy, seed),
        };
        for step in script {
            engine.play(step);
        }
        engine.converges();
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    prop::sample::select(vec![Wanted::On, Wanted::Off, Wanted::Gone])
}

fn found() -> impl Strategy<Value = Found> {
    (3..7_u64, millis(0..120_000), prop::option::of(millis(0..120_000))).prop_map(
        |(run, age, ready_for)| Found {
            run: RunId::new(run),
            age,
            ready_for: ready_for.map(|span| span.min(age)),
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => millis(0..120_000).prop_map(Step::Wait),
        8 => millis(0..2_000).prop_map(Step::Wait),
        3 => mood().prop_map(Step::Mood),
        9 => request().prop_map(Step::Tell),
        3 => surroundings().prop_map(Step::Tell),
        4 => news().prop_map(Step::News),
        6 => cause().prop_map(Step::Dies),
        5 => (cause(), prop::option::weighted(0.8, millis(0..12_000)))
            .prop_map(|(cause, lingers)| Step::Exits(cause, lingers)),
        2 => Just(Step::RestartedBySomeone),
        2 => Just(Step::NewDaemon),
        2 => amended().prop_map(Step::Amended),
        3 => any::<usize>().prop_map(Step::StartReason),
    ]
}

fn request() -> impl Strategy<Value = Event> {
    prop_oneof![
        10 => Just(Event::Want(Wanted::On)),
        3 => Just(Event::Want(Wanted::Off)),
        1 => Just(Event::Want(Wanted::Gone)),
        2 => Just(Event::Restart),
        2 => policy().prop_map(Event::Replaced),
        2 => Just(Event::Demand),
        1 => Just(Event::Tick),
    ]
}

fn surroundings() -> impl Strategy<Value = Event> {
    let away = Event::EngineAway { why: "no engine answers".to_owned() };
    prop_oneof![Just(away), Just(Event::EngineBack), Just(Event::HostResumed)]
}

fn news() -> impl Strategy<Value = fn(RunId) -> Event> {
    let all: [fn(RunId) -> Event; 7] = [
        |run| Event::Started { run },
        |run| Event::Ready { run },
        |run| Event::Paused { run },
        |run| Event::Unpaused { run },
        |run| Event::Unhealthy { run },
        |run| Event::Healthy { run },
        |run| Event::Hung { run, what: "a ping".to_owned() },
    ];
    prop::sample::select(all.to_vec())
}

fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        12 => Just(Cause::Exited(Exit::code(1))),
        2 => Just(Cause::StoppedBySomeone),
        1 => Just(Cause::RestartedBySomeone),
        1 => Just(Cause::Removed),
        2 => Just(Cause::EngineAway),
        1 => Just(Cause::Asked),
        1 => Just(Cause::NotStarted("no memory".to_owned())),
        1 => Just(Cause::CannotStart("no container".to_owned())),
    ]
}

fn amended() -> impl Strategy<Value = Cause> {
    prop::sample::select(vec![Cause::StoppedBySomeone, Cause::RestartedBySomeone])
}

fn mood() -> impl Strategy<Value = Mood> {
    let often = || prop::bool::weighted(0.8);
    let starts = prop_oneof![
        8 => Just(Starts::Succeed),
        1 => Just(Starts::FailForNow),
        1 => Just(Starts::FailForGood),
    ];
    (starts, often(), often(), millis(0..5_000)).prop_map(
        |(starts, runs_get_ready, runs_heed_stop, news_takes)| Mood {
            starts,
            runs_get_ready,
            runs_heed_stop,
            news_takes,
        },
    )
}

fn policy() -> impl Strategy<Value = RestartPolicy> {
    (
        0..6_u32,
        [millis(0..20_000), millis(0..60_000), millis(0..60_000)],
        prop::sample::select(vec![StableFrom::Ready, StableFrom::Start]),
        prop::sample::select(vec![OnStop::Restart, OnStop::Respect]),
        millis(0..60_000),
        millis(0..20_000),
    )
        .prop_map(|(max, times, stable_from, on_stop, start_timeout, stop_timeout)| {
            let [initial, cap, stable_after] = times;
            RestartPolicy {
                max,
                initial,
                cap,
                stable_after,
                stable_from,
                on_stop,
                start_timeout,
                stop_timeout,
                ..RestartPolicy::default()
            }
        })
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    // The ends of ranges are where the errors are.
    let first = range.start;
    prop_oneof![1 => Just(first), 9 => range].prop_map(Duration::from_millis)
}
