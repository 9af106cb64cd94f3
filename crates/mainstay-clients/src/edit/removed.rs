//! A temporarily removed entry, and how to find its place in a text that others have edited since.
//!
//! Its place is given by its neighbours: after the nearest one that was before it, else before the nearest one that was
//! after it, else at the end. If the text between the two is what the removal left there, the original bytes are
//! restored. Otherwise the entry is formatted as it was, with its own comments, and below the comment that was above
//! it.

use serde::{Deserialize, Serialize};

/// An entry as it was written, and its place. Stored in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Its name among its neighbours: the key, or in TOML the header.
    pub(super) name: String,
    /// From the key to the end of the value, or the lines of its tables.
    pub(super) text: String,
    /// White space and comments that were removed with it, without a comma.
    pub(super) lead: String,
    pub(super) tail: String,
    /// The comment directly above it, which stays in the text; empty if there is none.
    pub(super) above: String,
    /// The names of its neighbours, in the order of the text, including entries that were removed temporarily.
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
    pub(super) gap: Gap,
}

/// The text between the neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gap {
    /// With the entry, and without it.
    pub(super) with: String,
    pub(super) without: String,
    /// Whether the last member in the braces had a comma.
    pub(super) is_trailed: bool,
    /// Whether there was no neighbour before it, or after it.
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

impl Removed {
    /// How many of these neighbours are before the entry.
    pub(super) fn slot(&self, names: &[&str]) -> usize {
        let all = self.before.iter().chain(&self.after).map(String::as_str);
        if all.eq(names.iter().copied()) {
            return self.before.len();
        }
        let is_there = |name: &&String| names.contains(&name.as_str());
        let before = self.before.iter().rev().find(is_there);
        let after = self.after.iter().find(is_there);
        let is = |at: usize, name: &String| names[at] == *name;
        match (before, after) {
            (Some(before), after) => {
                // If a name exists twice, both neighbours decide.
                let between = |at: &usize| {
                    is(at - 1, before)
                        && after.is_some_and(|after| *at < names.len() && is(*at, after))
                };
                let behind = || (1..=names.len()).rfind(|at| is(at - 1, before));
                (1..=names.len()).find(between).or_else(behind)
            }
            (None, Some(after)) => (0..names.len()).find(|at| is(*at, after)),
            (None, None) => None,
        }
        .unwrap_or(names.len())
    }

    /// Whether the entry belongs below this comment: it was above the entry, or above an `absent` one before it.
    pub(super) fn goes_below(&self, comment: &str, absent: &[&Self]) -> bool {
        let is_before = |other: &&&Self| self.before.contains(&other.name);
        let mut above = absent.iter().filter(is_before).map(|other| &other.above);
        !comment.is_empty() && (comment == self.above || above.any(|above| comment == above))
    }

    /// Whether the entry belongs above this comment: it was above an `absent` one after it.
    pub(super) fn goes_above(&self, comment: &str, absent: &[&Self]) -> bool {
        let is_behind = |other: &&&Self| self.after.contains(&other.name);
        let mut above = absent.iter().filter(is_behind).map(|other| &other.above);
        !comment.is_empty() && above.any(|above| comment == above)
    }

    /// The original text between these neighbours, if it is what the removal left there.
    pub(super) fn exact(&self, gap: &str, is_first: bool, is_last: bool) -> Option<&str> {
        let Gap { with, without, .. } = &self.gap;
        let is_same =
            gap == without && (is_first, is_last) == (self.gap.is_first, self.gap.is_last);
        is_same.then_some(with)
    }
}

/// The names before and after the one at `index`, including those of `absent` entries.
pub(super) fn neighbours(
    names: &[&str],
    index: usize,
    absent: &[&Removed],
) -> (Vec<String>, Vec<String>) {
    let mut all = names.to_vec();
    let mut index = index;
    for removed in absent {
        let slot = removed.slot(&all);
        all.insert(slot, &removed.name);
        index += usize::from(slot <= index);
    }
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    (owned(&all[..index]), owned(&all[index + 1..]))
}
