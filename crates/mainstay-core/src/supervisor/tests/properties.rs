//! What holds for every script of events.

use proptest::collection::vec;
use proptest::prelude::*;

use super::silent::Manner;
use super::*;

/// One step of a random script.
#[derive(Debug, Clone, Copy)]
enum Step {
    Pass(Duration),
    Results(usize),
    Die,
    Want(Wanted),
    Restart,
    Replace(usize),
    Retire,
    EngineAway,
    EngineBack,
    CloseSession,
    FailSession(usize),
    Unreachable,
    Call(Manner),
    List,
    EmptyList,
}

fn step() -> impl Strategy<Value = Step> {
    let wanted = prop::sample::select(vec![Wanted::On, Wanted::Off, Wanted::On, Wanted::Gone]);
    let manner = prop::sample::select(vec![
        Manner::Answers,
        Manner::Deadlocked,
        Manner::Spinning,
        Manner::Suspended,
        Manner::Hidden,
    ]);
    prop_oneof![
        6 => (0..90_000_u64).prop_map(|ms| Step::Pass(Duration::from_millis(ms))),
        10 => (0..4_usize).prop_map(Step::Results),
        4 => Just(Step::Die),
        3 => wanted.prop_map(Step::Want),
        2 => Just(Step::Restart),
        2 => (0..3_usize).prop_map(Step::Replace),
        1 => Just(Step::Retire),
        2 => Just(Step::EngineAway),
        3 => Just(Step::EngineBack),
        2 => Just(Step::CloseSession),
        3 => (0..5_usize).prop_map(Step::FailSession),
        2 => Just(Step::Unreachable),
        4 => manner.prop_map(Step::Call),
        2 => Just(Step::List),
        1 => Just(Step::EmptyList),
    ]
}

impl World {
    fn play(&mut self, step: Step) {
        let specs = [process, container, remote];
        match step {
            Step::Pass(time) => self.pass(time),
            Step::Results(count) => (0..count).for_each(|_| {
                self.step();
            }),
            Step::Die => self.die(),
            Step::Want(wanted) => self.tell(Event::Want(wanted)),
            Step::Restart => self.tell(Event::Restart),
            Step::Replace(which) => self.tell(Event::Replace(Box::new(specs[which]()))),
            Step::Retire => self.tell(Event::Retire),
            Step::EngineAway => {
                let server = self.supervisor.spec().name.clone();
                self.tell(Event::News(News::Away { server, why: "no answer".to_owned() }));
            }
            Step::EngineBack => {
                let server = self.supervisor.spec().name.clone();
                self.tell(Event::News(News::Back { server }));
            }
            Step::CloseSession => {
                let attempt = self.supervisor.connections.saturating_sub(1);
                self.tell(Event::SessionClosed(Connection { run: self.run(), attempt }));
            }
            Step::FailSession(which) => {
                if let Some(connection) = self.opening.take() {
                    let text = || "why".to_owned();
                    let remote = self.supervisor.engine() == WorkloadKind::Remote;
                    let failure = match which {
                        0 if remote => SessionFailure::Unreachable(text()),
                        1 if remote => SessionFailure::Refused(text()),
                        0..=2 => SessionFailure::Local,
                        3 => SessionFailure::Ending,
                        _ => SessionFailure::Faulty(text()),
                    };
                    if let SessionFailure::Refused(_) = failure {
                        // Nothing runs here, so the run ends with the refusal.
                        self.alive.remove(&connection.run);
                    }
                    self.tell(Event::SessionFailed(connection, failure));
                }
            }
            Step::Unreachable => {
                self.tell(Event::Unreachable { generation: self.run().generation() });
            }
            Step::Call(manner) => self.call(manner),
            Step::List => {
                let engine = self.supervisor.engine();
                let state = FoundState::Alive { pid: None, container: None, age: SECOND };
                let found = self.alive.iter().map(|run| (engine, *run, state.clone())).collect();
                self.tell(Event::Listed { begun: self.now, found });
            }
            Step::EmptyList => {
                // Runs whose start has not been reported are in no list.
                let is_starting = self.supervisor.starting.is_some();
                if self.alive.is_empty() && !is_starting {
                    self.tell(Event::Listed { begun: self.now, found: Vec::new() });
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_script_keeps_the_guarantees_and_ends_as_intended(
        which in 0..3_usize,
        script in vec(step(), 0..80),
    ) {
        let mut world = World::new([process, container, remote][which]());
        for step in script {
            if world.is_over {
                break;
            }
            world.play(step);
        }
        // In the end the engines answer, and everything happens that was decided.
        if !world.is_over {
            world.play(Step::EngineBack);
            for _ in 0..100 {
                world.settle();
                if world.is_over {
                    break;
                }
                world.pass(SECOND * 120);
                world.play(Step::List);
            }
        }
        let is_on = world.supervisor.unit().wanted() == Wanted::On;
        let has_failed =
            world.supervisor.unit().view(world.now).status == Status::Error;
        if world.is_over || !is_on || has_failed {
            prop_assert!(world.alive.is_empty(), "{:?}", world.alive);
        } else {
            prop_assert_eq!(world.availability(), Availability::Up);
        }
    }
}
