//! Changing single parts of a text, all other bytes kept.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Where a part stands in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    start: usize,
    end: usize,
}

impl Span {
    /// The place of a slice in the text that it was borrowed from.
    ///
    /// # Panics
    ///
    /// If it was borrowed from another text.
    pub(crate) fn of(part: &[u8], text: &[u8]) -> Self {
        let start = part.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
        let end = start.saturating_add(part.len());
        assert!(end <= text.len(), "the part is borrowed from this text");
        Self { start, end }
    }

    /// The empty place before this byte.
    pub(crate) fn at(start: usize) -> Self {
        Self { start, end: start }
    }

    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

/// One replacement: what stands there now, and what shall.
#[derive(Debug, Clone, Copy)]
pub struct Edit<'a>(pub Span, pub &'a str);

/// The text with all edits made, in one allocation. Their order does not matter.
///
/// # Panics
///
/// If two edits overlap or one lies outside the text.
pub fn splice(text: &[u8], edits: &mut [Edit<'_>]) -> Bytes {
    edits.sort_by_key(|Edit(span, _)| span.start);
    let added: usize = edits.iter().map(|Edit(_, new)| new.len()).sum();
    let removed: usize = edits.iter().map(|Edit(span, _)| span.end - span.start).sum();
    let mut out = Vec::with_capacity((text.len() + added).saturating_sub(removed));
    let mut done = 0;
    for Edit(span, new) in edits {
        out.extend_from_slice(&text[done..span.start]);
        out.extend_from_slice(new.as_bytes());
        done = span.end;
    }
    out.extend_from_slice(&text[done..]);
    out.into()
}

/// The message on one line, as stdio wants it. Strings in JSON hold no bare line ends, so between
/// tokens is the only place for them, where a space means the same.
pub fn in_one_line(message: Bytes) -> Bytes {
    let Some(first) = memchr::memchr2(b'\n', b'\r', &message) else { return message };
    let mut message = BytesMut::from(message);
    for byte in &mut message[first..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    message.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn edits_are_made_in_any_order() {
        let text = b"one two three";
        let two = Span::of(&text[4..7], text);
        let three = Span::of(&text[8..], text);
        let mut edits = [Edit(three, "3"), Edit(Span::at(0), "> "), Edit(two, "")];
        assert_eq!(splice(text, &mut edits), "> one  3");
        assert_eq!(splice(text, &mut []), &text[..]);
    }

    #[test]
    #[should_panic(expected = "borrowed from this text")]
    fn a_foreign_part_has_no_place() {
        Span::of(b"x", &[]);
    }

    #[test]
    fn lines_are_joined_without_a_copy_where_possible() {
        let message = Bytes::from_static(b"{}");
        assert_eq!(in_one_line(message.clone()).as_ptr(), message.as_ptr());
        assert_eq!(in_one_line(Bytes::from_static(b"{\r\n\"a\":\n1}")), "{  \"a\": 1}");
    }

    proptest! {
        #[test]
        fn joined_lines_mean_the_same(a: i32, b: String) {
            let value = serde_json::json!({ "a": a, "b": [b] });
            let pretty = Bytes::from(serde_json::to_vec_pretty(&value).unwrap());
            let line = in_one_line(pretty);
            prop_assert!(!line.contains(&b'\n'));
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&line).unwrap(), value);
        }
    }
}
