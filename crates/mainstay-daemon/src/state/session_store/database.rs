//! The database of sessions. Times are milliseconds of the session clock; subscriptions and sessions of servers are JSON.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use mainstay_proxy::SessionRecord;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension, Row, Transaction, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::RecoveredState;
use super::pending::{Change, Pending};
use crate::state::schemas::SESSIONS;
use crate::state::store::StoreError;

/// How many sessions per server are loaded at startup: those that were used last. The others are loaded on
/// demand.
const LOADED: i64 = 3584;

/// How many sessions are kept. Beyond that, sessions that were never used are removed first, then the least
/// recently used.
const MAX_SESSIONS: i64 = 200_000;

/// How many are removed at a time.
const PRUNE_BATCH: i64 = MAX_SESSIONS / 16;

/// How long a session is kept after its last use, and if it was never used.
const EXPIRY: Duration = Duration::from_secs(24 * 60 * 60);
const UNUSED_EXPIRY: Duration = Duration::from_secs(5 * 60);

const COLUMNS: &str =
    "id, server, params, version, initialized, level, subscriptions, used, run, upstream";

#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
    /// An upper bound of the number of sessions.
    count: i64,
}

impl Database {
    /// Opens or creates the file, and reads what is needed at startup: the sessions used last, and `needed`.
    pub(super) fn open(path: &Path, needed: &[&str]) -> Result<(Self, RecoveredState), StoreError> {
        let connection = SESSIONS.open(path)?;
        let failed = |error| StoreError::from_sqlite(path, error);
        let count = count(&connection).map_err(failed)?;
        let database = Self { connection, count };
        let recovered = database.read(needed).map_err(failed)?;
        Ok((database, recovered))
    }

    /// An empty database in memory.
    pub(super) fn in_memory() -> Result<Self, StoreError> {
        Ok(Self { connection: SESSIONS.in_memory()?, count: 0 })
    }

    /// Writes all changes or none. If there are too many sessions afterwards, some that are not in memory are removed.
    pub(super) fn write(
        &mut self,
        pending: &Pending,
        is_in_memory: impl Fn(&str) -> bool,
    ) -> rusqlite::Result<()> {
        let tx = self.connection.transaction()?;
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
        if let Some(now) = pending.clock {
            tx.execute("UPDATE clock SET milliseconds = max(milliseconds, ?1)", [millis(now)])?;
            let expired =
                [now.saturating_sub(EXPIRY), now.saturating_sub(UNUSED_EXPIRY)].map(millis);
            tx.execute(
                "DELETE FROM sessions WHERE used < ?1 OR (used < ?2 AND NOT initialized)",
                expired,
            )?;
        }
        tx.commit()?;
        // Most changes are to existing sessions, so they are counted only when the bound exceeds the limit.
        self.count = self.count.saturating_add_unsigned(pending.sessions.len() as u64);
        if self.count > MAX_SESSIONS { self.prune(MAX_SESSIONS, is_in_memory) } else { Ok(()) }
    }

    pub(super) fn find(&self, id: &str) -> rusqlite::Result<Option<SessionRecord>> {
        let query = format!("SELECT {COLUMNS} FROM sessions WHERE id = ?1");
        self.connection.prepare_cached(&query)?.query_row([id], session).optional()
    }

    /// Removes sessions if there are more than `max`, but none that is in memory.
    pub(super) fn prune(
        &mut self,
        max: i64,
        is_in_memory: impl Fn(&str) -> bool,
    ) -> rusqlite::Result<()> {
        self.count = count(&self.connection)?;
        if self.count > max {
            let excess = self.count - max + PRUNE_BATCH.min(max / 16);
            let excess = usize::try_from(excess).unwrap_or(usize::MAX);
            let tx = self.connection.transaction()?;
            let gone: Vec<String> = {
                let mut oldest =
                    tx.prepare("SELECT id FROM sessions ORDER BY initialized, used")?;
                let ids = oldest.query_map([], |row| row.get(0))?;
                let absent =
                    ids.filter(|id| id.as_ref().map_or(true, |id: &String| !is_in_memory(id)));
                absent.take(excess).collect::<rusqlite::Result<_>>()?
            };
            for id in &gone {
                tx.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id])?;
            }
            tx.commit()?;
            let gone = gone.len();
            tracing::warn!(gone, "removed the oldest sessions: too many are stored");
            self.count = count(&self.connection)?;
        }
        Ok(())
    }

    fn read(&self, needed: &[&str]) -> rusqlite::Result<RecoveredState> {
        let clock = "SELECT milliseconds FROM clock";
        let clock = self.connection.query_row(clock, [], |row| Ok(time(row.get(0)?)))?;
        let mut select = self.connection.prepare(&format!(
            "SELECT {COLUMNS} FROM
                 (SELECT *, row_number() OVER
                      (PARTITION BY server ORDER BY initialized DESC, used DESC) AS place
                  FROM sessions)
             WHERE place <= ?1 ORDER BY used, id",
        ))?;
        let sessions: rusqlite::Result<Vec<_>> = select.query_map([LOADED], session)?.collect();
        let mut sessions = sessions?;
        for id in needed {
            if !sessions.iter().any(|session| session.id == *id) {
                sessions.extend(self.find(id)?);
            }
        }
        let mut select =
            self.connection.prepare("SELECT server, content FROM copies ORDER BY server")?;
        let copies = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let copies = copies.collect::<Result<_, _>>()?;
        Ok(RecoveredState { sessions, copies, clock, ..RecoveredState::default() })
    }
}

fn count(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0))
}

fn session(row: &Row<'_>) -> rusqlite::Result<SessionRecord> {
    let params: Vec<u8> = row.get(2)?;
    let subscriptions: String = row.get(6)?;
    let run: Option<i64> = row.get(8)?;
    let upstream: Option<String> = row.get(9)?;
    Ok(SessionRecord {
        id: row.get(0)?,
        server: row.get(1)?,
        params: Bytes::from(params),
        version: row.get(3)?,
        initialized: row.get(4)?,
        level: row.get(5)?,
        subscriptions: from_json(6, &subscriptions)?,
        run: run.and_then(|run| u64::try_from(run).ok()),
        upstream: upstream.map(|upstream| from_json(9, &upstream)).transpose()?,
        used_at: time(row.get(7)?),
    })
}

fn write_session(tx: &Transaction<'_>, id: &str, change: &Change) -> rusqlite::Result<()> {
    match change {
        Change::Save(record) => tx
            .prepare_cached(
                "INSERT OR REPLACE INTO sessions (id, server, params, version, initialized, level,
                     subscriptions, used, run, upstream)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?
            .execute(params![
                record.id,
                record.server,
                &record.params[..],
                record.version,
                record.initialized,
                record.level,
                to_json(&record.subscriptions),
                millis(record.used_at),
                record.run.and_then(|run| i64::try_from(run).ok()),
                record.upstream.as_ref().map(to_json),
            ]),
        Change::Touch(at) => tx
            .prepare_cached("UPDATE sessions SET used = ?2 WHERE id = ?1")?
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

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn time(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}
