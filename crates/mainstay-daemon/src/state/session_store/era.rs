//! Whether the records of sessions are complete.
//!
//! An era is a random number. The next one begins when records may have been lost: with a new file, a damaged one, or
//! one whose write-ahead log is missing although its last daemon did not close it. A small file beside the database has
//! the number and the word `open` or `closed`. If that file is lost, the next era begins, too: then an ended session may
//! be created again, but none is lost.

use std::fs;
use std::path::{Path, PathBuf};

use crate::random;
use crate::state::files::{beside, replace_private};

/// The recorded era, if it continues, provided that the database can be read. Must be called before the database is
/// opened.
pub(super) fn recorded(database: &Path) -> Option<u32> {
    let text = fs::read_to_string(place(database)).ok()?;
    let (era, state) = text.trim().split_once(' ')?;
    let is_complete = match state {
        "closed" => true,
        "open" => beside(database, "-wal").exists(),
        _ => false,
    };
    let era = u32::from_str_radix(era, 16).ok()?;
    (is_complete && database.exists()).then_some(era)
}

/// The era of an open database.
#[derive(Debug)]
pub(super) struct Era {
    database: PathBuf,
    pub(super) number: u32,
    /// Whether records are written to the database at all.
    is_kept: bool,
}

impl Era {
    /// Continues the last era, or begins the next one. Without a usable database, `is_kept` is false and the era ends
    /// with the daemon.
    pub(super) fn begin(database: &Path, last: Option<u32>, is_kept: bool) -> Self {
        let number = last.unwrap_or_else(|| u32::from_be_bytes(random::bytes()));
        let era = Self { database: database.to_owned(), number, is_kept };
        era.record("open");
        era
    }

    /// All records are in the database.
    pub(super) fn close(&self) {
        if self.is_kept {
            self.record("closed");
        }
    }

    fn record(&self, state: &str) {
        let text = format!("{:08x} {state}\n", self.number);
        if let Err(error) = replace_private(&place(&self.database), &text, false) {
            tracing::warn!(%error, "the era of the sessions cannot be recorded");
        }
    }
}

fn place(database: &Path) -> PathBuf {
    database.with_extension("era")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_era_ends_when_records_may_be_missing() {
        for (file, has_database, has_log, expected) in [
            ("00000007 closed\n", true, false, Some(7)),
            ("00000007 closed\n", true, true, Some(7)),
            ("00000007 open\n", true, true, Some(7)),
            ("00000007 open\n", true, false, None),
            ("00000007 closed\n", false, false, None),
            ("", true, true, None),
            ("garbage", true, true, None),
            ("7 ajar", true, true, None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let database = dir.path().join("sessions.db");
            fs::write(place(&database), file).unwrap();
            for (exists, path) in [(has_database, &database), (has_log, &beside(&database, "-wal"))]
            {
                if exists {
                    fs::write(path, "").unwrap();
                }
            }
            assert_eq!(recorded(&database), expected, "{file} {has_database} {has_log}");
        }
    }

    #[test]
    fn an_era_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("sessions.db");
        fs::write(&database, "").unwrap();
        let first = Era::begin(&database, recorded(&database), true);
        let killed = Era::begin(&database, recorded(&database), true);
        assert_ne!(killed.number, first.number, "there is no write-ahead log");
        killed.close();
        let next = Era::begin(&database, recorded(&database), true);
        assert_eq!(next.number, killed.number);
    }
}
