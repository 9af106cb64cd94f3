//! The only way in which a text is changed: named byte ranges get new text, all other bytes are copied.

use std::ops::Range;

/// One range of a text and what comes in its place.
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

/// Carries out splices that do not overlap. Of those that begin at the same place, insertions come first, in their order.
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
