//! Whether the records of sessions are complete.
//!
//! An era is a random number. The next one begins when records may have been lost: with a new file, a damaged one, or
//! one whose write-ahead log is missing although its last daemon did not close it. The number is in a small file
//! beside the database, with the word `open` or `closed`. If it is lost too, the next era begins as well: then an
//! ended session may be created again, but none is lost.

use std::fs;
use std::path::{Path, PathBuf};

use crate::random;
use crate::state::files::{beside, replace_private};

/// The files before the database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    recorded: Option<EraFile>,
    has_database: bool,
    has_log: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EraFile {
    era: u32,
    is_closed: bool,
}

impl Found {
    pub(super) fn at(database: &Path) -> Self {
        Self {
            recorded: fs::read_to_string(place(database))
                .ok()
                .and_then(|text| EraFile::parse(&text)),
            has_database: database.exists(),
            has_log: beside(database, "-wal").exists(),
        }
    }

    /// The era that continues, if the records are complete. `is_readable` is whether the database could be opened.
    fn continued(self, is_readable: bool) -> Option<u32> {
        let recorded = self.recorded?;
        let is_complete = self.has_database && is_readable && (recorded.is_closed || self.has_log);
        is_complete.then_some(recorded.era)
    }
}

impl EraFile {
    fn parse(text: &str) -> Option<Self> {
        let (era, word) = text.trim().split_once(' ')?;
        let is_closed = match word {
            "open" => false,
            "closed" => true,
            _ => return None,
        };
        Some(Self { era: u32::from_str_radix(era, 16).ok()?, is_closed })
    }

    fn write(self, database: &Path) {
        let word = if self.is_closed { "closed" } else { "open" };
        let (path, text) = (place(database), format!("{:08x} {word}\n", self.era));
        let written = replace_private(&path, &text, false);
        if let Err(error) = written {
            tracing::warn!(%error, "the era of the sessions cannot be recorded");
        }
    }
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
    /// Begins the next era, or continues the last one. Without a usable database, `is_kept` is false and the era ends
    /// with the daemon.
    pub(super) fn begin(database: &Path, found: Found, is_readable: bool, is_kept: bool) -> Self {
        let next = || u32::from_be_bytes(random::bytes());
        let number = found.continued(is_readable).unwrap_or_else(next);
        EraFile { era: number, is_closed: false }.write(database);
        Self { database: database.to_owned(), number, is_kept }
    }

    /// All records are in the database.
    pub(super) fn close(&self) {
        if !self.is_kept {
            return;
        }
        EraFile { era: self.number, is_closed: true }.write(&self.database);
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
        let recorded = |is_closed| Some(EraFile { era: 7, is_closed });
        let found = |recorded, has_database, has_log| Found { recorded, has_database, has_log };
        for (found, is_readable, expected) in [
            (found(recorded(true), true, false), true, Some(7)),
            (found(recorded(true), true, true), true, Some(7)),
            (found(recorded(false), true, true), true, Some(7)),
            (found(recorded(false), true, false), true, None),
            (found(recorded(true), false, false), true, None),
            (found(recorded(true), true, true), false, None),
            (found(None, true, true), true, None),
        ] {
            assert_eq!(found.continued(is_readable), expected, "{found:?} {is_readable}");
        }
    }

    #[test]
    fn an_era_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("sessions.db");
        fs::write(&database, "").unwrap();
        let first = Era::begin(&database, Found::at(&database), true, true);
        let killed = Era::begin(&database, Found::at(&database), true, true);
        assert_ne!(killed.number, first.number, "there is no write-ahead log");
        killed.close();
        let next = Era::begin(&database, Found::at(&database), true, true);
        assert_eq!(next.number, killed.number);
        fs::write(place(&database), "garbage").unwrap();
        assert_eq!(Found::at(&database).recorded, None);
    }
}
