//! Splits a server's output into lines, and queues them.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Of a longer line only the ends are kept, so that one bad answer fails one call only.
pub(crate) const MAX_LINE: usize = 16 * 1024 * 1024;

/// How much of each end of an over-long line is kept: enough to see what it was.
const END: usize = 1024;

/// Splits a stream of pieces into lines without copying those that lie within one piece.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    partial: BytesMut,
    /// The over-long line so far.
    cut: Option<Cut>,
}

#[derive(Debug, Default)]
struct Cut {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line without its end.
    Whole(Bytes),
    /// A line that was longer than [`MAX_LINE`].
    TooLong {
        /// How long it was.
        length: usize,
        /// Its beginning, a newline and its end.
        ends: Bytes,
    },
}

impl Line {
    /// The line, or the ends of one that is too long, which `note` reports.
    pub(crate) fn or_ends(self, note: impl FnOnce(String)) -> Bytes {
        match self {
            Self::Whole(line) => line,
            Self::TooLong { length, ends } => {
                note(format!("[a line of {length} bytes was dropped: too long]"));
                ends
            }
        }
    }
}

impl LineSplitter {
    /// Adds a piece and returns the lines that it completes.
    pub(crate) fn push(&mut self, piece: Bytes) -> Vec<Line> {
        self.push_located(piece).into_iter().map(|(_, line)| line).collect()
    }

    /// Like [`Self::push`], each line with the offset in the piece after its end.
    pub(crate) fn push_located(&mut self, mut piece: Bytes) -> Vec<(usize, Line)> {
        let mut lines = Vec::new();
        let mut place = 0;
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            let mut rest = piece.split_to(end + 1);
            rest.truncate(end);
            place += end + 1;
            lines.extend(self.complete(rest).map(|line| (place, line)));
        }
        if self.cut.is_some() || self.partial.len() + piece.len() > MAX_LINE {
            let cut = self.cut.get_or_insert_default();
            cut.extend(&std::mem::take(&mut self.partial));
            cut.extend(&piece);
        } else {
            self.partial.extend_from_slice(&piece);
        }
        lines
    }

    /// The number of bytes of an unfinished line.
    pub(crate) fn pending(&self) -> usize {
        self.partial.len()
    }

    fn complete(&mut self, rest: Bytes) -> Option<Line> {
        if self.cut.is_some() || self.partial.len() + rest.len() > MAX_LINE {
            let mut cut = self.cut.take().unwrap_or_default();
            cut.extend(&std::mem::take(&mut self.partial));
            cut.extend(&rest);
            return Some(cut.finish());
        }
        let mut line = if self.partial.is_empty() {
            rest
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(&rest);
            whole.freeze()
        };
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        (!line.is_empty()).then_some(Line::Whole(line))
    }
}

/// A queue of lines that knows how long they are together.
#[derive(Debug, Default)]
pub(crate) struct LineQueue {
    lines: VecDeque<Bytes>,
    bytes: usize,
}

impl LineQueue {
    pub(crate) fn push(&mut self, line: Bytes) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl From<LineQueue> for Vec<Bytes> {
    fn from(queue: LineQueue) -> Self {
        queue.lines.into()
    }
}

impl Cut {
    fn extend(&mut self, bytes: &[u8]) {
        let room = END.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(END)..]);
        let excess = self.tail.len().saturating_sub(END);
        self.tail.drain(..excess);
        self.length += bytes.len();
    }

    fn finish(self) -> Line {
        let ends = [self.head, self.tail].join(&b'\n');
        Line::TooLong { length: self.length, ends: ends.into() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<Line> {
        let mut splitter = LineSplitter::default();
        pieces.iter().flat_map(|piece| splitter.push(Bytes::copy_from_slice(piece))).collect()
    }

    fn whole(text: &'static str) -> Line {
        Line::Whole(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn lines_are_joined_from_pieces() {
        assert_eq!(split(&[b"a\nb", b"c\r\n\n", b"d"]), [whole("a"), whole("bc")]);
    }

    #[test]
    fn the_place_of_a_line_is_after_its_end() {
        let mut splitter = LineSplitter::default();
        let located = splitter.push_located(Bytes::from_static(b"\na\r\n\nbc\nd"));
        assert_eq!(located, [(4, whole("a")), (8, whole("bc"))]);
        assert_eq!(splitter.push_located(Bytes::from_static(b"e\n")), [(2, whole("de"))]);
    }

    #[test]
    fn an_overlong_line_does_not_affect_others() {
        let long = vec![b'x'; MAX_LINE];
        let ends = [&long[..END], b"\n", &long[1..END], b"y"].concat().into();
        let cut = Line::TooLong { length: MAX_LINE + 1, ends };
        assert_eq!(split(&[&long, b"y\nok\n"]), [cut, whole("ok")]);
        assert_eq!(split(&[&long, b"\n"]), [Line::Whole(Bytes::from(long.clone()))]);
    }

    proptest! {
        #[test]
        fn any_split_yields_the_same_lines(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(0usize..200, 0..10),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut < text.len()).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&text[from..cut]);
                from = cut;
            }
            pieces.push(&text[from..]);
            prop_assert_eq!(split(&pieces), split(&[&text]));
        }
    }
}
