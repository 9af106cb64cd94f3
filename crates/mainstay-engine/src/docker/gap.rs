//! What a stdio container wrote while nobody was attached.
//!
//! An engine does not repeat to a new stream what was written before it was opened, but its log has it.
//! So the stream is opened first, then the log is read, and the two are joined: what the log has after
//! the lines that were handed on ([`first_new`]), then what the stream has after the log ([`Splice`]).
//! Lines are found again by what they say, as neither source numbers them.
//!
//! What holds, as long as the log reaches at least as far as what was handed on:
//!
//! * If no two lines are equal, nothing that is left of the log is lost and nothing comes twice.
//! * If lines repeat, the log was not rotated and every line of the run was pushed to the [`Tail`],
//!   [`first_new`] is still exact. If the log was rotated, nothing comes twice; lines are lost only if
//!   they end with a repetition of all that the tail and the rotated log have in common (of the last
//!   line that was handed on, if that is nothing).
//! * Between log and stream, lines are lost only if they repeat the end of the log.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use bytes::Bytes;

/// How many lines are enough to know a place in a log again.
const KEPT: usize = 512;

/// The last lines that were handed on, by hash, newest last; bounded.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    hashes: VecDeque<u64>,
    /// How many there were, those no longer kept included.
    count: usize,
}

impl Tail {
    pub(crate) fn push(&mut self, line: &[u8]) {
        if self.hashes.len() == KEPT {
            self.hashes.pop_front();
        }
        self.hashes.push_back(hash(line));
        self.count += 1;
    }

    /// How many of its last lines are the last ones of this log.
    fn common(&self, log: &[u64]) -> usize {
        let pairs = self.hashes.iter().rev().zip(log.iter().rev());
        pairs.take_while(|(one, other)| one == other).count()
    }
}

/// Which lines of the log of this run (oldest first; may be rotated, so begin anywhere) come after those
/// that were handed on: the index of the first new one. It is 0 if none of those is there.
pub(crate) fn first_new(tail: &Tail, log: &[Bytes]) -> usize {
    let log: Vec<u64> = log.iter().map(|line| hash(line)).collect();
    let lengths: Vec<usize> = (0..=log.len()).map(|end| tail.common(&log[..end])).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return 0;
    }
    let mut ends = (0..=log.len()).filter(|end| lengths[*end] == longest);
    let first = ends.next().unwrap_or(0);
    // A rotated log begins later than the run, so what was handed on cannot end beyond its count.
    ends.take_while(|end| *end <= tail.count).last().unwrap_or(first)
}

/// Lets pass what a stream brings beyond a log that was read after the stream was opened, line by line.
/// What may still turn out to be part of the log is held back.
#[derive(Debug)]
pub(crate) struct Splice {
    log: Vec<Bytes>,
    /// Where in the log the stream may have begun, without the places that have been ruled out.
    begins: Vec<usize>,
    /// The stream so far, until it is known what is beyond the log.
    held: Vec<Bytes>,
    /// How many of those are known to be part of the log.
    known: usize,
}

impl Splice {
    pub(crate) fn new(log: Vec<Bytes>) -> Self {
        Self { begins: (0..log.len()).collect(), log, held: Vec::new(), known: 0 }
    }

    /// Takes in the next line of the stream, and answers with those that are beyond the log.
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

    /// What is held back, when the stream has been silent for so long that it is not part of the log.
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
