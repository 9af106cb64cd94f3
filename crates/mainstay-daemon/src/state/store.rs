//! The store of intent: all servers, and whether each should run.
//!
//! It has no observations. Every change is one transaction, on disk when it is acknowledged
//! (WAL, `synchronous=FULL`). By then it is also in the file itself, which is complete without the
//! write-ahead log, and in a copy beside it ([`backup`]). The schema has a number; see [`schema`] for how it
//! changes.
//!
//! Daemons are numbered, and each takes its number here. Every change checks, in its own transaction,
//! that no later daemon has taken one since, so a daemon that was replaced cannot change anything.

mod backup;
mod clients;
mod error;
pub(crate) mod loss;
mod restore;
pub(crate) mod schema;
#[cfg(test)]
mod tests;
mod tokens;
mod undo;

pub(crate) use clients::StoredClient;
pub use error::StoreError;
pub use restore::{Restored, restore};
pub(crate) use tokens::{Added, StoredToken};

use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use mainstay_core::{LONGEST_STOP_TIMEOUT, ServerName, ServerSpec, Wanted};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, TransactionBehavior, params};
use serde::Serialize;

use crate::blocking::BlockingPool;
use crate::random;
use crate::state::schemas::INTENT;

/// A server as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) spec: ServerSpec,
    pub(crate) wanted: Wanted,
    pub(crate) created_at: Timestamp,
}

/// A handle to the store. Clones share one connection.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    path: Arc<Path>,
    connection: Arc<Mutex<Connection>>,
    /// One thread, because there is one connection.
    pool: BlockingPool,
    /// The number of the last daemon when the store was opened, or of this daemon once it has taken over.
    daemon: Arc<AtomicU64>,
}

