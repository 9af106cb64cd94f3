//! Whose an installed unit is.
//!
//! The last line of a unit that we write is a comment with two digests: of all the text before it, and
//! of the instance it is for. As long as the first one fits, no person has changed the unit, whichever
//! version wrote it.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// What the comment begins with.
const MARK: &str = "mainstay-seal:";

/// How an installed unit compares with the one that this version would write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Standing {
    /// There is none.
    Absent,
    /// They are the same.
    Current,
    /// It is ours and differs: another version, program or environment.
    Outdated,
    /// A person wrote or changed it.
    Edited,
    /// It is ours, for another instance.
    OtherInstance,
}

impl Standing {
    /// Compares the text that was found, if any, with ours.
    pub(crate) fn of(found: Option<&str>, ours: &str) -> Self {
        let Some(found) = found else { return Self::Absent };
        if found == ours {
            return Self::Current;
        }
        match (Seal::read(found), Seal::read(ours)) {
            (Some(theirs), Some(ours)) if theirs.instance != ours.instance => Self::OtherInstance,
            (Some(theirs), _) if theirs.fits => Self::Outdated,
            (Some(_) | None, _) => Self::Edited,
        }
    }
}

/// The text with its seal.
pub(super) fn sealed(text: &str, instance: &str) -> String {
    format!("{text}# {MARK} {} {}\n", digest(text), digest(instance))
}

/// What a seal says.
struct Seal<'a> {
    /// Whether the text is the one that was sealed.
    fits: bool,
    instance: &'a str,
}

impl<'a> Seal<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (before, seal) = text.rsplit_once(MARK)?;
        let body = before.rfind('\n').map_or("", |end| &before[..=end]);
        let mut words = seal.split_whitespace();
        let fits = words.next()? == digest(body) && seal.trim_end().lines().count() == 1;
        Some(Self { fits, instance: words.next()? })
    }
}

/// Enough of a digest to notice a change; nobody gains from forging it.
fn digest(text: &str) -> String {
    let bytes = Sha256::digest(text);
    let start = bytes.first_chunk().expect("a digest has 32 bytes");
    format!("{:032x}", u128::from_be_bytes(*start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_persons_change_is_told_from_our_own() {
        let ours = sealed("[Service]\nA=2\n", "/state");
        let older = sealed("[Service]\nA=1\n", "/state");
        let other = sealed("[Service]\nA=2\n", "/elsewhere");
        let check = |found: Option<&str>, expected: Standing| {
            assert_eq!(Standing::of(found, &ours), expected, "{found:?}");
        };
        check(None, Standing::Absent);
        check(Some(&ours), Standing::Current);
        check(Some(&older), Standing::Outdated);
        check(Some(&other), Standing::OtherInstance);
        check(Some(&older.replace("A=1", "A=3")), Standing::Edited);
        check(Some(&format!("{ours}B=1\n")), Standing::Edited);
        check(Some("[Service]\nA=2\n"), Standing::Edited);
        check(Some(""), Standing::Edited);
        check(Some("# mainstay-seal:"), Standing::Edited);
    }
}
