//! Restores the backup of a file that a newer program has migrated.
//!
//! At every moment there is a complete database under the file's name: the newer one before the last step, the backup
//! after it. An unfinished restoration is repeated from the first step.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::StoreError;
use super::backup::{place, sync_names, write_out};
use super::schema::open_to_read;
use crate::state::files::{beside, remove};

pub(super) struct Undo {
    path: PathBuf,
    backup: PathBuf,
    /// A copy of the backup, which stays.
    copy: PathBuf,
    /// The newer file.
    undone: PathBuf,
}

type Step = fn(&Undo) -> Result<(), StoreError>;

impl Undo {
    /// All steps, in their order.
    pub(super) const STEPS: [Step; 4] =
        [Self::copy_backup, Self::close_newer, Self::keep_newer, Self::exchange];

    /// From the schema that was found to an older one, of which there is a backup.
    pub(super) fn new(path: &Path, schema: i64, found: i64) -> Self {
        Self {
            path: path.to_owned(),
            backup: place(path, schema),
            copy: beside(path, ".old"),
            undone: beside(path, &format!(".schema-{found}.undone")),
        }
    }

    /// Puts the backup in the place of the file.
    pub(super) fn make(&self) -> Result<(), StoreError> {
        Self::STEPS.iter().try_for_each(|step| step(self))?;
        let (path, backup) = (self.path.display(), self.backup.display());
        tracing::warn!(%path, %backup, "database restored from its backup");
        Ok(())
    }

    fn copy_backup(&self) -> Result<(), StoreError> {
        write_out(&open_to_read(&self.backup)?, &self.copy)
    }

    /// Merges the write-ahead log into the newer file and removes it: it would become
    /// a part of the restored file.
    fn close_newer(&self) -> Result<(), StoreError> {
        let close = || -> rusqlite::Result<String> {
            let newer = Connection::open(&self.path)?;
            newer.pragma_update_and_check(None, "journal_mode", "delete", |row| row.get(0))
        };
        let mode = close().map_err(|error| StoreError::from_sqlite(&self.path, error))?;
        if mode == "delete" { Ok(()) } else { Err(self.failed(io::ErrorKind::ResourceBusy.into())) }
    }

    /// Links the newer file to a second name, and replaces one that was undone before.
    fn keep_newer(&self) -> Result<(), StoreError> {
        remove(&self.undone)
            .and_then(|()| fs::hard_link(&self.path, &self.undone))
            .and_then(|()| sync_names(&self.path))
            .map_err(|error| self.failed(error))
    }

    fn exchange(&self) -> Result<(), StoreError> {
        fs::rename(&self.copy, &self.path)
            .and_then(|()| sync_names(&self.path))
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::backup(&self.undone, source)
    }
}
