//! The store of intent: which servers there should be, and whether each should run.
//!
//! Nothing observed is kept here. Every change is one transaction, on disk when it is acknowledged
//! (WAL, `synchronous=FULL`). The schema has a number; a newer one is refused, an older one is migrated
//! forward.

mod clients;

pub(crate) use clients::StoredClient;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use mainstay_core::{ServerName, ServerSpec, Wanted};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, params};
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::ground::make_private_database;
use crate::random;

/// The schema that this program writes.
const SCHEMA: i64 = 2;

/// The event log beside it.
pub(crate) const EVENTS: &str = "events.db";

/// Marks the file as ours: "main".
const APPLICATION: i64 = 0x6d61_696e;

/// The tables of the first schema.
const FIRST: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE servers (
        name TEXT PRIMARY KEY,
        spec TEXT NOT NULL,
        wanted TEXT NOT NULL,
        created_at TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;";

/// A server as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) spec: ServerSpec,
    pub(crate) wanted: Wanted,
    pub(crate) created_at: Timestamp,
}

/// Why the store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A later version of this program wrote it.
    #[error("the database `{}` has schema {found}, this version of Mainstay knows {SCHEMA}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
    },
    /// It is no database, or not ours, or its content makes no sense.
    #[error("the database `{}` is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// There is no room left for it.
    #[error("the disk is full: `{}` could not be written", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Anything else.
    #[error("the database `{}` cannot be used: {source}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

impl StoreError {
    pub(crate) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        // A value where none of its kind can be was not written by us.
        if let rusqlite::Error::InvalidColumnType(..) = source {
            return Self::Damaged { path, what: source.to_string() };
        }
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged { path, what: source.to_string() }
            }
            _ => Self::Sqlite { path, source },
        }
    }

    /// What the user can do about it.
    pub(crate) fn help(&self) -> Option<String> {
        match self {
            Self::Newer { .. } => {
                Some("install the newer version again, or point MAINSTAY_HOME elsewhere".to_owned())
            }
            Self::Damaged { path, .. } => Some(format!(
                "move `{}` away and describe the servers again (`mainstay import` reads an export)",
                path.display()
            )),
            Self::Full { .. } => Some("free some space; nothing was changed".to_owned()),
            Self::Sqlite { .. } => None,
        }
    }
}

/// A handle on the store; clones share one connection.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    path: Arc<Path>,
    connection: Arc<Mutex<Connection>>,
}

