//! Joins an engine's log and its stream, to recover what a stdio container wrote while no connection was open.
//!
//! An engine does not repeat to a new stream what was written before it was opened, but its log has it.
//! So the stream is opened first, then the log is read, and the two are joined: the lines of the log after
//! those that were delivered ([`first_new`]), then the lines of the stream after the log ([`Splice`]).
//! Lines are compared by content, because neither source numbers them.
//!
//! Guarantees, as long as the log reaches back at least to the last line that was delivered:
//!
//! * If no two lines are equal, no line of the log is lost and none is delivered twice.
//! * If lines repeat, the log was not rotated and every line of the run was pushed to the [`Tail`],
//!   [`first_new`] is still exact. If the log was rotated, none is delivered twice; lines are lost only if
//!   they end with a repetition of all that the tail and the rotated log have in common (of the last
//!   line that was delivered, if that is nothing).
//! * Between log and stream, lines are lost only if they repeat the end of the log.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use bytes::Bytes;

/// Number of lines that identify a place in a log.
const TAIL_LINES: usize = 512;

/// Hashes of the last lines that were delivered, newest last.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    hashes: VecDeque<u64>,
    /// The number of all delivered lines.
    count: usize,
}

impl Tail {
    pub(crate) fn push(&mut self, line: &[u8]) {
        if self.hashes.len() == TAIL_LINES {
            self.hashes.pop_front();
        }
        self.hashes.push_back(hash(line));
        self.count += 1;
    }

    /// The number of last lines that the tail and this log have in common.
    fn common(&self, log: &[u64]) -> usize {
        let pairs = self.hashes.iter().rev().zip(log.iter().rev());
        pairs.take_while(|(one, other)| one == other).count()
    }
}

/// The index of the first line of this run's log (oldest first, perhaps rotated) that was not delivered yet. 0 if
/// the log has none of the delivered lines.
pub(crate) fn first_new(tail: &Tail, log: &[Bytes]) -> usize {
    let log: Vec<u64> = log.iter().map(|line| hash(line)).collect();
    let lengths: Vec<usize> = (0..=log.len()).map(|end| tail.common(&log[..end])).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return 0;
    }
    let mut ends = (0..=log.len()).filter(|end| lengths[*end] == longest);
    let first = ends.next().unwrap_or(0);
    // A rotated log begins later than the run, so the delivered lines cannot end beyond their count.
    ends.take_while(|end| *end <= tail.count).last().unwrap_or(first)
}

/// Filters out the lines of a stream that are also in a log that was read after the stream was opened.
/// Lines that may still turn out to be part of the log are held back.
#[derive(Debug)]
pub(crate) struct Splice {
    log: Vec<Bytes>,
    /// Where in the log the stream may have begun.
    begins: Vec<usize>,
    /// The lines of the stream that are held back.
    held: Vec<Bytes>,
    /// How many of those are known to be part of the log.
    known: usize,
}

impl Splice {
    pub(crate) fn new(log: Vec<Bytes>) -> Self {
        Self { begins: (0..log.len()).collect(), log, held: Vec::new(), known: 0 }
    }

    /// Adds the next line of the stream, and returns the lines that are known to be beyond the log.
    pub(crate) fn pass(&mut self, line: Bytes) -> Vec<Bytes> {
        let at = self.held.len();
        self.begins.retain(|begin| self.log[begin + at] == line);
        self.held.push(line);
        let length = self.held.len();
        // No two places lead to the end of the log with the same line.
        let last = self.log.len().checked_sub(length);
        if last.is_some_and(|last| self.begins.pop_if(|begin| *begin == last).is_some()) {
            self.known = length;
        }
        if !self.begins.is_empty() {
            return Vec::new();
        }
        self.rest()
    }

    /// Returns the lines that are held back, after the stream has been silent for some time.
    pub(crate) fn rest(&mut self) -> Vec<Bytes> {
        self.begins.clear();
        let beyond = self.held.split_off(self.known);
        self.held.clear();
        self.known = 0;
        beyond
    }
}

fn hash(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(line);
    hasher.finish()
}

#[cfg(test)]
mod tests;
