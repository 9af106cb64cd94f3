//! Whatever breaks, whatever outlives it and whoever says farewell: one answer for every request, no
//! effect twice, everything in order, and no doubt without a reason.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::tests::at;
use super::*;

/// Something that happens.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The client says something.
    Say(What),
    /// Lines go to the daemon, as many as that.
    Send(usize),
    /// The daemon takes as many of them.
    Take(usize),
    /// The daemon answers one of all requests that it ever took, also one it has answered before.
    Answer(usize),
    /// The connection breaks; what the daemon has not taken is lost, and it may say so.
    Break {
        farewell: bool,
    },
    /// There is a connection. Of the requests that the daemon had, those of this pattern are pending.
    Connect {
        resumes: bool,
        pending: u64,
    },
    Wait(u64),
}

/// What the client says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A request without an effect.
    Safe,
    /// A request with an effect.
    Unsafe,
    /// Something that nobody answers.
    Note,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![Just(What::Safe), Just(What::Unsafe), Just(What::Note)];
    prop_oneof![
        4 => what.prop_map(Step::Say),
        4 => (1..4_usize).prop_map(Step::Send),
        3 => (1..4_usize).prop_map(Step::Take),
        2 => any::<usize>().prop_map(Step::Answer),
        2 => any::<bool>().prop_map(|farewell| Step::Break { farewell }),
        3 => (any::<bool>(), any::<u64>())
            .prop_map(|(resumes, pending)| Step::Connect { resumes, pending }),
        1 => (0..60_u64).prop_map(Step::Wait),
    ]
}

/// The same, if every daemon says farewell, keeps what it took, and is followed by the next one in no time.
fn gentle(step: Step) -> Step {
    match step {
        Step::Break { .. } => Step::Break { farewell: true },
        Step::Connect { .. } => Step::Connect { resumes: true, pending: u64::MAX },
        Step::Wait(_) => Step::Wait(0),
        Step::Say(_) | Step::Send(_) | Step::Take(_) | Step::Answer(_) => step,
    }
}

/// What became of something that the client said.
struct Said {
    what: What,
    taken: usize,
    answered: usize,
    /// Whether it was lost on its way, and nobody said so.
    lost: bool,
}

/// An exchange with a client and a daemon that keep count.
#[derive(Default)]
struct Play {
    exchange: Exchange,
    connected: bool,
    now: u64,
    sessions: u64,
    /// By number, which for requests is their id.
    said: HashMap<u64, Said>,
    /// What was sent on this connection and not taken.
    on_the_way: VecDeque<u64>,
    /// How many lines of this connection were taken.
    taken: u64,
    /// What was ever taken, in the order in which that was first done.
    heard: Vec<u64>,
}

