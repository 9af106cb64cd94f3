//! Properties of every history of a container, however late or incomplete its events arrive.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

proptest! {
    // PROPTEST_CASES asks for more.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_is_reported_in_order_and_ends_in_the_actual_state(
        steps in vec(step(), 0..60),
        rest_arrives: bool,
    ) {
        let mut world = World::new();
        for step in steps {
            world.play(step);
        }
        world.converges(rest_arrives);
    }

    #[test]
    fn if_events_arrive_at_once_every_end_is_reported_and_no_other(deeds in vec(deed(), 0..40)) {
        let mut world = World::new();
        for deed in deeds {
            world.play(Step::Somebody(deed));
            world.play(Step::Hear(usize::MAX));
            world.agrees();
            prop_assert_eq!(world.reported, world.ends);
        }
    }
}

/// What a user does to the container, or the container itself.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Exit(i64),
    Oom,
    Stop,
    Restart,
    PodmanRestart,
    Start,
    Pause,
    Unpause,
    Health(bool),
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Somebody(Deed),
    /// We start the container, and so many events arrive meanwhile.
    WeStart(usize),
    WeEnd,
    Remove,
    /// The engine goes away with all events that it has not sent, and comes back.
    Outage {
        survives: bool,
    },
    Hear(usize),
    /// Events get lost.
    Lose(usize),
    Wait(u64),
    /// An inspection is answered at once.
    Inspect,
    /// An inspection is answered later.
    AskInspection,
    AnswerInspection,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        prop::sample::select(vec![0, 1, 137]).prop_map(Deed::Exit),
        Just(Deed::Oom),
        Just(Deed::Stop),
        Just(Deed::Restart),
        Just(Deed::PodmanRestart),
        Just(Deed::Start),
        Just(Deed::Pause),
        Just(Deed::Unpause),
        any::<bool>().prop_map(Deed::Health),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => deed().prop_map(Step::Somebody),
        8 => (0..4_usize).prop_map(Step::WeStart),
        2 => Just(Step::WeEnd),
        1 => Just(Step::Remove),
        2 => any::<bool>().prop_map(|survives| Step::Outage { survives }),
        10 => (1..5_usize).prop_map(Step::Hear),
        3 => (1..3_usize).prop_map(Step::Lose),
        3 => (0..40_u64).prop_map(Step::Wait),
        6 => Just(Step::Inspect),
        2 => Just(Step::AskInspection),
        2 => Just(Step::AnswerInspection),
    ]
}

/// A container, events that its engine has not sent yet, and the watch that is tested.
struct World {
    watch: Watch,
    now: Instant,
    /// None once it is removed.
    container: Option<ContainerState>,
    starts: u64,
    pending_events: VecDeque<ContainerEvent>,
    asked: Option<ContainerState>,
    /// The run that was reported alive last, and whether it was reported over.
    believed: (RunId, bool),
    /// How many ends there were, and how many were reported.
    ends: u32,
    reported: u32,
}

