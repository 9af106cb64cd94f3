//! What holds whatever happens.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::*;
use super::gone;

/// What may happen next. Daemons are named by their place among those that live.
#[derive(Debug, Clone)]
enum Step {
    Message(usize, Message),
    Closed(usize),
    Gone(usize),
    Signal,
    ClientWaits,
    Wait(u64),
    Deadline,
}

fn a_step() -> impl Strategy<Value = Step> {
    let message = prop_oneof![
        4 => any::<bool>().prop_map(|can_hold| Message::Ready { can_hold }),
        4 => Just(Message::Prepared),
        3 => Just(Message::HandedOver),
        1 => Just(Message::Failed(b"no".into())),
        1 => Just(Message::Ending),
        4 => any::<bool>().prop_map(|kept| Message::Replace {
            exe: "new".into(),
            fallback: kept.then(|| "kept".into()),
        }),
    ];
    prop_oneof![
        12 => (0..4_usize, message).prop_map(|(who, message)| Step::Message(who, message)),
        1 => (0..4_usize).prop_map(Step::Closed),
        6 => (0..4_usize).prop_map(Step::Gone),
        1 => Just(Step::Signal),
        2 => Just(Step::ClientWaits),
        4 => (0..2_000_u64).prop_map(Step::Wait),
        6 => Just(Step::Deadline),
    ]
}

/// The world that a plan acts upon.
struct World {
    plan: Plan,
    now: Instant,
    alive: BTreeSet<Id>,
    serving: BTreeSet<Id>,
    released: bool,
    over: bool,
}

impl World {
    fn new() -> Self {
        let now = crate::clock::now();
        let (alive, serving) = (BTreeSet::new(), BTreeSet::new());
        let plan = Plan::new(now, "old".into());
        let mut world = Self { plan, now, alive, serving, released: false, over: false };
        world.take(Event::Tick);
        world
    }

    fn step(&mut self, step: Step) {
        let alive: Vec<Id> = self.alive.iter().copied().collect();
        let one = |who: usize| alive.get(who).copied();
        let event = match step {
            Step::Message(who, message) => one(who).map(|id| Event::Message(id, message)),
            Step::Closed(who) => one(who).map(Event::Closed),
            Step::Gone(who) => one(who).map(gone),
            Step::Signal => Some(Event::Signal),
            Step::ClientWaits => Some(Event::ClientWaits),
            Step::Wait(millis) => {
                self.now += Duration::from_millis(millis);
                Some(Event::Tick)
            }
            Step::Deadline => {
                self.now = self.plan.deadline().unwrap_or(self.now).max(self.now);
                Some(Event::Tick)
            }
        };
        if let Some(event) = event {
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        match &event {
            Event::Gone(id, _) => {
                self.alive.remove(id);
                self.serving.remove(id);
            }
            Event::Message(id, Message::HandedOver) => drop(self.serving.remove(id)),
            Event::Message(..)
            | Event::Closed(_)
            | Event::Restored(_)
            | Event::ClientWaits
            | Event::Signal
            | Event::Tick => {}
        }
        for action in self.plan.handle(self.now, event) {
            self.carry_out(action);
        }
        let next = self.plan.deadline();
        assert!(next.is_none_or(|at| at > self.now), "it would spin");
    }

    fn carry_out(&mut self, action: Action) {
        assert!(!self.over, "{action:?} after the end");
        match action {
            Action::Start(start) => {
                assert!(!self.released, "started after the release");
                self.alive.insert(start.id);
                if !start.standby {
                    self.serve(start.id);
                }
            }
            Action::Serve(id) => self.serve(id),
            Action::HandOver(id)
            | Action::NotReplaced(id, _)
            | Action::Term(id)
            | Action::Kill(id) => {
                assert!(self.alive.contains(&id), "{id:?} is gone");
            }
            Action::Restore { .. } => {
                assert!(self.serving.is_empty(), "a program is in use");
                self.take(Event::Restored(true));
            }
            Action::First | Action::Report(_) | Action::ClearReport => {}
            Action::Reexec(_) => {
                assert_eq!(self.alive, self.serving, "another daemon lives");
                assert!(!self.alive.is_empty() && !self.released);
            }
            Action::Release => self.released = true,
            Action::End(_) => {
                assert!(self.alive.is_empty(), "{:?} are left", self.alive);
                self.over = true;
            }
        }
    }

    fn serve(&mut self, id: Id) {
        assert!(self.alive.contains(&id) && self.serving.is_empty(), "{:?} serves", self.serving);
        self.serving.insert(id);
    }
}

proptest! {
    #[test]
    fn at_most_one_daemon_serves(steps in prop::collection::vec(a_step(), 0..80)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
    }

    #[test]
    fn an_end_is_always_reached(steps in prop::collection::vec(a_step(), 0..40)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        for _ in 0..3 {
            world.step(Step::Signal);
        }
        for _ in 0..20 {
            world.step(Step::Deadline);
            world.step(Step::Gone(0));
        }
        prop_assert!(world.over, "{:?}", world.plan);
    }
}
