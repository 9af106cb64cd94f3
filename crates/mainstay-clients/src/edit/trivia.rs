//! What stands between values: white space, line ends, comments and commas.
//!
//! The parsers say where values are. Which comma or comment belongs to which of them is told by the pieces between.

use std::ops::Range;

/// How a format writes its comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comments {
    /// `// to the end of the line` and `/* up to here */`.
    Slashes,
    /// `# to the end of the line`.
    Hash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Space,
    Newline,
    LineComment,
    BlockComment,
    Comma,
}

impl Kind {
    pub(super) fn is_comment(self) -> bool {
        match self {
            Self::LineComment | Self::BlockComment => true,
            Self::Space | Self::Newline | Self::Comma => false,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The pieces of a range that holds no value. A line break inside of a block comment is part of that comment.
pub(super) fn pieces(text: &str, range: Range<usize>, comments: Comments) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let (kind, len) = first(&text[start..range.end], comments);
        let end = start + len;
        pieces.push(Piece { kind, start, end });
        start = end;
    }
    pieces
}

/// The kind and length of the first piece of a text that is not empty.
fn first(rest: &str, comments: Comments) -> (Kind, usize) {
    let line = || rest.find(['\n', '\r']).unwrap_or(rest.len());
    match (rest.as_bytes()[0], comments) {
        (b'\r', _) if rest.starts_with("\r\n") => (Kind::Newline, 2),
        (b'\n' | b'\r', _) => (Kind::Newline, 1),
        (b',', _) => (Kind::Comma, 1),
        (b'#', Comments::Hash) => (Kind::LineComment, line()),
        (b'/', Comments::Slashes) if rest.starts_with("//") => (Kind::LineComment, line()),
        (b'/', Comments::Slashes) => {
            // The star that opens a comment does not close it: `/*/` goes on.
            let end = rest.get(2..).and_then(|inner| inner.find("*/"));
            (Kind::BlockComment, end.map_or(rest.len(), |at| at + 4))
        }
        (_, Comments::Hash | Comments::Slashes) => {
            let special = |c| matches!(c, '\n' | '\r' | ',' | '#' | '/');
            let len = rest
                .char_indices()
                .skip(1)
                .find(|(_, c)| special(*c))
                .map_or(rest.len(), |(at, _)| at);
            (Kind::Space, len)
        }
    }
}

/// Where the first value at or behind `from` begins.
pub(super) fn skip(text: &str, from: usize, comments: Comments) -> usize {
    let mut at = from;
    while let Some(next) = text[at..].chars().next() {
        let is_trivia = next.is_whitespace()
            || matches!(
                (next, comments),
                (',', _) | ('#', Comments::Hash) | ('/', Comments::Slashes)
            );
        if !is_trivia {
            break;
        }
        at += if next.is_whitespace() { next.len_utf8() } else { first(&text[at..], comments).1 };
    }
    at
}
