//! White space, line ends, comments and commas between values.
//!
//! `jsonc-parser` and `toml_edit` report where values are, but not to which value a comma or a comment belongs.

use std::ops::Range;

use super::braces::Syntax;

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
        matches!(self, Self::LineComment | Self::BlockComment)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Splits a range without values into pieces. A line break inside a block comment is part of that comment.
pub(super) fn pieces(text: &str, range: Range<usize>, syntax: Syntax) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let (kind, len) = first(&text[start..range.end], syntax);
        let end = start + len;
        pieces.push(Piece { kind, start, end });
        start = end;
    }
    pieces
}

/// The kind and length of the first piece of a non-empty text.
fn first(rest: &str, syntax: Syntax) -> (Kind, usize) {
    let line = || rest.find(['\n', '\r']).unwrap_or(rest.len());
    match (rest.as_bytes()[0], syntax) {
        (b'\r', _) if rest.starts_with("\r\n") => (Kind::Newline, 2),
        (b'\n' | b'\r', _) => (Kind::Newline, 1),
        (b',', _) => (Kind::Comma, 1),
        (b'#', Syntax::Toml) => (Kind::LineComment, line()),
        (b'/', Syntax::Json) if rest.starts_with("//") => (Kind::LineComment, line()),
        (b'/', Syntax::Json) => {
            // The star that opens a comment does not close it: `/*/` continues.
            let end = rest.get(2..).and_then(|inner| inner.find("*/"));
            (Kind::BlockComment, end.map_or(rest.len(), |at| at + 4))
        }
        (_, Syntax::Json | Syntax::Toml) => {
            let is_space = |c| !matches!(c, '\n' | '\r' | ',' | '#' | '/');
            let mut rest_of_piece = rest.char_indices().skip(1);
            let end = rest_of_piece.find(|(_, c)| !is_space(*c)).map(|(at, _)| at);
            (Kind::Space, end.unwrap_or(rest.len()))
        }
    }
}

/// The start of the first value at or after `from`.
pub(super) fn skip(text: &str, from: usize, syntax: Syntax) -> usize {
    let mut at = from;
    while let Some(next) = text[at..].chars().next() {
        at += match (next, syntax) {
            (space, _) if space.is_whitespace() => space.len_utf8(),
            (',', _) | ('#', Syntax::Toml) | ('/', Syntax::Json) => first(&text[at..], syntax).1,
            _ => break,
        };
    }
    at
}
