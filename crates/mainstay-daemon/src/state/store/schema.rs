//! Schemas have numbers, and files go forward only.
//!
//! A file of an older schema is brought forward when it is opened: first it is kept as it is
//! ([`backup`]), then all steps that it lacks are made in one transaction. So whatever fails or dies
//! meanwhile, the file has its old schema and content, or the newest schema. A newer one is refused and not
//! touched.
//!
//! What old and new programs do with each other's files: a new program takes over every schema there ever
//! was, and an old one refuses a newer file and says what to do.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::undo::Undo;
use super::{StoreError, backup};
use crate::startup::dirs::make_private_database;

/// Marks a file as ours: "main".
pub(super) const APPLICATION: i64 = 0x6d61_696e;

/// The schema of one kind of file, as the steps that lead to it from nothing. The first makes schema 1 of
/// an empty file, each other one the next schema of the one before it.
pub(crate) struct Schema {
    /// The steps. Released ones never change.
    pub(crate) steps: &'static [Step],
    /// What a commit waits for: `full` is on disk when it is acknowledged, `normal` may lose the last ones
    /// to a power cut.
    pub(crate) synchronous: &'static str,
}

/// One step from a schema to the next.
pub(crate) struct Step {
    /// What it brings, for the log.
    pub(crate) what: &'static str,
    /// Makes it.
    pub(crate) make: fn(&Transaction<'_>) -> rusqlite::Result<()>,
}

impl Schema {
    /// The newest schema, which this program writes.
    pub(crate) fn newest(&self) -> i64 {
        number(self.steps.len())
    }

    /// Opens a file, or makes it, and brings it to the newest schema.
    pub(crate) fn open(&self, path: &Path) -> Result<Connection, StoreError> {
        let failed = |error| StoreError::from_sqlite(path, error);
        make_private_database(path);
        let mut connection = Connection::open(path).map_err(failed)?;
        let found = self.check(path, &connection)?;
        if found > 0 && found < self.newest() {
            backup::keep(&connection, path, found)?;
        }
        self.set_up(&connection).map_err(failed)?;
        self.bring_forward(&mut connection, path).map_err(failed)?;
        Ok(connection)
    }

    /// An empty database of the newest schema, in memory.
    pub(crate) fn in_memory(&self) -> Result<Connection, StoreError> {
        let path = Path::new(":memory:");
        let failed = |error| StoreError::from_sqlite(path, error);
        let mut connection = Connection::open_in_memory().map_err(failed)?;
        self.bring_forward(&mut connection, path).map_err(failed)?;
        Ok(connection)
    }

    /// Undoes what a newer program did to a file before it failed: the backup that it made of the newest
    /// schema that this program knows is put back, and the newer file is kept beside it. Does nothing if
    /// this program can use the file, or if there is no such backup.
    pub(crate) fn go_back(&self, path: &Path) -> Result<(), StoreError> {
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

    /// Copies a file, if there is one, and changes nothing of it. One that this program cannot take over is
    /// refused.
    pub(crate) fn copy(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        if !from.exists() {
            return Ok(());
        }
        let connection = open_to_read(from)?;
        self.check(from, &connection)?;
        backup::write_out(&connection, to)
    }

    /// The schema of a file, if it is one that this program can take over.
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

    fn bring_forward(&self, connection: &mut Connection, path: &Path) -> rusqlite::Result<()> {
        if pragma(connection, "user_version")? >= self.newest() {
            return Ok(());
        }
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Somebody else may have done so meanwhile.
        let found = pragma(&tx, "user_version")?;
        for (step, to) in self.steps.iter().zip(1..).filter(|(_, to)| *to > found) {
            (step.make)(&tx)?;
            tracing::debug!(path = %path.display(), schema = to, what = step.what, "schema changed");
        }
        tx.pragma_update(None, "application_id", APPLICATION)?;
        tx.pragma_update(None, "user_version", self.newest().max(found))?;
        tx.commit()?;
        if found > 0 {
            let to = self.newest();
            tracing::info!(path = %path.display(), from = found, to, "database brought forward");
        }
        Ok(())
    }
}

/// Opens a file that is there, and changes nothing of it.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|error| StoreError::from_sqlite(path, error))
}

pub(super) fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn number(steps: usize) -> i64 {
    i64::try_from(steps).expect("nobody writes so many steps")
}
