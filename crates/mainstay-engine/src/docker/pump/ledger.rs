//! Which of the last lines a server can have read, if the number of unread bytes is known.
//!
//! The engine may still have bytes on their way to the server, and may lose some when it ends. So more may be unread than the
//! pipe shows, never less: a line that counts as unread was not read.

use std::collections::VecDeque;

/// More than any pipe holds.
const MAX_BYTES: u64 = 2 << 20;

/// The lengths of the last lines, oldest first.
#[derive(Debug, Default)]
pub(super) struct InputLedger {
    lines: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl InputLedger {
    /// A line is about to be written, maybe again.
    pub(super) fn push(&mut self, line: u64, bytes: usize) {
        self.lines.push_back((line, bytes as u64));
        self.bytes += bytes as u64;
        while self.bytes > MAX_BYTES && self.lines.len() > 1 {
            let (_, dropped) = self.lines.pop_front().unwrap_or_default();
            self.bytes -= dropped;
        }
    }

    /// The last line of which the server can have read anything, if the last bytes are unread. 0 if it has read none.
    pub(super) fn read_through(&self, mut unread: u64) -> u64 {
        for (line, bytes) in self.lines.iter().rev() {
            if *bytes > unread {
                return *line;
            }
            unread -= bytes;
        }
        // All of these are unread; nothing is known about those before them.
        self.lines.front().map_or(0, |(line, _)| line.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_whole_lines_count_as_unread() {
        let mut ledger = InputLedger::default();
        assert_eq!(ledger.read_through(9), 0);
        for (line, bytes) in [(1, 10), (2, 20), (3, 30)] {
            ledger.push(line, bytes);
        }
        let check =
            |unread, expected| assert_eq!(ledger.read_through(unread), expected, "{unread}");
        check(0, 3);
        check(29, 3);
        check(30, 2);
        check(49, 2);
        check(50, 1);
        check(60, 0);
        check(1000, 0);
    }

    #[test]
    fn old_lines_are_dropped() {
        let mut ledger = InputLedger::default();
        for line in 1..=1000 {
            ledger.push(line, 10_000);
        }
        assert!(ledger.lines.len() < 300);
        assert_eq!(ledger.read_through(10_000), 999);
        let oldest = ledger.lines.front().unwrap().0;
        assert_eq!(ledger.read_through(u64::MAX), oldest - 1);
    }

    proptest! {
        /// The server has read some bytes, and some of the rest are still on their way or were lost.
        #[test]
        fn no_line_of_which_anything_was_read_counts_as_unread(
            lengths in prop::collection::vec(1_usize..50, 1..40),
            read in 0_u64..2000,
            on_the_way in 0_u64..2000,
        ) {
            let mut ledger = InputLedger::default();
            let mut ends = Vec::new();
            let mut total = 0;
            for (line, bytes) in (1..).zip(&lengths) {
                ledger.push(line, *bytes);
                total += *bytes as u64;
                ends.push(total);
            }
            let read = read.min(total);
            let in_pipe = (total - read).saturating_sub(on_the_way);
            // The line in which the last byte is that was read.
            let last = ends.iter().position(|end| *end >= read).map_or(0, |at| at as u64 + 1);
            let last = if read == 0 { 0 } else { last };
            prop_assert!(ledger.read_through(in_pipe) >= last);
        }
    }
}
