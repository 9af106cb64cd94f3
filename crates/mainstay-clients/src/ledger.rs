//! Records of what Mainstay wrote into clients' files, and the rules that follow from them.
//!
//! An entry is ours if the ledger has a record of it and its owned fields still have the recorded values. Every other
//! entry belongs to someone else and is never overwritten or deleted. The files contain no marker.
//!
//! A record is written before its file, with the intended state, and again after it. A crash in between therefore
//! leaves a record of what was started, and repeating the operation completes it.
//!
//! The ledger is one JSON file with a version. A build refuses newer versions, and drops unknown fields of its own
//! version.

mod ledger_file;
mod rules;

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::edit::{Created, Fields, Removed};
use crate::file::digest;

pub use ledger_file::LedgerError;
pub(crate) use ledger_file::LedgerFile;
pub(crate) use rules::{
    AddMode, Observed, Verdict, decide_add, decide_remove, differing, is_fresh, standing,
};
pub use rules::{Done, Left, Purpose, Standing};

/// An entry that Mainstay wrote, or is about to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The id in the client table.
    pub client: String,
    /// The path that the client uses.
    pub file: PathBuf,
    /// The name of the server and of its entry.
    pub server: String,
    /// The owned fields as written.
    pub fields: Fields,
    /// The fields before the last update. A client may still have them in memory, and write them back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<Fields>,
    /// What was created around the entry.
    pub created: Created,
    /// Whether the file was created with it.
    pub created_file: bool,
    /// The topmost directory that was created for the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_dir: Option<PathBuf>,
    /// When the file was last written.
    pub at: Timestamp,
    pub state: State,
}

/// What is known about an entry from our own operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is being written. The file may not have it yet, or may have its former fields.
    Adding {
        /// The owned fields before, if the entry existed.
        former: Option<Fields>,
    },
    Present,
    /// It was removed temporarily, or is about to be.
    Away {
        /// All its fields, including the user's own.
        entry: Fields,
        /// Restores the exact bytes of a file that was not changed since.
        cut: TextDiff,
        /// Its text and position, for a file that others have edited since. Records of earlier versions lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        removed: Option<Box<Removed>>,
    },
    /// It was removed permanently, or is about to be. The record is kept for a while, because a client may write the
    /// entry back from memory.
    Leaving,
    /// A user removed it, so it is not added again.
    Withdrawn,
}

/// The difference between two texts. It restores the exact bytes of the first, unless the second was changed since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextDiff {
    /// The offset of the first difference.
    at: usize,
    before: String,
    after: String,
    /// The digest of the whole second text.
    digest: String,
}

impl TextDiff {
    pub(crate) fn between(before: &str, after: &str) -> Self {
        let same = |(a, b): &(u8, u8)| a == b;
        let mut head = before.bytes().zip(after.bytes()).take_while(same).count();
        // Do not split a character.
        while !before.is_char_boundary(head) {
            head -= 1;
        }
        let rest = before.len().min(after.len()) - head;
        let backwards = before.bytes().rev().zip(after.bytes().rev());
        let mut tail = backwards.take(rest).take_while(same).count();
        while !before.is_char_boundary(before.len() - tail) {
            tail -= 1;
        }
        Self {
            at: head,
            before: before[head..before.len() - tail].to_owned(),
            after: after[head..after.len() - tail].to_owned(),
            digest: digest(after.as_bytes()),
        }
    }

    /// The first text, if this is the second.
    pub(crate) fn undo(&self, text: &str) -> Option<String> {
        if digest(text.as_bytes()) != self.digest {
            return None;
        }
        let head = text.get(..self.at)?;
        let tail = text.get(self.at..)?.strip_prefix(&self.after)?;
        Some([head, &self.before, tail].concat())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cut_is_undone_to_the_last_byte(head in "[ab€ü]{0,6}", before in "[ab€ü]{0,6}", after in "[ab€ü]{0,6}", tail in "[ab€ü]{0,6}") {
            let (before, after) = (format!("{head}{before}{tail}"), format!("{head}{after}{tail}"));
            let cut = TextDiff::between(&before, &after);
            prop_assert_eq!(cut.undo(&after), Some(before));
        }
    }

    #[test]
    fn a_changed_text_is_not_undone() {
        let cut = TextDiff::between("{\"a\": 1, \"b\": 2}", "{\"b\": 2}");
        assert_eq!(cut.undo("{\"b\": 3}"), None);
        assert_eq!(cut.undo("{\"b\": 2}\n"), None);
    }
}
