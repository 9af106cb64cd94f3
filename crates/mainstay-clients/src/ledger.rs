//! What we wrote into clients' files, and what follows from it.
//!
//! An entry belongs to us if it is in the ledger and its owned fields still say what we wrote. Everything
//! else belongs to somebody else and is never overwritten or deleted. No mark is left in the files.
//!
//! A record is written before its file is, with what is intended, and again after it. So a crash in
//! between leaves a record of what was begun, never a file that we know nothing of, and doing it again completes it.
//!
//! The ledger is one JSON file with a version. A build that finds a newer version refuses to go on;
//! unknown fields of its own version it drops.

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

/// One entry that we wrote, or are about to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The client's id.
    pub client: String,
    /// The client's file, by the name the client uses.
    pub file: PathBuf,
    /// The server, which is the name of the entry.
    pub server: String,
    /// Our fields as we wrote them.
    pub fields: Fields,
    /// What they said before our last update. A client may have that in memory, and write it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<Fields>,
    /// What had to be created around the entry.
    pub created: Created,
    /// Whether there was no file before.
    pub created_file: bool,
    /// The topmost directory that had to be made for the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_dir: Option<PathBuf>,
    /// When we last wrote to the file what this tells.
    pub at: Timestamp,
    /// How things stand.
    pub state: State,
}

/// How things stand with an entry, as far as we have a hand in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is being written. The file may not have it yet, or may have what it said before.
    Adding {
        /// What our fields said before, if it was there before.
        former: Option<Fields>,
    },
    /// It is in the file.
    Present,
    /// We took it out, to put it back. The file may still have it.
    Away {
        /// Everything it said, the user's own fields too.
        entry: Fields,
        /// How to give a file that nobody has touched the very bytes.
        cut: TextDiff,
        /// Its own text and its place, for a file that others have edited. Records of earlier versions lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        removed: Option<Box<Removed>>,
    },
    /// It is removed for good, or about to be. The file may still have it, and a client may write it
    /// back from memory, so this is kept until nothing is to be expected any more.
    Leaving,
    /// Somebody else took it out, so it stays out.
    Withdrawn,
}

/// What was cut out of a text. If nobody touches the text meanwhile, it can be made what it was to the
/// last byte: the place of the entry, its layout, and the comments in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextDiff {
    /// Where the texts begin to differ, in bytes.
    at: usize,
    /// What stood there before.
    before: String,
    /// What stands there now.
    after: String,
    /// The digest of the text after the cut.
    digest: String,
}

impl TextDiff {
    /// What was cut out of `before` to make it `after`.
    pub(crate) fn between(before: &str, after: &str) -> Self {
        let same = |(a, b): &(u8, u8)| a == b;
        let mut head = before.bytes().zip(after.bytes()).take_while(same).count();
        // What both share begins and ends with a whole character in both or in neither.
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

    /// The text as it was before the cut, if nobody touched it since.
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
    fn a_text_that_somebody_touched_is_not_undone() {
        let cut = TextDiff::between("{\"a\": 1, \"b\": 2}", "{\"b\": 2}");
        assert_eq!(cut.undo("{\"b\": 3}"), None);
        assert_eq!(cut.undo("{\"b\": 2}\n"), None);
    }
}
