//! The file.
//!
//! Schema 2. A file of schema 1, which did not know the runs that sessions have met, is changed in
//! place. One of a later schema is not touched. Times are milliseconds since 1970, and subscriptions a
//! JSON array.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mainstay_proxy::SessionRecord;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, ErrorCode, Row, Transaction, params};

use super::Kept;
use super::pending::{Change, Pending};
use crate::ground::make_private_database;

const SCHEMA: i64 = 2;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// A later version of this program wrote it.
    #[error("the file `{}` has schema {found}, known is {SCHEMA}", path.display())]
    Newer { path: PathBuf, found: i64 },
    /// It is no database, or its content makes no sense.
    #[error("the file `{}` is damaged", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: Error,
    },
    /// Anything else.
    #[error("the file `{}` cannot be used", path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        source: Error,
    },
}

#[derive(Debug)]
pub(super) struct Database(Connection);

impl Database {
    /// Opens the file, or begins a new one, and reads all that is in it.
    pub(super) fn open(path: &Path) -> Result<(Self, Kept), OpenError> {
        let failed = |source| open_error(path, source);
        make_private_database(path);
        let mut connection = Connection::open(path).map_err(failed)?;
        let found: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(failed)?;
        if found > SCHEMA {
            return Err(OpenError::Newer { path: path.to_owned(), found });
        }
        prepare(&mut connection, found).map_err(failed)?;
        let kept = read(&connection).map_err(failed)?;
        Ok((Self(connection), kept))
    }

    /// Makes all changes, or none.
    pub(super) fn write(&mut self, pending: &Pending) -> rusqlite::Result<()> {
        let tx = self.0.transaction()?;
        for server in &pending.removed_servers {
            tx.prepare_cached("DELETE FROM sessions WHERE server = ?1")?.execute([server])?;
            tx.prepare_cached("DELETE FROM copies WHERE server = ?1")?.execute([server])?;
        }
        for (id, change) in &pending.sessions {
            write_session(&tx, id, change)?;
        }
        for (server, copy) in &pending.copies {
            tx.prepare_cached("INSERT OR REPLACE INTO copies (server, content) VALUES (?1, ?2)")?
                .execute(params![server, copy])?;
        }
        tx.commit()
    }
}

fn open_error(path: &Path, source: Error) -> OpenError {
    let path = path.to_owned();
    match (&source, source.sqlite_error_code()) {
        (Error::InvalidColumnType(..) | Error::FromSqlConversionFailure(..), _)
        | (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)) => {
            OpenError::Damaged { path, source }
        }
        _ => OpenError::Sqlite { path, source },
    }
}

fn prepare(connection: &mut Connection, found: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "cache_size", -512)?;
    let tx = connection.transaction()?;
    if found == 1 {
        tx.execute_batch("ALTER TABLE sessions ADD COLUMN run INTEGER")?;
    }
    tx.execute_batch(
        "CREATE TABLE IF NOT EXISTS sessions (
             id TEXT PRIMARY KEY,
             server TEXT NOT NULL,
             params BLOB NOT NULL,
             version TEXT NOT NULL,
             initialized INTEGER NOT NULL,
             level TEXT,
             subscriptions TEXT NOT NULL,
             created_at INTEGER NOT NULL,
             used_at INTEGER NOT NULL,
             run INTEGER
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX IF NOT EXISTS sessions_by_server ON sessions (server);
         CREATE TABLE IF NOT EXISTS copies (
             server TEXT PRIMARY KEY,
             content BLOB NOT NULL
         ) STRICT;",
    )?;
    tx.pragma_update(None, "user_version", SCHEMA)?;
    tx.commit()
}

fn read(connection: &Connection) -> rusqlite::Result<Kept> {
    let mut select = connection.prepare(
        "SELECT id, server, params, version, initialized, level, subscriptions, created_at, used_at,
             run
         FROM sessions ORDER BY created_at, id",
    )?;
    let sessions = select.query_map([], session)?.collect::<Result<_, _>>()?;
    let mut select = connection.prepare("SELECT server, content FROM copies ORDER BY server")?;
    let copies = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let copies = copies.collect::<Result<_, _>>()?;
    Ok(Kept { sessions, copies, ..Kept::default() })
}

fn session(row: &Row<'_>) -> rusqlite::Result<SessionRecord> {
    let params: Vec<u8> = row.get(2)?;
    let subscriptions: String = row.get(6)?;
    let run: Option<i64> = row.get(9)?;
    let subscriptions = serde_json::from_str(&subscriptions)
        .map_err(|error| Error::FromSqlConversionFailure(6, Type::Text, Box::new(error)))?;
    Ok(SessionRecord {
        id: row.get(0)?,
        server: row.get(1)?,
        params: Bytes::from(params),
        version: row.get(3)?,
        initialized: row.get(4)?,
        level: row.get(5)?,
        subscriptions,
        run: run.and_then(|run| u64::try_from(run).ok()),
        created_at: time(row.get(7)?),
        used_at: time(row.get(8)?),
    })
}

fn write_session(tx: &Transaction<'_>, id: &str, change: &Change) -> rusqlite::Result<()> {
    match change {
        Change::Save(record) => {
            let subscriptions = serde_json::to_string(&record.subscriptions)
                .expect("strings can be written as JSON");
            tx.prepare_cached(
                "INSERT OR REPLACE INTO sessions (id, server, params, version, initialized, level,
                     subscriptions, created_at, used_at, run)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?
            .execute(params![
                record.id,
                record.server,
                &record.params[..],
                record.version,
                record.initialized,
                record.level,
                subscriptions,
                millis(record.created_at),
                millis(record.used_at),
                record.run.and_then(|run| i64::try_from(run).ok()),
            ])
        }
        Change::Touch(at) => tx
            .prepare_cached("UPDATE sessions SET used_at = ?2 WHERE id = ?1")?
            .execute(params![id, millis(*at)]),
        Change::Remove => tx.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id]),
    }
    .map(drop)
}

/// A clock before 1970 counts as 1970.
fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn time(millis: i64) -> SystemTime {
    let since = Duration::from_millis(u64::try_from(millis).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}