impl World {
    fn new() -> Self {
        Self {
            watch: up(),
            now: at(0),
            container: Some(alive(1)),
            starts: 1,
            pending_events: VecDeque::new(),
            asked: None,
            believed: (run(1), false),
            ends: 0,
            reported: 0,
        }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Somebody(deed) => {
                self.apply(deed);
            }
            Step::WeStart(events) => self.we_start(events),
            Step::WeEnd => {
                self.watch.ending();
                self.apply(Deed::Stop);
            }
            Step::Remove => {
                self.end(&[], 137);
                if self.container.take().is_some() {
                    self.pending_events.push_back(ContainerEvent::Destroy);
                }
            }
            Step::Outage { survives } => {
                self.pending_events.clear();
                if !survives {
                    self.end(&[], 137);
                    self.pending_events.clear();
                }
                self.inspect(true);
            }
            Step::Hear(count) => self.handle_event(count),
            Step::Lose(count) => {
                drop(self.pending_events.drain(..count.min(self.pending_events.len())));
            }
            Step::Wait(seconds) => self.now += Duration::from_secs(seconds),
            Step::Inspect => self.inspect(false),
            Step::AskInspection => self.asked = self.container.clone(),
            Step::AnswerInspection => {
                if let Some(seen) = self.asked.take() {
                    let facts = self.watch.handle_inspection(&seen, false);
                    self.learn(facts);
                }
            }
        }
    }

    /// Applies it. Returns whether anything changed.
    fn apply(&mut self, deed: Deed) -> bool {
        match deed {
            Deed::Exit(code) => self.end(&[], code),
            Deed::Oom => self.end(&[ContainerEvent::Oom], 137),
            Deed::Stop => {
                let stopped = self.end(&[], 143);
                self.pending_events.extend(stopped.then_some(ContainerEvent::Stop));
                stopped
            }
            Deed::Restart => {
                self.apply(Deed::Stop);
                let started = self.start();
                self.pending_events.extend(started.then_some(ContainerEvent::Restart));
                started
            }
            Deed::PodmanRestart => {
                self.pending_events
                    .extend(self.container.is_some().then_some(ContainerEvent::Restart));
                self.end(&[], 143);
                self.start()
            }
            Deed::Start => self.start(),
            Deed::Pause => {
                self.change(ContainerEvent::Pause, |seen| mem::replace(&mut seen.paused, true))
            }
            Deed::Unpause => {
                self.change(ContainerEvent::Unpause, |seen| !mem::replace(&mut seen.paused, false))
            }
            Deed::Health(true) => self
                .change(ContainerEvent::Healthy, |seen| !mem::replace(&mut seen.unhealthy, false)),
            Deed::Health(false) => self
                .change(ContainerEvent::Unhealthy, |seen| mem::replace(&mut seen.unhealthy, true)),
        }
    }

    /// Changes a running container, and queues an event unless nothing changed.
    fn change(
        &mut self,
        event: ContainerEvent,
        was: impl FnOnce(&mut ContainerState) -> bool,
    ) -> bool {
        let Some(seen) = self.container.as_mut().filter(|seen| seen.running) else { return false };
        let changed = !was(seen);
        if changed {
            self.pending_events.push_back(event);
        }
        changed
    }

    fn end(&mut self, before: &[ContainerEvent], code: i64) -> bool {
        let Some(seen) = self.container.as_mut().filter(|seen| seen.running) else { return false };
        *seen = dead(self.starts, code);
        seen.oom = before.contains(&ContainerEvent::Oom);
        self.pending_events.extend(before);
        self.pending_events.push_back(ContainerEvent::Die { code });
        self.ends += 1;
        true
    }

    fn start(&mut self) -> bool {
        let Some(seen) = self.container.as_mut().filter(|seen| !seen.running) else { return false };
        self.starts += 1;
        *seen = alive(self.starts);
        self.pending_events.push_back(ContainerEvent::Start);
        true
    }

    fn we_start(&mut self, events: usize) {
        if self.watch.run().is_some() || self.watch.phase == Phase::Removed {
            return;
        }
        let next = self.watch.last().next();
        self.watch.starting(next);
        self.start();
        let seen = self.container.clone();
        self.handle_event(events);
        let Some(seen) = seen else { return self.watch.not_started() };
        if self.watch.phase == Phase::Removed {
            return self.watch.not_started();
        }
        self.watch.started(&seen);
        self.believed = (next, false);
        let facts = self.watch.handle_inspection(&seen, false);
        self.learn(facts);
    }

    fn handle_event(&mut self, count: usize) {
        for _ in 0..count {
            let Some(event) = self.pending_events.pop_front() else { break };
            let facts = self.watch.handle_event(self.now, event);
            self.learn(facts);
        }
    }

    fn inspect(&mut self, away: bool) {
        if let Some(seen) = self.container.clone() {
            let facts = self.watch.handle_inspection(&seen, away);
            self.learn(facts);
        }
    }

    /// Checks facts, and looks if they ask for it.
    fn learn(&mut self, facts: Vec<Fact>) {
        let (believed, over) = self.believed;
        for fact in facts {
            match fact {
                Fact::Died { run, .. } | Fact::LostInOutage { run } => {
                    assert_eq!(self.believed, (run, false), "an end of no present run");
                    self.believed.1 = true;
                    self.reported += 1;
                }
                Fact::Restarted { old, new } => {
                    assert!(old >= believed && new == old.next(), "{old} became {new}");
                    self.reported += u32::from(!self.believed.1);
                    self.believed = (new, false);
                }
                Fact::Amended { run, .. } => assert!(run <= self.believed.0),
                Fact::Paused(run)
                | Fact::Unpaused(run)
                | Fact::Unhealthy(run)
                | Fact::Healthy(run) => assert_eq!(self.believed, (run, false)),
                Fact::Removed(run) => assert_eq!(run, self.watch.last()),
                Fact::Inspect => self.inspect(false),
            }
        }
        assert!(self.believed.0 > believed || self.believed.1 >= over, "nothing comes back");
    }

    /// Checks that the watch believes the truth.
    fn agrees(&self) {
        let Some(seen) = &self.container else { return };
        match &self.watch.phase {
            Phase::Up(run) => {
                let known = (seen.running, seen.paused, seen.unhealthy);
                assert_eq!(known, (true, run.paused, run.unhealthy));
                assert_eq!(self.watch.started_at.as_deref(), Some(seen.started_at.as_str()));
                assert_eq!(self.believed, (self.watch.last, false));
            }
            Phase::Idle => assert!(!seen.running && self.believed.1),
            Phase::Starting(_) | Phase::Removed => panic!("{:?}", self.watch),
        }
    }

    fn converges(&mut self, rest_arrives: bool) {
        if rest_arrives {
            self.handle_event(usize::MAX);
        }
        self.pending_events.clear();
        self.inspect(false);
        self.agrees();
        let before = self.watch.clone();
        self.inspect(false);
        assert_eq!(self.watch, before, "the same again changes nothing");
    }
}
