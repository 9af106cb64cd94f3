//! Random runs whose real behaviour is known.

use proptest::array::uniform2;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Behave(Behaviour),
    Call,
    ReadCall,
    GiveUp,
    Pause(u64),
    FailObservations(u8),
}

fn behaviour() -> impl Strategy<Value = Behaviour> {
    prop_oneof![
        Just(Behaviour::Healthy),
        Just(Behaviour::LosesAnswers),
        Just(Behaviour::ReadsOnly),
        Just(Behaviour::Spinning),
        Just(Behaviour::SlowDisk),
        (1_u64..90).prop_map(Behaviour::Timer),
        (1_u64..90).prop_map(Behaviour::Sends),
        Just(Behaviour::Deadlocked),
        Just(Behaviour::Suspended),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u64..120).prop_map(Step::Pass),
        2 => behaviour().prop_map(Step::Behave),
        2 => Just(Step::Call),
        1 => Just(Step::ReadCall),
        1 => Just(Step::GiveUp),
        1 => (1_u64..4000).prop_map(Step::Pause),
        1 => (1_u8..6).prop_map(Step::FailObservations),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn no_run_is_killed_without_proof(
        hang_after in 2_u64..120,
        answers_ping: bool,
        can_observe in proptest::bool::weighted(0.9),
        [busy_limit, block_limit] in uniform2(of(1_u64..600)),
        runs_for in 0_u64..40,
        steps in vec(step(), 1..30),
    ) {
        let limits = WatchLimits {
            hang_after: Some(seconds(hang_after)),
            busy_limit: busy_limit.map(seconds),
            block_limit: block_limit.map(seconds),
        };
        let mut world = World::new(limits);
        world.answers_ping = answers_ping;
        world.can_observe = can_observe;
        for step in steps {
            match step {
                Step::Pass(n) => world.pass(seconds(n)),
                Step::Behave(behaviour) => world.behaviour = behaviour,
                Step::Call => world.begin_call(),
                Step::ReadCall => world.call_that_is_read(),
                Step::GiveUp => world.give_up(),
                Step::Pause(n) => world.pause(seconds(n)),
                Step::FailObservations(n) => world.failures = n,
            }
        }
        // A deadlock is found in time, whatever happened before.
        if world.killed_after().is_some() || !can_observe {
            return Ok(());
        }
        (world.behaviour, world.failures) = (Behaviour::Healthy, 0);
        world.messages.retain(|message| !is_awaited(message));
        world.pass(seconds(10));
        world.give_up();
        // It may work for a while before it deadlocks.
        world.behaviour = Behaviour::Spinning;
        world.begin_call();
        world.pass(seconds(if busy_limit.is_none() { runs_for } else { 0 }));
        world.behaviour = Behaviour::Deadlocked;
        let begun = world.now - world.start;
        world.pass(seconds(hang_after + 2));
        let killed = world.killed_after();
        prop_assert!(killed.is_some_and(|at| at <= begun + seconds(hang_after + 2)), "{killed:?} {world:?}");
    }
}
