//! An entry that was taken out of a text, and how it finds its place again in a text that others have edited since.
//!
//! The place is told by the neighbours: an entry goes behind the nearest of those that stood before it, or else before
//! the nearest of those that stood behind it, or else to the end. If the text between the two is what the removal left
//! there, it becomes what it was to the last byte. Otherwise the entry is laid out as it was, with its own comments, and
//! below the comment that stood above it.

use serde::{Deserialize, Serialize};

/// An entry as it was written, with its place. It is kept in our ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// What it is called among its neighbours: its key, or in TOML its header.
    pub(super) name: String,
    /// The entry itself, from key to end of value, or the lines of its tables.
    pub(super) text: String,
    /// White space and comments that went with it, without a comma.
    pub(super) lead: String,
    pub(super) tail: String,
    /// The comment right above it, which stays in the text; empty if there is none.
    pub(super) above: String,
    /// The names of its neighbours, in the order of the text. Entries of ours that were out at the time count.
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
    pub(super) gap: Gap,
}

/// What stood between the neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gap {
    /// With the entry, and without it.
    pub(super) with: String,
    pub(super) without: String,
    /// Whether a comma stood behind the last member of the braces.
    pub(super) is_trailed: bool,
    /// Whether no neighbour stood before it, or behind it.
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

impl Removed {
    /// Where among these neighbours the entry belongs: the number of those before it.
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
                // A name may be there twice, and then both neighbours tell which is meant.
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

    /// Whether the entry goes below this comment: it stood above the entry, or above one of those before it that are `absent`.
    pub(super) fn goes_below(&self, comment: &str, absent: &[&Self]) -> bool {
        let is_before = |other: &&&Self| self.before.contains(&other.name);
        let mut above = absent.iter().filter(is_before).map(|other| &other.above);
        !comment.is_empty() && (comment == self.above || above.any(|above| comment == above))
    }

    /// Whether the entry goes above this comment, which stood above one of those behind it that are `absent`.
    pub(super) fn goes_above(&self, comment: &str, absent: &[&Self]) -> bool {
        let is_behind = |other: &&&Self| self.after.contains(&other.name);
        let mut above = absent.iter().filter(is_behind).map(|other| &other.above);
        !comment.is_empty() && above.any(|above| comment == above)
    }

    /// What to put between these neighbours if nobody has touched what the removal left there.
    pub(super) fn exact(&self, gap: &str, is_first: bool, is_last: bool) -> Option<&str> {
        let Gap { with, without, .. } = &self.gap;
        let is_same =
            gap == without && (is_first, is_last) == (self.gap.is_first, self.gap.is_last);
        is_same.then_some(with)
    }
}

/// The names before and behind the one at `index`, with those that are `absent` in their places.
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
