//! Whatever breaks, and whatever outlives it: one answer for every request, and no effect twice.

use std::collections::HashMap;

use proptest::prelude::*;

use super::tests::at;
use super::*;

/// Something that happens.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The client asks for something, which may have an effect or not.
    Ask {
        safe: bool,
    },
    /// Lines go to the daemon, as many as that.
    Send(usize),
    /// The daemon answers one of all requests that ever reached it, also one it has answered before.
    Answer(usize),
    Break,
    /// There is a connection. Of the requests that the daemon had, those of this pattern are pending.
    Connect {
        resumes: bool,
        pending: u64,
    },
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<bool>().prop_map(|safe| Step::Ask { safe }),
        3 => (1..4_usize).prop_map(Step::Send),
        2 => any::<usize>().prop_map(Step::Answer),
        2 => Just(Step::Break),
        3 => (any::<bool>(), any::<u64>())
            .prop_map(|(resumes, pending)| Step::Connect { resumes, pending }),
        1 => (0..60_u64).prop_map(Step::Wait),
    ]
}

/// An exchange with a client and a daemon that keep count.
#[derive(Default)]
struct Play {
    exchange: Exchange,
    connected: bool,
    now: u64,
    sessions: u64,
    /// By id: whether it is safe, how often it was sent, how often answered.
    asked: HashMap<u64, (bool, usize, usize)>,
    /// Ids in the order in which the daemon heard of them.
    heard: Vec<u64>,
}

impl Play {
    /// A client with an open session.
    fn open() -> Self {
        let mut play = Self::default();
        play.connect(false, 0);
        play.ask("initialize", true);
        play.send(1);
        play.answer(0);
        play
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask { safe } => self.ask(if safe { "tools/list" } else { "tools/call" }, safe),
            Step::Send(lines) => self.send(lines),
            Step::Answer(which) => self.answer(which),
            Step::Break if self.connected => {
                self.connected = false;
                self.exchange.broken(at(self.now));
            }
            Step::Connect { resumes, pending } if !self.connected => self.connect(resumes, pending),
            Step::Break | Step::Connect { .. } => {}
            Step::Wait(seconds) => {
                self.now += seconds;
                let answers = self.exchange.overdue(at(self.now));
                self.tell(&answers);
                assert!(self.exchange.deadline().is_none_or(|deadline| deadline > at(self.now)));
            }
        }
    }

    fn ask(&mut self, method: &str, safe: bool) {
        if !self.exchange.wants_line() {
            return;
        }
        let id = self.asked.len() as u64;
        self.asked.insert(id, (safe, 0, 0));
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
        self.exchange.offer(line.into_bytes(), at(self.now));
    }

    fn send(&mut self, lines: usize) {
        for _ in 0..lines {
            let Some(line) = self.exchange.next().filter(|_| self.connected) else { return };
            self.exchange.sent();
            let id = number(&line);
            self.asked.get_mut(&id).unwrap().1 += 1;
            self.heard.push(id);
        }
    }

    fn answer(&mut self, which: usize) {
        if !self.connected || self.heard.is_empty() {
            return;
        }
        let id = self.heard[which % self.heard.len()];
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes();
        match self.exchange.received(&line) {
            Heard::Pass => self.tell(&[line]),
            Heard::Swallow => {}
            Heard::Lost(reason) => panic!("{reason}"),
        }
    }

    fn connect(&mut self, resumes: bool, pattern: u64) {
        let known = self.exchange.session().filter(|_| resumes).map(str::to_owned);
        self.sessions += 1;
        let session = known.or_else(|| Some(self.sessions.to_string()));
        let pending = self.heard.iter().filter(|id| pattern >> (**id % 64) & 1 == 1);
        let pending = pending.map(ToString::to_string).collect();
        let answers = self.exchange.connected(&Connected { session, pending });
        self.connected = true;
        self.tell(&answers);
    }

    fn tell(&mut self, lines: &[Vec<u8>]) {
        for line in lines {
            self.asked.get_mut(&number(line)).unwrap().2 += 1;
        }
    }

    /// The client has waited long enough.
    fn end(mut self) {
        let answers = self.exchange.give_up("over");
        self.tell(&answers);
        assert!(self.exchange.is_settled());
        for (id, (safe, sent, answered)) in self.asked {
            assert_eq!(answered, 1, "request {id}");
            // The handshake is said again for every session that is opened anew.
            let most = if safe { 2 } else { 1 };
            assert!(sent <= most || id == 0, "request {id} was sent {sent} times");
        }
    }
}

fn number(line: &[u8]) -> u64 {
    let message: Value = serde_json::from_slice(line).unwrap();
    message["id"].as_u64().unwrap()
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
}
