//! The client's lines that have not been sent, in order.
//!
//! There are never many, because the client is not read when there is no room; and none waits for
//! ever, because each has its time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mainstay_api::MAX_MESSAGE;

use super::said::{Id, Line, Said, said};

/// How long a line waits for a daemon.
pub(super) const HOLD: Duration = Duration::from_secs(45);

/// How many lines wait at most.
const LINES: usize = 1024;

/// With so many bytes waiting, no other line is taken in.
const BYTES: usize = MAX_MESSAGE;

/// A line and what it says.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) line: Line,
    pub(super) said: Vec<Said>,
    /// None if it waits as long as it takes.
    until: Option<Instant>,
}

/// Lines that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Held {
    lines: VecDeque<Unsent>,
    bytes: usize,
}

impl Held {
    /// Takes in a line at its end.
    pub(super) fn push(&mut self, line: Vec<u8>, now: Instant) {
        self.wait(Line::new(line), now);
    }

    fn wait(&mut self, line: Line, now: Instant) {
        let said = said(&line);
        // Without it a session never opens, and nobody is there to be told that it was dropped.
        let opens = said.iter().any(|said| matches!(said, Said::Initialized));
        self.bytes += line.len();
        self.lines.push_back(Unsent { line, said, until: (!opens).then_some(now + HOLD) });
    }

    /// Takes lines back that were sent in vain, in front of all that wait.
    pub(super) fn put_back(&mut self, lines: Vec<Line>, now: Instant) {
        if lines.is_empty() {
            return;
        }
        let later = std::mem::take(self);
        for line in lines {
            self.wait(line, now);
            self.drop_cancelled();
        }
        for unsent in later.lines {
            self.bytes += unsent.line.len();
            self.lines.push_back(unsent);
            self.drop_cancelled();
        }
    }

    pub(super) fn first(&self) -> Option<&Line> {
        self.lines.front().map(|unsent| &unsent.line)
    }

    /// Takes out the first line.
    pub(super) fn pop(&mut self) -> Option<Unsent> {
        let unsent = self.lines.pop_front()?;
        self.bytes -= unsent.line.len();
        Some(unsent)
    }

    /// Takes out the last line, if it cancels a request that waits here, and that request with it:
    /// nobody has to hear of either.
    pub(super) fn drop_cancelled(&mut self) {
        let Some([Said::Cancelled(id)]) = self.lines.back().map(|last| &last.said[..]) else {
            return;
        };
        let asks =
            |unsent: &Unsent| matches!(&unsent.said[..], [Said::Request(it)] if it.id == *id);
        let Some(place) = self.lines.iter().position(asks) else { return };
        for place in [self.lines.len() - 1, place] {
            let gone = self.lines.remove(place);
            self.bytes -= gone.map_or(0, |unsent| unsent.line.len());
        }
    }

    /// Takes out those whose time is over.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Unsent> {
        let is_over = |unsent: &Unsent| unsent.until.is_some_and(|until| until <= now);
        let (over, rest) = self.lines.drain(..).partition::<Vec<_>, _>(is_over);
        self.lines.extend(rest);
        self.bytes = self.lines.iter().map(|unsent| unsent.line.len()).sum();
        over
    }

    /// When the time of one is over next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lines.iter().filter_map(|unsent| unsent.until).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.lines.len() < LINES && self.bytes < BYTES
    }

    /// The requests that the last line cancels.
    pub(super) fn cancelled_last(&self) -> impl Iterator<Item = &Id> {
        self.lines.back().into_iter().flat_map(|last| &last.said).filter_map(|said| match said {
            Said::Cancelled(id) => Some(id),
            Said::Request(_) | Said::Initialized => None,
        })
    }
}
