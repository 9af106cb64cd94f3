//! The lines of a connection of which nobody knows whether the daemon took them.
//!
//! A daemon takes lines in order, so an answer tells that the line of its request was taken, and all
//! before it. A daemon that leaves tells how many it has taken; of the others nobody has seen anything.
//!
//! There are never many: what a daemon has not read fits into the buffers between it and us. So if
//! there are more, the oldest are forgotten, which counts as taken.

use std::collections::VecDeque;

use mainstay_api::MAX_MESSAGE;

use super::said::{Id, Line};

/// How many lines are remembered: more than fit into the buffer of a socket.
const LINES: usize = 1024;

/// How many bytes they may have: those of the longest line, which the daemon may have read in part, and
/// more than fit into the buffer of a socket.
const BYTES: usize = MAX_MESSAGE + (1 << 20);

/// Why a line is sent.
#[derive(Debug, Clone)]
pub(super) enum Why {
    /// The client says it.
    Client,
    /// The session is opened again, with the client's `initialize`.
    Opening,
    /// It was opened again, and the client's `initialized` belongs to that.
    Opened,
    /// It is a request that is made again, because the answer was lost.
    Repeat(Id),
}

/// Lines of one connection after the other, numbered from 1 over all of them.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    lines: VecDeque<Sent>,
    bytes: usize,
    /// The number of the last line that was sent.
    last: u64,
    /// The number of the last line before this connection.
    before: u64,
    /// How many lines of this connection the daemon took before it left.
    taken: Option<u64>,
}

#[derive(Debug)]
struct Sent {
    number: u64,
    line: Line,
    why: Why,
}

impl Unheard {
    /// Another connection begins.
    pub(super) fn connected(&mut self) {
        *self = Self { last: self.last, before: self.last, ..Self::default() };
    }

    /// A line was sent as a whole. Gives its number.
    pub(super) fn sent(&mut self, line: Line, why: Why) -> u64 {
        self.last += 1;
        self.bytes += line.len();
        self.lines.push_back(Sent { number: self.last, line, why });
        while self.lines.len() > LINES || self.bytes > BYTES {
            self.forget_first();
        }
        self.last
    }

    /// The daemon took this line, and so all before it.
    pub(super) fn heard(&mut self, number: u64) {
        while self.lines.front().is_some_and(|sent| sent.number <= number) {
            self.forget_first();
        }
    }

    /// The daemon left, and had taken so many lines of this connection.
    pub(super) fn left(&mut self, taken: u64) {
        self.taken = Some(taken);
    }

    /// Whether the daemon has said that it leaves.
    pub(super) fn is_left(&self) -> bool {
        self.taken.is_some()
    }

    /// The connection broke. Gives the lines of which it is certain that the daemon did not take them, in
    /// order.
    pub(super) fn broken(&mut self) -> Vec<(Line, Why)> {
        let taken = self.taken.take().map_or(u64::MAX, |taken| self.before.saturating_add(taken));
        self.heard(taken);
        self.bytes = 0;
        self.lines.drain(..).map(|sent| (sent.line, sent.why)).collect()
    }

    fn forget_first(&mut self) {
        if let Some(sent) = self.lines.pop_front() {
            self.bytes -= sent.line.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(unheard: &mut Unheard, text: &str) -> u64 {
        unheard.sent(Line::new(text.as_bytes().to_vec()), Why::Client)
    }

    #[track_caller]
    fn check(unheard: &mut Unheard, expected: &[&str]) {
        let lines = unheard.broken();
        let texts: Vec<_> = lines.iter().map(|(line, _)| String::from_utf8_lossy(line)).collect();
        assert_eq!(texts, expected);
        assert_eq!((unheard.bytes, unheard.lines.len()), (0, 0));
    }

    #[test]
    fn what_a_daemon_did_not_take_is_known_from_its_farewell_only() {
        let mut unheard = Unheard::default();
        for taken in 0..5 {
            unheard.connected();
            for text in ["a", "b", "c"] {
                send(&mut unheard, text);
            }
            unheard.left(taken);
            let rest = usize::try_from(taken).unwrap().min(3);
            check(&mut unheard, &["a", "b", "c"][rest..]);
        }
        unheard.connected();
        send(&mut unheard, "d");
        check(&mut unheard, &[]);
    }

    #[test]
    fn an_answer_tells_that_all_lines_before_it_were_taken() {
        let mut unheard = Unheard::default();
        let early = send(&mut unheard, "early");
        unheard.connected();
        let [_, b, _] = ["a", "b", "c"].map(|text| send(&mut unheard, text));
        unheard.heard(early);
        assert_eq!(unheard.lines.len(), 3, "that was on another connection");
        unheard.heard(b);
        assert_eq!((unheard.lines.len(), unheard.bytes), (1, 1));
        unheard.left(2);
        check(&mut unheard, &["c"]);
    }

    #[test]
    fn the_newest_lines_are_remembered() {
        let mut unheard = Unheard::default();
        for _ in 0..2 * LINES {
            send(&mut unheard, "x");
        }
        assert_eq!((unheard.lines.len(), unheard.bytes), (LINES, LINES));
        let longest = "y".repeat(MAX_MESSAGE + 1);
        for _ in 0..2 {
            send(&mut unheard, &longest);
            send(&mut unheard, "z");
        }
        unheard.left(0);
        check(&mut unheard, &["z", &longest, "z"]);
    }
}
