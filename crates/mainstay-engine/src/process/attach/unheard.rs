//! Which output has been dealt with. Pure.

use std::collections::VecDeque;

/// An unfinished line is kept in the shim too, up to this size.
const KEEP_PARTIAL: usize = 256 * 1024;

/// Lines that were handed on and have not been dealt with, as far as is known. What the shim keeps
/// bounds them.
#[derive(Debug)]
pub(super) struct Unheard {
    /// How many lines have been dealt with.
    count: u64,
    /// Where the lines end that have been handed on since.
    ends: VecDeque<u64>,
    /// Where the last line that was dealt with ends.
    offset: u64,
    /// Beyond the lines, nothing before this is needed.
    rest: u64,
}

impl Unheard {
    /// Nothing has been handed on of what begins here.
    pub(super) fn since(offset: u64) -> Self {
        Self { count: 0, ends: VecDeque::new(), offset, rest: offset }
    }

    /// A line is handed on that ends before this offset.
    pub(super) fn hand_on(&mut self, end: u64) {
        self.ends.push_back(end);
    }

    /// All output before this offset was taken in; so many bytes of it are kept of an unfinished line.
    pub(super) fn take_in(&mut self, end: u64, partial: usize) {
        let kept = if partial > KEEP_PARTIAL { 0 } else { partial };
        self.rest = end - kept as u64;
    }

    /// So many lines have been dealt with. Answers with the offset before which nothing is needed.
    pub(super) fn heard(&mut self, count: u64) -> u64 {
        while self.count < count
            && let Some(end) = self.ends.pop_front()
        {
            self.count += 1;
            self.offset = end;
        }
        if self.ends.is_empty() { self.offset.max(self.rest) } else { self.offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_dealt_with_is_confirmed() {
        let mut unheard = Unheard::since(100);
        unheard.hand_on(110);
        unheard.hand_on(125);
        unheard.take_in(130, 5);
        assert_eq!(unheard.heard(0), 100);
        assert_eq!(unheard.heard(1), 110);
        assert_eq!(unheard.heard(1), 110);
        assert_eq!(unheard.heard(2), 125);
        assert_eq!(unheard.heard(9), 125, "more was never handed on");
        unheard.hand_on(140);
        assert_eq!(unheard.heard(9), 140);
    }

    #[test]
    fn what_is_no_line_waits_for_the_lines_before_it() {
        let mut unheard = Unheard::since(0);
        unheard.hand_on(10);
        // Blank lines, and an unfinished one.
        unheard.take_in(30, 12);
        assert_eq!(unheard.heard(0), 0);
        assert_eq!(unheard.heard(1), 18);
        unheard.take_in(18 + 2 * KEEP_PARTIAL as u64, 2 * KEEP_PARTIAL);
        assert_eq!(unheard.heard(1), 18 + 2 * KEEP_PARTIAL as u64, "too much to keep");
    }
}
