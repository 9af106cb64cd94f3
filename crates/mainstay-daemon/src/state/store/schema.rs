//! Opens databases, and migrates them to the newest schema.
//!
//! A file of an older schema is migrated when it is opened: first it is copied ([`backup`]), then all missing steps are
//! executed in one transaction. If that fails or the process dies, the file has either its old schema and content or the
//! newest schema.
//!
//! Compatibility: every program migrates all earlier schemas, and refuses a newer one without changing it.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::undo::Undo;
use super::{StoreError, backup};
use crate::startup::dirs::make_private_database;
use crate::state::files::quarantine;

/// The id of Mainstay in the header of a database: "main".
pub(super) const APPLICATION: i64 = 0x6d61_696e;

/// The schema of one kind of database.
pub(crate) struct Schema {
    /// The name of the file in the state directory.
    pub(crate) file: &'static str,
    /// The kind of database, for messages.
    pub(crate) what: &'static str,
    /// `full`: a commit is on disk when it is acknowledged. `normal`: a power cut may lose the last commits.
    pub(crate) synchronous: &'static str,
    /// The SQL of each step. The first creates schema 1 in an empty file, each other one the next schema.
    pub(crate) steps: &'static [&'static str],
}

impl Schema {
    pub(crate) fn path_in(&self, state_dir: &Path) -> PathBuf {
        state_dir.join(self.file)
    }

    /// The number of the newest schema.
    pub(crate) fn newest(&self) -> i64 {
        i64::try_from(self.steps.len()).expect("there are few steps")
    }

    /// Opens or creates a file, and migrates it to the newest schema.
    pub(crate) fn open(&self, path: &Path) -> Result<Connection, StoreError> {
        let failed = |error| StoreError::from_sqlite(path, error);
        make_private_database(path);
        let mut connection = Connection::open(path).map_err(failed)?;
        let found = self.check(path, &connection)?;
        if found > 0 && found < self.newest() {
            backup::keep(&connection, path, found)?;
        }
        self.set_up(&connection).map_err(failed)?;
        self.migrate(&mut connection, path).map_err(failed)?;
        Ok(connection)
    }

    /// Opens a file with `open`. A damaged file is moved aside, and a new one is opened. Also returns whether the file
    /// was damaged.
    pub(crate) fn or_quarantine<T>(
        &self,
        path: &Path,
        open: impl Fn() -> Result<T, StoreError>,
    ) -> Result<(T, bool), StoreError> {
        match open() {
            Err(StoreError::Damaged { .. }) => {
                quarantine(path, self.what);
                Ok((open()?, true))
            }
            opened => Ok((opened?, false)),
        }
    }

    /// An empty database of the newest schema, in memory.
    pub(crate) fn in_memory(&self) -> Result<Connection, StoreError> {
        let path = Path::new(":memory:");
        let failed = |error| StoreError::from_sqlite(path, error);
        let mut connection = Connection::open_in_memory().map_err(failed)?;
        self.migrate(&mut connection, path).map_err(failed)?;
        Ok(connection)
    }

    /// Undoes the migration of a newer program that failed afterwards: its backup of the newest
    /// schema that this program knows replaces the file, which is kept beside it. Does nothing if this program can use
    /// the file, or if there is no such backup.
    pub(crate) fn undo_migration(&self, path: &Path) -> Result<(), StoreError> {
        if !path.exists() {
            return Ok(());
        }
        let failed = |error| StoreError::from_sqlite(path, error);
        let found = pragma(&open_to_read(path)?, "user_version").map_err(failed)?;
        if found <= self.newest() || !backup::place(path, self.newest()).exists() {
            return Ok(());
        }
        Undo::new(path, self.newest(), found).make()
    }

    /// Copies a file, if it exists, without changing it. Fails if this program cannot migrate it.
    pub(crate) fn copy(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        if !from.exists() {
            return Ok(());
        }
        let connection = open_to_read(from)?;
        self.check(from, &connection)?;
        backup::write_out(&connection, to)
    }

    /// The schema of a file, if this program can migrate it.
    pub(super) fn check(&self, path: &Path, connection: &Connection) -> Result<i64, StoreError> {
        let read =
            |name| pragma(connection, name).map_err(|error| StoreError::from_sqlite(path, error));
        let owner = read("application_id")?;
        if owner != 0 && owner != APPLICATION {
            let what = "it belongs to another program".to_owned();
            return Err(StoreError::Damaged { path: path.to_owned(), what });
        }
        let (found, known) = (read("user_version")?, self.newest());
        if found > known {
            let backup = backup::newest(path, known);
            return Err(StoreError::Newer { path: path.to_owned(), found, known, backup });
        }
        Ok(found)
    }

    fn set_up(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", self.synchronous)?;
        // Overwrite deleted data, which may be secret.
        connection.pragma_update(None, "secure_delete", "on")?;
        connection.pragma_update(None, "cache_size", -512)
    }

    fn migrate(&self, connection: &mut Connection, path: &Path) -> rusqlite::Result<()> {
        if pragma(connection, "user_version")? >= self.newest() {
            return Ok(());
        }
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have migrated it meanwhile.
        let found = pragma(&tx, "user_version")?;
        for step in self.steps.iter().skip(usize::try_from(found).unwrap_or(0)) {
            tx.execute_batch(step)?;
        }
        tx.pragma_update(None, "application_id", APPLICATION)?;
        tx.pragma_update(None, "user_version", self.newest().max(found))?;
        tx.commit()?;
        if found > 0 {
            let to = self.newest();
            tracing::info!(path = %path.display(), from = found, to, "database migrated");
        }
        Ok(())
    }
}

/// Opens an existing file without changing it.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|error| StoreError::from_sqlite(path, error))
}

pub(super) fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}