impl Store {
    /// Opens the store, or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let wrap = |error| StoreError::from_sqlite(path, error);
        refuse_emptied(path)?;
        make_private_database(path);
        let mut connection = Connection::open(path).map_err(wrap)?;
        let owner = pragma(&connection, "application_id").map_err(wrap)?;
        if owner != 0 && owner != APPLICATION {
            let what = "it belongs to another program".to_owned();
            return Err(StoreError::Damaged { path: path.to_owned(), what });
        }
        let found = pragma(&connection, "user_version").map_err(wrap)?;
        if found > SCHEMA {
            return Err(StoreError::Newer { path: path.to_owned(), found });
        }
        set_up(&mut connection, found).map_err(wrap)?;
        Ok(Self { path: path.into(), connection: Arc::new(Mutex::new(connection)) })
    }

    /// Whether the store could be opened and read, without making or changing one.
    pub(crate) fn inspect(path: &Path) -> Result<(), StoreError> {
        if !path.exists() {
            return Ok(());
        }
        refuse_emptied(path)?;
        let wrap = |error| StoreError::from_sqlite(path, error);
        let connection =
            Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(wrap)?;
        let found = pragma(&connection, "user_version").map_err(wrap)?;
        if found > SCHEMA {
            return Err(StoreError::Newer { path: path.to_owned(), found });
        }
        let verdict: String =
            connection.pragma_query_value(None, "quick_check", |row| row.get(0)).map_err(wrap)?;
        if verdict != "ok" {
            return Err(StoreError::Damaged { path: path.to_owned(), what: verdict });
        }
        let connection = Arc::new(Mutex::new(connection));
        Self { path: path.into(), connection }.load().map(drop)
    }

    /// The random name of this instance, made once.
    pub(crate) fn instance(&self) -> Result<String, StoreError> {
        self.blocking(|tx| {
            let known: Option<String> = tx
                .query_row("SELECT value FROM meta WHERE key = 'instance'", [], |row| row.get(0))
                .optional()?;
            if let Some(instance) = known {
                return Ok(instance);
            }
            let instance = random::hex(8);
            tx.execute("INSERT INTO meta (key, value) VALUES ('instance', ?1)", [&instance])?;
            Ok(instance)
        })
    }

    /// The number of this daemon: one more than the last one's.
    pub(crate) fn next_daemon(&self) -> Result<u64, StoreError> {
        self.blocking(|tx| {
            tx.execute(
                "INSERT INTO meta (key, value) VALUES ('daemon', 1)
                 ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1",
                [],
            )?;
            tx.query_row(
                "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'daemon'",
                [],
                |row| row.get(0),
            )
        })
    }

    /// All servers, by name.
    pub(crate) fn load(&self) -> Result<Vec<Stored>, StoreError> {
        let rows: Vec<(String, String, String, String)> = self.blocking(|tx| {
            let mut select =
                tx.prepare("SELECT name, spec, wanted, created_at FROM servers ORDER BY name")?;
            let rows = select
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
            rows.collect()
        })?;
        rows.into_iter()
            .map(|(name, spec, wanted, created_at)| {
                let damaged = |what: String| StoreError::Damaged {
                    path: self.path.to_path_buf(),
                    what: format!("server `{name}`: {what}"),
                };
                Ok(Stored {
                    spec: serde_json::from_str(&spec).map_err(|e| damaged(e.to_string()))?,
                    wanted: parse_wanted(&wanted)
                        .ok_or_else(|| damaged(format!("`{wanted}` is no intent")))?,
                    created_at: created_at
                        .parse()
                        .map_err(|e: jiff::Error| damaged(e.to_string()))?,
                })
            })
            .collect()
    }

    /// Stores servers, in place of those of the same names: all of them or none.
    pub(crate) async fn put(&self, servers: Vec<Stored>) -> Result<(), StoreError> {
        self.change(move |tx| {
            let mut put = tx.prepare(
                "INSERT OR REPLACE INTO servers (name, spec, wanted, created_at)
                 VALUES (?1, ?2, ?3, ?4)",
            )?;
            for server in servers {
                let spec = json(&server.spec)?;
                put.execute(params![
                    server.spec.name.as_str(),
                    spec,
                    wanted_text(server.wanted),
                    server.created_at.to_string(),
                ])?;
            }
            Ok(())
        })
        .await
    }

    /// Describes servers anew that are still there: all of them or none. Intent stays.
    pub(crate) async fn describe(&self, specs: Vec<ServerSpec>) -> Result<(), StoreError> {
        self.change(move |tx| {
            let mut update = tx.prepare("UPDATE servers SET spec = ?2 WHERE name = ?1")?;
            for spec in specs {
                update.execute(params![spec.name.as_str(), json(&spec)?])?;
            }
            Ok(())
        })
        .await
    }

    /// Changes the intent of servers: of all of them or of none.
    pub(crate) async fn want(
        &self,
        names: Vec<ServerName>,
        wanted: Wanted,
    ) -> Result<(), StoreError> {
        self.change(move |tx| {
            let mut update = tx.prepare("UPDATE servers SET wanted = ?2 WHERE name = ?1")?;
            for name in names {
                update.execute(params![name.as_str(), wanted_text(wanted)])?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets a server.
    pub(crate) async fn delete(&self, name: ServerName) -> Result<(), StoreError> {
        self.change(move |tx| {
            tx.execute("DELETE FROM servers WHERE name = ?1", [name.as_str()])?;
            Ok(())
        })
        .await
    }

    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        spawn_blocking(move || store.blocking(work)).await.expect("the store's code does not panic")
    }

    fn blocking<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut connection = self.connection.lock().expect("the store's code does not panic");
        let run = || {
            let tx = connection.transaction()?;
            let done = work(&tx)?;
            tx.commit()?;
            Ok(done)
        };
        run().map_err(|error| StoreError::from_sqlite(&self.path, error))
    }
}

/// An empty file passes for a new database. Where there is an event log already, it is one that was
/// emptied, and to go on would be to forget every server.
fn refuse_emptied(path: &Path) -> Result<(), StoreError> {
    let empty = fs::metadata(path).is_ok_and(|found| found.len() == 0);
    if empty && path.with_file_name(EVENTS).exists() {
        let what = "it is empty, although there has been a daemon here".to_owned();
        return Err(StoreError::Damaged { path: path.to_owned(), what });
    }
    Ok(())
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn set_up(connection: &mut Connection, found: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -512)?;
    if found < SCHEMA {
        let tx = connection.transaction()?;
        if found < 1 {
            tx.execute_batch(FIRST)?;
            tx.pragma_update(None, "application_id", APPLICATION)?;
        }
        tx.execute_batch(clients::TABLE)?;
        tx.pragma_update(None, "user_version", SCHEMA)?;
        tx.commit()?;
    }
    Ok(())
}

/// A value as it is stored.
fn json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn wanted_text(wanted: Wanted) -> &'static str {
    match wanted {
        Wanted::On => "on",
        Wanted::Off => "off",
        Wanted::Gone => "gone",
    }
}

