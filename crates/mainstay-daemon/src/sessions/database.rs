//! The file. Times are milliseconds since 1970; subscriptions and sessions of servers are JSON.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mainstay_proxy::SessionRecord;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, Row, Transaction, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Kept;
use super::migrations::SESSIONS;
use super::pending::{Change, Pending};
use crate::store::StoreError;

#[derive(Debug)]
pub(super) struct Database(Connection);

impl Database {
    /// Opens the file, or begins a new one, and reads all that is in it.
    pub(super) fn open(path: &Path) -> Result<(Self, Kept), StoreError> {
        let connection = SESSIONS.open(path)?;
        let kept = read(&connection).map_err(|error| StoreError::from_sqlite(path, error))?;
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

fn read(connection: &Connection) -> rusqlite::Result<Kept> {
    let mut select = connection.prepare(
        "SELECT id, server, params, version, initialized, level, subscriptions, created_at, used_at,
             run, upstream
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
    let upstream: Option<String> = row.get(10)?;
    Ok(SessionRecord {
        id: row.get(0)?,
        server: row.get(1)?,
        params: Bytes::from(params),
        version: row.get(3)?,
        initialized: row.get(4)?,
        level: row.get(5)?,
        subscriptions: from_json(6, &subscriptions)?,
        run: run.and_then(|run| u64::try_from(run).ok()),
        upstream: upstream.map(|upstream| from_json(10, &upstream)).transpose()?,
        created_at: time(row.get(7)?),
        used_at: time(row.get(8)?),
    })
}

fn write_session(tx: &Transaction<'_>, id: &str, change: &Change) -> rusqlite::Result<()> {
    match change {
        Change::Save(record) => tx
            .prepare_cached(
                "INSERT OR REPLACE INTO sessions (id, server, params, version, initialized, level,
                     subscriptions, created_at, used_at, run, upstream)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                record.id,
                record.server,
                &record.params[..],
                record.version,
                record.initialized,
                record.level,
                to_json(&record.subscriptions),
                millis(record.created_at),
                millis(record.used_at),
                record.run.and_then(|run| i64::try_from(run).ok()),
                record.upstream.as_ref().map(to_json),
            ]),
        Change::Touch(at) => tx
            .prepare_cached("UPDATE sessions SET used_at = ?2 WHERE id = ?1")?
            .execute(params![id, millis(*at)]),
        Change::Remove => tx.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id]),
    }
    .map(drop)
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers can be written as JSON")
}

fn from_json<T: DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
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
