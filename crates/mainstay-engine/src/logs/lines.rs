//! The lines of a log, in bounded memory.

use std::collections::VecDeque;

use crate::LogLine;

/// The rest of a longer line is cut.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// Marks a line that was cut.
const CUT: &str = "… [cut]";

/// The memory of a line besides its bytes: its own size, and about the size of a `String` for the allocator.
const OVERHEAD: usize = size_of::<LogLine>() + size_of::<String>();

/// Splits a file into lines, and cuts long ones.
#[derive(Debug, Default)]
pub(super) struct LogLines {
    line: Vec<u8>,
    cut: bool,
}

impl LogLines {
    /// Adds a piece and returns the lines that it completes.
    pub(super) fn push(&mut self, piece: &[u8]) -> impl Iterator<Item = String> {
        piece.split_inclusive(|&byte| byte == b'\n').filter_map(|part| {
            let (text, ended) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = MAX_LINE - self.line.len();
            self.cut |= text.len() > room;
            self.line.extend_from_slice(&text[..room.min(text.len())]);
            ended.then(|| self.take())
        })
    }

    /// The last line, if it has no end.
    pub(super) fn finish(&mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> String {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.cut) {
            // The cut may have gone through a character.
            let text = String::from_utf8_lossy(&line);
            return format!("{}{CUT}", text.trim_end_matches(char::REPLACEMENT_CHARACTER));
        }
        String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned()
    }
}

/// The last `count` lines, as far as they fit.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) lines: VecDeque<LogLine>,
    count: usize,
    bytes: usize,
    max_bytes: usize,
}

impl Tail {
    pub(super) fn new(count: usize, max_bytes: usize) -> Self {
        Self { lines: VecDeque::new(), count, bytes: 0, max_bytes }
    }

    pub(super) fn push(&mut self, line: LogLine) {
        self.bytes += line.text.len() + OVERHEAD;
        self.lines.push_back(line);
        while self.lines.len() > self.count || self.bytes > self.max_bytes {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.text.len() + OVERHEAD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = LogLines::default();
        let mut all = Vec::new();
        for piece in pieces {
            all.extend(lines.push(piece));
        }
        all.extend(lines.finish());
        all
    }

    #[test]
    fn lines_are_joined_from_pieces() {
        assert_eq!(split(&[b"a\nb", b"c\r\n\n", b"d"]), ["a", "bc", "", "d"]);
        assert_eq!(split(&[b"a\n"]), ["a"]);
    }

    #[test]
    fn an_overlong_line_is_cut_and_the_next_one_is_whole() {
        let long = vec![b'x'; MAX_LINE];
        let whole = "x".repeat(MAX_LINE);
        assert_eq!(split(&[&long, b"\nb\n"]), [whole.clone(), "b".to_owned()]);
        assert_eq!(split(&[&long, b"y", b"z\nb\n"]), [format!("{whole}{CUT}"), "b".to_owned()]);
        let mut lines = LogLines::default();
        for _ in 0..10 {
            assert_eq!(lines.push(&long).count(), 0);
        }
        assert!(lines.line.capacity() <= 2 * MAX_LINE);
    }

    #[test]
    fn a_cut_leaves_no_half_character() {
        let long = [&vec![b'x'; MAX_LINE - 1], "ä\n".as_bytes()].concat();
        assert_eq!(split(&[&long]), [format!("{}{CUT}", "x".repeat(MAX_LINE - 1))]);
    }

    #[test]
    fn a_tail_is_bounded_by_lines_and_by_bytes() {
        let kept = |count, max_bytes| {
            let mut tail = Tail::new(count, max_bytes);
            for line in ["a", "b", "c"] {
                tail.push(LogLine { at: None, text: line.to_owned() });
            }
            tail.lines.into_iter().map(|line| line.text).collect::<String>()
        };
        assert_eq!(kept(0, 1000), "");
        assert_eq!(kept(2, 1000), "bc");
        assert_eq!(kept(usize::MAX, 1000), "abc");
        assert_eq!(kept(usize::MAX, OVERHEAD + 1), "c");
        assert_eq!(kept(usize::MAX, 1), "");
    }
}
