//! Whether the records of sessions are complete.
//!
//! An era is a random number. The next one begins when records may have been lost: with a new file, a damaged one, or
//! one whose write-ahead log is missing although its last daemon did not close it. The number is in a small file
//! beside the database, with the word `open` or `closed`. If it is lost too, the next era begins as well: then an
//! ended session may be created again, but none is lost.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::random;
use crate::state::quarantine::beside;

/// What is on disk before the database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    noted: Option<Noted>,
    has_database: bool,
    has_log: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Noted {
    era: u32,
    is_closed: bool,
}

impl Found {
    /// Looks at the files of a database.
    pub(super) fn at(database: &Path) -> Self {
        Self {
            noted: fs::read_to_string(place(database)).ok().and_then(|text| Noted::parse(&text)),
            has_database: database.exists(),
            has_log: beside(database, "-wal").exists(),
        }
    }

    /// The era that goes on, if the records are complete. `is_readable` is whether the database could be opened.
    fn goes_on(self, is_readable: bool) -> Option<u32> {
        let noted = self.noted?;
        let is_complete = self.has_database && is_readable && (noted.is_closed || self.has_log);
        is_complete.then_some(noted.era)
    }
}

impl Noted {
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
        let new = beside(&path, ".new");
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options
            .open(&new)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&new, &path));
        if let Err(error) = written {
            tracing::warn!(%error, "the era of the sessions cannot be noted");
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
    /// Begins the next era, or goes on with the last one. Without a usable database, `is_kept` is false and the era ends
    /// with the daemon.
    pub(super) fn begin(database: &Path, found: Found, is_readable: bool, is_kept: bool) -> Self {
        let next = || u32::from_be_bytes(random::bytes());
        let number = found.goes_on(is_readable).unwrap_or_else(next);
        Noted { era: number, is_closed: false }.write(database);
        Self { database: database.to_owned(), number, is_kept }
    }

    /// All records are in the database.
    pub(super) fn close(&self) {
        if !self.is_kept {
            return;
        }
        Noted { era: self.number, is_closed: true }.write(&self.database);
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
        let noted = |is_closed| Some(Noted { era: 7, is_closed });
        let found = |noted, has_database, has_log| Found { noted, has_database, has_log };
        for (found, is_readable, expected) in [
            (found(noted(true), true, false), true, Some(7)),
            (found(noted(true), true, true), true, Some(7)),
            (found(noted(false), true, true), true, Some(7)),
            (found(noted(false), true, false), true, None),
            (found(noted(true), false, false), true, None),
            (found(noted(true), true, true), false, None),
            (found(None, true, true), true, None),
        ] {
            assert_eq!(found.goes_on(is_readable), expected, "{found:?} {is_readable}");
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
        assert_eq!(Found::at(&database).noted, None);
    }
}