fn parse_wanted(text: &str) -> Option<Wanted> {
    [Wanted::On, Wanted::Off, Wanted::Gone].into_iter().find(|w| wanted_text(*w) == text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mainstay_testkit::samples::spec;

    use super::*;

    fn stored(name: &str) -> Stored {
        Stored { spec: spec(name), wanted: Wanted::On, created_at: Timestamp::UNIX_EPOCH }
    }

    #[tokio::test]
    async fn intent_survives_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        let instance = store.instance().unwrap();
        assert_eq!(store.next_daemon().unwrap(), 1);
        store.put(vec![stored("a"), stored("b"), stored("c")]).await.unwrap();
        store.want(vec!["a".parse().unwrap()], Wanted::Off).await.unwrap();
        store.delete("b".parse().unwrap()).await.unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.instance().unwrap(), instance);
        assert_eq!(store.next_daemon().unwrap(), 2);
        let off = Stored { wanted: Wanted::Off, ..stored("a") };
        assert_eq!(store.load().unwrap(), [off, stored("c")]);
    }

    #[test]
    fn a_newer_schema_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        drop(Store::open(&path).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 9).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 9, .. }), "{error}");
        assert!(error.help().unwrap().contains("newer version"));
    }

    #[test]
    fn garbage_is_called_damaged_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        fs::write(&path, "this is no database, but long enough to be read as one".repeat(50))
            .unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(fs::read_to_string(&path).unwrap().starts_with("this is no database"));
    }

    #[test]
    fn an_emptied_database_is_not_taken_for_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        fs::write(&path, "").unwrap();
        drop(Store::open(&path).unwrap());
        fs::write(&path, "").unwrap();
        fs::write(dir.path().join(EVENTS), "").unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }

    #[test]
    fn a_database_of_the_first_schema_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(FIRST).unwrap();
        old.pragma_update(None, "application_id", APPLICATION).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        old.execute("INSERT INTO meta VALUES ('instance', 'abc')", []).unwrap();
        drop(old);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.instance().unwrap(), "abc");
        assert_eq!(store.clients().unwrap(), BTreeMap::default());
    }

    #[test]
    fn a_spec_that_the_first_version_stored_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        drop(Store::open(&path).unwrap());
        let old = r#"{"name":"a","workload":{"process":{"command":["true"],"cwd":"/"}},
            "transport":"stdio","restart":{"max":10}}"#;
        Connection::open(&path)
            .unwrap()
            .execute("INSERT INTO servers VALUES ('a', ?1, 'on', '1970-01-01T00:00:00Z')", [old])
            .unwrap();
        assert_eq!(Store::open(&path).unwrap().load().unwrap(), [stored("a")]);
    }

    #[test]
    fn a_spec_that_makes_no_sense_names_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        drop(Store::open(&path).unwrap());
        Connection::open(&path)
            .unwrap()
            .execute("INSERT INTO servers VALUES ('x', '{}', 'on', '1970-01-01T00:00:00Z')", [])
            .unwrap();
        let error = Store::open(&path).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("server `x`"), "{error}");
    }
}
