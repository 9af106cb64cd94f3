//! Byte ranges of a text: replacing them, finding lines and indentation, and what is between values.

use std::ops::Range;

use super::braces::Syntax;

/// A range of a text and its replacement.
#[derive(Debug)]
pub(super) struct Splice {
    range: Range<usize>,
    text: String,
}

impl Splice {
    pub(super) fn replace(range: Range<usize>, text: impl Into<String>) -> Self {
        Self { range, text: text.into() }
    }

    pub(super) fn insert(at: usize, text: impl Into<String>) -> Self {
        Self::replace(at..at, text)
    }

    pub(super) fn delete(range: Range<usize>) -> Self {
        Self::replace(range, "")
    }
}

/// Applies splices that do not overlap and copies all other bytes. Of splices that begin at the same offset, insertions come
/// first, in their order.
pub(super) fn apply(text: &str, mut splices: Vec<Splice>) -> String {
    splices.sort_by_key(|splice| (splice.range.start, splice.range.end));
    let mut edited = String::with_capacity(
        text.len() + splices.iter().map(|splice| splice.text.len()).sum::<usize>(),
    );
    let mut done = 0;
    for splice in splices {
        edited.push_str(&text[done..splice.range.start]);
        edited.push_str(&splice.text);
        done = splice.range.end;
    }
    edited.push_str(&text[done..]);
    edited
}

/// The first line end of a text: `\n`, `\r\n` or `\r`.
pub(super) fn first_newline(text: &str) -> Option<&'static str> {
    let at = text.find(['\n', '\r'])?;
    Some(match &text[at..] {
        rest if rest.starts_with("\r\n") => "\r\n",
        rest if rest.starts_with('\n') => "\n",
        _ => "\r",
    })
}

/// The line end for new lines of a text.
pub(super) fn newline_of(text: &str) -> &'static str {
    first_newline(text).unwrap_or("\n")
}

/// The start of the line that contains `offset`. A line end belongs to the line before it.
pub(super) fn line_start(text: &str, offset: usize) -> usize {
    let is_end = |at: usize| text.as_bytes()[at] == b'\n' || !text[at + 1..].starts_with('\n');
    let mut ends = text[..offset].rmatch_indices(['\n', '\r']).map(|(at, _)| at);
    ends.find(|at| is_end(*at)).map_or(0, |at| at + 1)
}

/// The end of the line that contains `offset`, including its line end.
pub(super) fn line_end(text: &str, offset: usize) -> usize {
    text[offset..].find('\n').map_or(text.len(), |newline| offset + newline + 1)
}

/// The white space that begins the line of `offset`, up to `offset`.
pub(super) fn margin(text: &str, offset: usize) -> &str {
    let line = &text[line_start(text, offset)..offset];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// The indentation of `offset`, if only white space precedes it in its line and the line is not the first.
pub(super) fn own_line_indent(text: &str, offset: usize) -> Option<&str> {
    let start = line_start(text, offset);
    let before = &text[start..offset];
    (start > 0 && before.bytes().all(|byte| matches!(byte, b' ' | b'\t'))).then_some(before)
}

/// What is between values. `jsonc-parser` and `toml_edit` report where values are, but not to which value a comma or a
/// comment belongs.
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
