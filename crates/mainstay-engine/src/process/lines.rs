//! From a server's output, which comes in pieces, to whole lines.

use bytes::{Bytes, BytesMut};

/// No line is longer; a longer one is dropped whole, so that one bad answer costs one call only.
pub(crate) const MAX_LINE: usize = 16 * 1024 * 1024;

/// Splits a stream of pieces into lines without copying those that lie within one piece.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    partial: BytesMut,
    /// How much of an over-long line has been dropped so far.
    dropped: usize,
}

/// What a piece completed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line without its end.
    Whole(Bytes),
    /// A line of that many bytes was longer than [`MAX_LINE`].
    TooLong(usize),
}

impl LineSplitter {
    /// Takes in a piece and hands out the lines it completes.
    pub(crate) fn push(&mut self, mut piece: Bytes) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            let mut rest = piece.split_to(end + 1);
            rest.truncate(end);
            lines.extend(self.complete(rest));
        }
        if self.dropped > 0 || self.partial.len() + piece.len() > MAX_LINE {
            self.dropped += self.partial.len() + piece.len();
            self.partial = BytesMut::new();
        } else {
            self.partial.extend_from_slice(&piece);
        }
        lines
    }

    /// How many bytes of an unfinished line are kept.
    pub(crate) fn pending(&self) -> usize {
        self.partial.len()
    }

    fn complete(&mut self, rest: Bytes) -> Option<Line> {
        let length = std::mem::take(&mut self.dropped) + self.partial.len() + rest.len();
        let mut line = if self.partial.is_empty() {
            rest
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(&rest);
            whole.freeze()
        };
        if length > MAX_LINE {
            return Some(Line::TooLong(length));
        }
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        (!line.is_empty()).then_some(Line::Whole(line))
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
    fn lines_are_put_together_from_pieces() {
        assert_eq!(split(&[b"a\nb", b"c\r\n\n", b"d"]), [whole("a"), whole("bc")]);
    }

    #[test]
    fn an_over_long_line_costs_itself_only() {
        let long = vec![b'x'; MAX_LINE];
        assert_eq!(split(&[&long, b"y\nok\n"]), [Line::TooLong(MAX_LINE + 1), whole("ok")]);
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