impl Play {
    /// A client with an open session.
    fn open() -> Self {
        let mut play = Self::default();
        play.connect(false, 0);
        play.say("initialize", What::Safe);
        play.send(1);
        play.take(1);
        play.answer(0);
        play
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Say(What::Safe) => self.say("tools/list", What::Safe),
            Step::Say(What::Unsafe) => self.say("tools/call", What::Unsafe),
            Step::Say(What::Note) => self.say("notifications/x", What::Note),
            Step::Send(lines) => self.send(lines),
            Step::Take(lines) => self.take(lines),
            Step::Answer(which) => self.answer(which),
            Step::Break { farewell } if self.connected => self.leave(farewell),
            Step::Connect { resumes, pending } if !self.connected => self.connect(resumes, pending),
            Step::Break { .. } | Step::Connect { .. } => {}
            Step::Wait(seconds) => {
                self.now += seconds;
                let answers = self.exchange.overdue(at(self.now));
                self.tell(&answers);
                assert!(self.exchange.deadline().is_none_or(|deadline| deadline > at(self.now)));
            }
        }
    }

    fn say(&mut self, method: &str, what: What) {
        if !self.exchange.wants_line() {
            return;
        }
        let number = self.said.len() as u64;
        self.said.insert(number, Said { what, taken: 0, answered: 0, lost: false });
        let member = if what == What::Note { "number" } else { "id" };
        let line = format!(r#"{{"jsonrpc":"2.0","{member}":{number},"method":"{method}"}}"#);
        self.exchange.offer(line.into_bytes(), at(self.now));
    }

    fn send(&mut self, lines: usize) {
        for _ in 0..lines {
            let Some(line) = self.exchange.next().filter(|_| self.connected) else { return };
            self.exchange.sent();
            self.on_the_way.push_back(number(&line));
        }
    }

    fn take(&mut self, lines: usize) {
        for _ in 0..lines {
            let Some(number) = self.on_the_way.pop_front() else { return };
            self.taken += 1;
            let said = self.said.get_mut(&number).unwrap();
            said.taken += 1;
            if said.taken == 1 {
                self.heard.push(number);
            }
        }
    }

    fn answer(&mut self, which: usize) {
        if !self.connected || self.heard.is_empty() {
            return;
        }
        let id = self.heard[which % self.heard.len()];
        if self.said[&id].what == What::Note {
            return;
        }
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes();
        match self.exchange.received(&line) {
            Heard::Pass => self.tell(&[line]),
            Heard::Swallow => {}
            Heard::Lost(reason) => panic!("{reason}"),
        }
    }

    fn leave(&mut self, farewell: bool) {
        if farewell {
            let words = serde_json::to_vec(&Farewell::Leaving { taken: self.taken }).unwrap();
            assert_eq!(self.exchange.received(&words), Heard::Swallow);
        }
        for number in self.on_the_way.drain(..) {
            self.said.get_mut(&number).unwrap().lost |= !farewell;
        }
        self.connected = false;
        self.exchange.broken(at(self.now));
    }

    fn connect(&mut self, resumes: bool, pattern: u64) {
        let known = self.exchange.session().filter(|_| resumes).map(str::to_owned);
        self.sessions += 1;
        let session = known.or_else(|| Some(self.sessions.to_string()));
        let pending = self.heard.iter().filter(|id| pattern >> (**id % 64) & 1 == 1);
        let pending = pending.map(ToString::to_string).collect();
        let answers = self.exchange.connected(&Connected { session, pending });
        (self.connected, self.taken) = (true, 0);
        self.tell(&answers);
    }

    fn tell(&mut self, lines: &[Vec<u8>]) {
        for line in lines {
            let id = number(line);
            let said = self.said.get_mut(&id).unwrap();
            said.answered += 1;
            let doubtful = String::from_utf8_lossy(line).contains("effect is unknown");
            let has_reason = said.taken > 0 || said.lost || self.on_the_way.contains(&id);
            assert!(!doubtful || has_reason, "nobody has seen request {id}");
        }
    }

    /// Everything that was said is taken by the last daemon, or was before.
    fn all_is_taken(&mut self) {
        if !self.connected {
            self.connect(true, u64::MAX);
        }
        self.send(usize::MAX);
        self.take(usize::MAX);
        for (number, said) in &self.said {
            assert_eq!(said.taken, 1, "{number}");
        }
    }

    /// The client has waited long enough.
    fn end(mut self) {
        let answers = self.exchange.give_up("over");
        self.tell(&answers);
        assert!(self.exchange.is_settled());
        assert!(self.heard.is_sorted(), "out of order: {:?}", self.heard);
        for (number, Said { what, taken, answered, .. }) in self.said {
            let (most, due) = match what {
                What::Safe => (2, 1),
                What::Unsafe => (1, 1),
                What::Note => (1, 0),
            };
            assert_eq!(answered, due, "answers to {number}");
            // The handshake is said again for every session that is opened anew.
            assert!(taken <= most || number == 0, "{number} was taken {taken} times");
        }
    }
}

fn number(line: &[u8]) -> u64 {
    let message: Value = serde_json::from_slice(line).unwrap();
    message.get("id").unwrap_or(&message["number"]).as_u64().unwrap()
}

proptest! {
    #[test]
    fn every_request_gets_one_answer_and_no_effect_is_had_twice(
        steps in prop::collection::vec(step(), 0..80)
    ) {
        let mut play = Play::open();
        for step in steps {
            play.step(step);
        }
        play.end();
    }

    #[test]
    fn nothing_is_lost_nor_said_twice_where_daemons_say_farewell(
        steps in prop::collection::vec(step().prop_map(gentle), 0..80)
    ) {
        let mut play = Play::open();
        for step in steps {
            play.step(step);
        }
        play.all_is_taken();
        play.end();
    }
}
