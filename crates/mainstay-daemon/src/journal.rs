//! The event log: what happened to which server, for `events` and `why`.
//!
//! It is an observation, not intent: losing the last moments of it to a power cut is acceptable,
//! holding up a restart because a disk is slow is not. So one thread writes it (WAL,
//! `synchronous=NORMAL`), and recording an event never waits. When the disk is full the newest
//! events are kept in memory and written later; a damaged file is moved aside.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use jiff::Timestamp;
use mainstay_api::EventRecord;
use mainstay_core::{RunId, ServerName};
use rusqlite::{Connection, Row, params};
use tokio::sync::{broadcast, oneshot};

use crate::aside::set_aside;
use crate::ground::make_private_database;
use crate::store::StoreError;

/// The schema that this program writes. The log is no intent: a daemon that cannot read a later
/// schema has been stopped by the store's number before.
const SCHEMA: i64 = 1;

/// Events on their way to disk; more at once are counted and dropped.
const QUEUE: usize = 4096;

/// Events on their way to each follower.
const FOLLOW: usize = 1024;

/// How many events are kept in all.
const KEEP: u64 = 50_000;

/// How many are kept in memory while the disk refuses them.
const PENDING: usize = 1000;

/// How many events are read at a time.
const PAGE: usize = 1000;

/// Events are pruned after this many new ones.
const PRUNE_EVERY: u64 = 1000;

/// An event and its place in the order of all events.
pub(crate) type Numbered = (u64, EventRecord);

/// Which events to read. No more than a page at a time is ever in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The last ones, that many, a page at most.
    Last(usize),
    /// The next page after the event of this number.
    After(u64),
}

/// A handle on the event log; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    next: AtomicU64,
    to_writer: SyncSender<Order>,
    followers: broadcast::Sender<Numbered>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
enum Order {
    Record(Numbered),
    Read { server: Option<ServerName>, part: Part, to: oneshot::Sender<Vec<Numbered>> },
    Close,
}

impl Journal {
    /// Opens the log, or begins a new one.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = open_or_replace(path)?;
        let last: u64 = connection
            .query_row("SELECT coalesce(max(number), 0) FROM events", [], |row| row.get(0))
            .map_err(|error| StoreError::from_sqlite(path, error))?;
        let (to_writer, orders) = sync_channel(QUEUE);
        let (followers, _) = broadcast::channel(FOLLOW);
        let writer =
            Writer { connection, pending: VecDeque::new(), since_prune: 0, failing: false };
        let writer = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run(&orders))
            .expect("the system can start a thread");
        let writer = Mutex::new(Some(writer));
        let shared = Shared { next: AtomicU64::new(last + 1), to_writer, followers, writer };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Records an event.
    pub(crate) fn record(&self, event: EventRecord) {
        let numbered = (self.shared.next.fetch_add(1, Ordering::Relaxed), event);
        if self.shared.to_writer.try_send(Order::Record(numbered.clone())).is_err() {
            tracing::error!(event = ?numbered.1, "an event could not be kept: too many at once");
        }
        // Nobody may be following.
        self.shared.followers.send(numbered).ok();
    }

    /// Events, oldest first, of one server or of all.
    pub(crate) async fn read(&self, server: Option<ServerName>, part: Part) -> Vec<Numbered> {
        let (to, answer) = oneshot::channel();
        let writer = self.shared.to_writer.clone();
        let order = Order::Read { server, part, to };
        let sent = tokio::task::spawn_blocking(move || writer.send(order).is_ok()).await;
        match sent {
            Ok(true) => answer.await.unwrap_or_default(),
            Ok(false) | Err(_) => Vec::new(),
        }
    }

    /// Events from now on.
    pub(crate) fn follow(&self) -> broadcast::Receiver<Numbered> {
        self.shared.followers.subscribe()
    }

    /// Writes what is left and closes the file.
    pub(crate) fn close(&self) {
        let writer = self.shared.writer.lock().expect("no code panics with this lock").take();
        if let Some(writer) = writer
            && self.shared.to_writer.send(Order::Close).is_ok()
            && writer.join().is_err()
        {
            tracing::error!("the event log's writer had panicked");
        }
    }
}

/// The highest run that the log knows of each server.
pub(crate) fn last_runs(path: &Path) -> HashMap<ServerName, RunId> {
    let read = || -> rusqlite::Result<Vec<(String, u64)>> {
        let connection = Connection::open(path)?;
        let mut select = connection.prepare(
            "SELECT server, max(run) FROM events
             WHERE server IS NOT NULL AND run IS NOT NULL GROUP BY server",
        )?;
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    let rows = read().unwrap_or_default();
    rows.into_iter().filter_map(|(name, run)| Some((name.parse().ok()?, RunId::new(run)))).collect()
}

/// Opens the file; one that cannot be read is moved aside, because a log must not stop a start.
fn open_or_replace(path: &Path) -> Result<Connection, StoreError> {
    match open(path).map_err(|error| StoreError::from_sqlite(path, error)) {
        Err(StoreError::Damaged { .. }) => {
            set_aside(path, "event log");
            open(path).map_err(|error| StoreError::from_sqlite(path, error))
        }
        other => other,
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    make_private_database(path);
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "user_version", SCHEMA)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "cache_size", -512)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS events (
             number INTEGER PRIMARY KEY,
             at TEXT NOT NULL,
             server TEXT,
             run INTEGER,
             event TEXT NOT NULL,
             cause TEXT,
             detail TEXT NOT NULL
         ) STRICT;
         CREATE INDEX IF NOT EXISTS events_by_server ON events (server, number);",
    )?;
    Ok(connection)
}