impl Store {
    /// Opens or creates the store.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = INTENT.open(path)?;
        check_pages(path, &connection)?;
        backup::remove_unfinished(path);
        Self::of(path, connection)
    }

    /// Checks that the store can be opened and read, without creating or changing it.
    pub(crate) fn inspect(path: &Path) -> Result<(), StoreError> {
        if !path.exists() {
            return Ok(());
        }
        let connection = schema::open_to_read(path)?;
        INTENT.check(path, &connection)?;
        check_pages(path, &connection)?;
        Self::of(path, connection)?.load().map(drop)
    }

    fn of(path: &Path, connection: Connection) -> Result<Self, StoreError> {
        let daemon = newest_daemon(&connection);
        let daemon = daemon.map_err(|error| StoreError::from_sqlite(path, error))?;
        Ok(Self {
            path: path.into(),
            connection: Arc::new(Mutex::new(connection)),
            pool: BlockingPool::new(1),
            daemon: Arc::new(AtomicU64::new(daemon)),
        })
    }

    /// The random name of this instance, created once.
    pub(crate) fn instance(&self) -> Result<String, StoreError> {
        self.write(|tx| {
            if let Some(instance) = get(tx, "instance")? {
                return Ok(instance);
            }
            let instance = hex::encode(random::bytes::<8>());
            set(tx, "instance", &instance)?;
            Ok(instance)
        })
    }

    /// The key of session ids, as text.
    pub(crate) fn session_key(&self) -> Result<Option<String>, StoreError> {
        self.read(|tx| get(tx, "session key"))
    }

    /// Stores the key of session ids.
    pub(crate) fn set_session_key(&self, key: &str) -> Result<(), StoreError> {
        self.write(|tx| set(tx, "session key", key))
    }

    /// The port of this instance, if one was chosen.
    pub(crate) fn port(&self) -> Result<Option<u16>, StoreError> {
        self.read(|tx| get_number(tx, "port"))
    }

    /// The port in this file. Does not modify the file.
    pub(crate) fn port_in(path: &Path) -> Result<Option<u16>, StoreError> {
        Self::of(path, schema::open_to_read(path)?)?.port()
    }

    /// Stores the port of this instance.
    pub(crate) fn choose_port(&self, port: u16) -> Result<(), StoreError> {
        self.write(|tx| set(tx, "port", port))
    }

    /// The number of the daemon that had the store when it was opened, or of the one that has taken it over since.
    pub(crate) fn daemon(&self) -> u64 {
        self.daemon.load(Ordering::SeqCst)
    }

    /// Takes over the store. The number of this daemon is higher than the last one's, which cannot change
    /// anything from now on, and higher than those that were `seen` elsewhere: a store that was restored from an
    /// older copy has a lower one.
    pub(crate) fn next_daemon(&self, seen: u64) -> Result<u64, StoreError> {
        // Clients wait for this daemon, so it does not wait for the disk. A power cut may undo this, but no daemon
        // outlives one.
        self.synchronize("normal")?;
        let daemon = self.transact(TransactionBehavior::Immediate, |tx| {
            tx.execute(
                "INSERT INTO meta (key, value) VALUES ('daemon', ?1 + 1)
                 ON CONFLICT (key) DO UPDATE SET value = max(CAST(value AS INTEGER), ?1) + 1",
                [seen],
            )?;
            Ok(Some(newest_daemon(tx)?))
        })?;
        self.synchronize(INTENT.synchronous)?;
        self.daemon.store(daemon, Ordering::SeqCst);
        Ok(daemon)
    }

    /// All servers, by name.
    pub(crate) fn load(&self) -> Result<Vec<Stored>, StoreError> {
        let rows: Vec<(String, String, String, String)> = self.read(|tx| {
            let mut select =
                tx.prepare("SELECT name, spec, wanted, created_at FROM servers ORDER BY name")?;
            let rows = select
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
            rows.collect()
        })?;
        let parse = |(name, spec, wanted, created_at): (String, String, String, String)| {
            let damaged = |error: &dyn Display| self.damaged(&format!("server `{name}`"), error);
            let mut spec: ServerSpec =
                serde_json::from_str(&spec).map_err(|error| damaged(&error))?;
            // 0.1.0 had no limit.
            spec.restart.stop_timeout = spec.restart.stop_timeout.min(LONGEST_STOP_TIMEOUT);
            Ok(Stored {
                spec,
                wanted: parse_wanted(&wanted)
                    .ok_or_else(|| damaged(&format!("`{wanted}` is not an intent")))?,
                created_at: created_at.parse().map_err(|error: jiff::Error| damaged(&error))?,
            })
        };
        rows.into_iter().map(parse).collect()
    }

    fn damaged(&self, what: &str, error: &dyn Display) -> StoreError {
        StoreError::Damaged { path: self.path.to_path_buf(), what: format!("{what}: {error}") }
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

    /// Replaces the specs of servers that still exist: all of them or none. Intent stays.
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

    /// Removes a server and its tokens.
    pub(crate) async fn delete(&self, name: ServerName) -> Result<(), StoreError> {
        self.change(move |tx| {
            tx.execute("DELETE FROM servers WHERE name = ?1", [name.as_str()])?;
            // A later server of this name is a different server.
            tokens::forget_server(tx, &name)
        })
        .await
    }

    /// Changes intent. The change is in the file and in its copy when this returns. The write-ahead log is
    /// emptied, which may still contain a secret that the change removed.
    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let change = move || {
            let done = store.write(work)?;
            store.secure();
            Ok(done)
        };
        self.pool.run(change).await
    }

    /// Checkpoints and copies the file in the background.
    pub(crate) fn secure_later(&self) {
        let store = self.clone();
        self.pool.spawn(move || store.secure());
    }

    /// Makes the file complete without its write-ahead log, and copies it. If that fails, the next
    /// change repeats it; committed changes are not lost.
    fn secure(&self) {
        let connection = mainstay_core::lock(&self.connection);
        match connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)) {
            Ok(false) => {}
            Ok(true) => tracing::warn!("a reader keeps the write-ahead log from being emptied"),
            Err(error) => tracing::warn!(%error, "the write-ahead log cannot be emptied"),
        }
        if let Err(error) = backup::write_out(&connection, &backup::copy_of(&self.path)) {
            tracing::warn!(%error, "the copy of the store is out of date");
        }
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.transact(TransactionBehavior::Deferred, |tx| work(tx).map(Some))
    }

    /// Changes something, unless another daemon has taken the store over.
    fn write<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let own = self.daemon();
        // No other daemon can take a number while this transaction lasts.
        self.transact(TransactionBehavior::Immediate, |tx| {
            if newest_daemon(tx)? == own { work(tx).map(Some) } else { Ok(None) }
        })
    }

    /// Whether no later daemon has taken over.
    pub(crate) async fn is_current(&self) -> Result<bool, StoreError> {
        let (store, own) = (self.clone(), self.daemon());
        self.pool.run(move || store.read(|tx| Ok(newest_daemon(tx)? <= own))).await
    }

    /// Sets what commits wait for.
    fn synchronize(&self, with: &str) -> Result<(), StoreError> {
        let connection = mainstay_core::lock(&self.connection);
        let set = connection.pragma_update(None, "synchronous", with);
        set.map_err(|error| StoreError::from_sqlite(&self.path, error))
    }

    /// Runs a transaction. If `work` returns none, another daemon has taken over.
    fn transact<T>(
        &self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Option<T>>,
    ) -> Result<T, StoreError> {
        let mut connection = mainstay_core::lock(&self.connection);
        let run = || {
            let tx = connection.transaction_with_behavior(behavior)?;
            let done = work(&tx)?;
            tx.commit()?;
            Ok(done)
        };
        let done = run().map_err(|error| StoreError::from_sqlite(&self.path, error))?;
        done.ok_or_else(|| StoreError::Fenced { path: self.path.to_path_buf() })
    }
}

/// The number of the daemon that has the store; 0 if there was none.
fn newest_daemon(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(get_number(connection, "daemon")?.unwrap_or_default())
}

fn get(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let select = "SELECT value FROM meta WHERE key = ?1";
    connection.query_row(select, [key], |row| row.get(0)).optional()
}

fn get_number<T: FromSql>(connection: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    let select = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?1";
    connection.query_row(select, [key], |row| row.get(0)).optional()
}

fn set(tx: &Transaction<'_>, key: &str, value: impl ToSql) -> rusqlite::Result<()> {
    let put = "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)";
    tx.execute(put, params![key, value]).map(drop)
}

/// Refuses a database with damaged pages.
fn check_pages(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let verdict: rusqlite::Result<String> =
        connection.pragma_query_value(None, "quick_check", |row| row.get(0));
    let verdict = verdict.map_err(|error| StoreError::from_sqlite(path, error))?;
    if verdict == "ok" {
        return Ok(());
    }
    Err(StoreError::Damaged { path: path.to_owned(), what: verdict })
}

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
