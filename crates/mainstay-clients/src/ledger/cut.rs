//! A piece cut out of a text, and how to put it back.

use serde::{Deserialize, Serialize};

use crate::file::digest;

/// What was cut out of a text. If nobody touches the text meanwhile, it can be made what it was to the
/// last byte: the place of the entry, its layout, and the comments in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Where the texts begin to differ, in bytes.
    at: usize,
    /// What stood there before.
    before: String,
    /// What stands there now.
    after: String,
    /// The digest of the text after the cut.
    digest: String,
}

impl Cut {
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
            let cut = Cut::between(&before, &after);
            prop_assert_eq!(cut.undo(&after), Some(before));
        }
    }

    #[test]
    fn a_text_that_somebody_touched_is_not_undone() {
        let cut = Cut::between("{\"a\": 1, \"b\": 2}", "{\"b\": 2}");
        assert_eq!(cut.undo("{\"b\": 3}"), None);
        assert_eq!(cut.undo("{\"b\": 2}\n"), None);
    }
}