/// The one owner of the connection.
struct Writer {
    connection: Connection,
    pending: VecDeque<Numbered>,
    since_prune: u64,
    failing: bool,
}

impl Writer {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            let mut next = Some(order);
            let mut closing = false;
            // Everything that is waiting goes into one transaction.
            while let Some(order) = next {
                match order {
                    Order::Record(event) => self.pending.push_back(event),
                    Order::Read { server, part, to } => {
                        self.write();
                        // The reader may have gone away.
                        to.send(self.read(server.as_ref(), part)).ok();
                    }
                    Order::Close => closing = true,
                }
                next = orders.try_recv().ok();
            }
            self.write();
            if closing {
                return;
            }
        }
    }

    fn write(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        match self.write_pending() {
            Ok(()) => {
                self.since_prune += self.pending.len() as u64;
                self.pending.clear();
                self.failing = false;
            }
            Err(error) => {
                if !self.failing {
                    tracing::error!(%error, "events cannot be written; the newest are kept in memory");
                }
                self.failing = true;
                let excess = self.pending.len().saturating_sub(PENDING);
                self.pending.drain(..excess);
            }
        }
        if self.since_prune >= PRUNE_EVERY {
            self.since_prune = 0;
            let pruned = self.connection.execute(
                "DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?1
                 AND number NOT IN (SELECT max(number) FROM events WHERE run IS NOT NULL
                                    GROUP BY server)",
                [KEEP],
            );
            if let Err(error) = pruned {
                tracing::warn!(%error, "old events cannot be removed");
            }
        }
    }

    fn write_pending(&mut self) -> rusqlite::Result<()> {
        let tx = self.connection.transaction()?;
        {
            let mut insert = tx.prepare_cached(
                "INSERT OR REPLACE INTO events (number, at, server, run, event, cause, detail)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?;
            for (number, event) in &self.pending {
                insert.execute(params![
                    number,
                    event.at.to_string(),
                    event.server.as_ref().map(ServerName::as_str),
                    event.run,
                    event.event,
                    event.cause,
                    event.detail,
                ])?;
            }
        }
        tx.commit()
    }

    fn read(&self, server: Option<&ServerName>, part: Part) -> Vec<Numbered> {
        let (after, limit, order) = match part {
            Part::Last(count) => (0, count.min(PAGE), "DESC"),
            Part::After(number) => (number, PAGE, "ASC"),
        };
        let select = || -> rusqlite::Result<Vec<Numbered>> {
            let mut select = self.connection.prepare_cached(&format!(
                "SELECT number, at, server, run, event, cause, detail FROM events
                 WHERE (?1 IS NULL OR server = ?1) AND number > ?2 ORDER BY number {order} LIMIT ?3"
            ))?;
            let limit = limit as u64;
            let server = server.map(ServerName::as_str);
            select.query_map(params![server, after, limit], numbered)?.collect()
        };
        let mut events = select().unwrap_or_else(|error| {
            tracing::error!(%error, "the event log cannot be read");
            Vec::new()
        });
        events.sort_unstable_by_key(|(number, _)| *number);
        let unwritten = self.pending.iter().filter(|(number, event)| {
            *number > after && (server.is_none() || event.server.as_ref() == server)
        });
        events.extend(unwritten.cloned());
        if let Part::Last(count) = part {
            let excess = events.len().saturating_sub(count);
            events.drain(..excess);
        }
        events
    }
}

fn numbered(row: &Row<'_>) -> rusqlite::Result<Numbered> {
    let at: String = row.get(1)?;
    let server: Option<String> = row.get(2)?;
    let event = EventRecord {
        at: at.parse().unwrap_or(Timestamp::UNIX_EPOCH),
        server: server.and_then(|name| name.parse().ok()),
        run: row.get(3)?,
        event: row.get(4)?,
        cause: row.get(5)?,
        detail: row.get(6)?,
    };
    Ok((row.get(0)?, event))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn event(server: &str, run: u64) -> EventRecord {
        EventRecord {
            at: Timestamp::UNIX_EPOCH,
            server: Some(server.parse().unwrap()),
            run: Some(run),
            event: "started".to_owned(),
            cause: None,
            detail: String::new(),
        }
    }

    #[tokio::test]
    async fn events_are_read_back_in_order_and_survive_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let journal = Journal::open(&path).unwrap();
        let mut follower = journal.follow();
        for run in 1..=5 {
            journal.record(event("a", run));
            journal.record(event("b", run * 10));
        }
        assert_eq!(follower.recv().await.unwrap(), (1, event("a", 1)));
        let runs =
            |events: Vec<Numbered>| events.iter().map(|(_, e)| e.run.unwrap()).collect::<Vec<_>>();
        assert_eq!(
            runs(journal.read(Some("a".parse().unwrap()), Part::After(0)).await),
            [1, 2, 3, 4, 5]
        );
        assert_eq!(runs(journal.read(None, Part::Last(3)).await), [40, 5, 50]);
        journal.close();
        assert_eq!(last_runs(&path)[&"b".parse().unwrap()], RunId::new(50));
        let journal = Journal::open(&path).unwrap();
        journal.record(event("a", 6));
        assert_eq!(runs(journal.read(None, Part::Last(2)).await), [50, 6]);
        journal.close();
    }

    #[tokio::test]
    async fn a_damaged_log_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        fs::write(&path, "no database at all".repeat(100)).unwrap();
        let journal = Journal::open(&path).unwrap();
        assert_eq!(journal.read(None, Part::After(0)).await, []);
        journal.close();
        assert!(crate::aside::place(&path).exists());
    }
}
