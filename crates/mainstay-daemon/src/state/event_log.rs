//! The event log: what happened to which server, for `events` and `why`, and how far each server has
//! come, for the next daemon.
//!
//! It is an observation, not intent: losing the last moments of it to a power cut is acceptable,
//! holding up a restart because a disk is slow is not. So one thread writes it (WAL,
//! `synchronous=NORMAL`), and recording something never waits. When the disk is full the newest
//! events are kept in memory and written later; a damaged file is moved aside; without a usable file, events live
//! in memory only.
//!
//! Whoever opens the log takes it over. What the one before still has to say is not written any more:
//! events are numbered, and two writers would use the same numbers.

mod migrations;
mod progress;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use progress::{Clocks, Progress};

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mainstay_api::EventRecord;
use mainstay_core::{RunId, ServerName};
use rusqlite::Connection;
use tokio::sync::{broadcast, oneshot};
use tokio::time::sleep;

use crate::state::quarantine::set_aside;
use crate::state::store::StoreError;
use migrations::EVENTS;
use writer::{Order, Writer};

/// Events on their way to disk; more at once are counted and dropped.
const QUEUE: usize = 4096;

/// How often a read request is retried while the queue is full.
const QUEUE_RETRY: Duration = Duration::from_millis(20);

/// Events on their way to each follower.
const FOLLOW: usize = 1024;

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
pub(crate) struct EventLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    next: AtomicU64,
    to_writer: SyncSender<Order>,
    followers: broadcast::Sender<Numbered>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl EventLog {
    /// Opens the log, or begins a new one, and takes it over.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Self::on(path, open_or_replace(path)?)
    }

    /// The same; with a file that cannot be used, events live in memory only: a log must not stop a start. One that a
    /// newer program wrote is still refused.
    pub(crate) fn open_or_do_without(path: &Path) -> Result<Self, StoreError> {
        match Self::open(path) {
            Err(error @ (StoreError::Sqlite { .. } | StoreError::Backup { .. })) => {
                tracing::error!(%error, "there is no event log: events are lost with this daemon");
                Self::on(path, EVENTS.in_memory()?)
            }
            other => other,
        }
    }

    fn on(path: &Path, connection: Connection) -> Result<Self, StoreError> {
        let (writer, last) =
            Writer::take_over(connection).map_err(|error| StoreError::from_sqlite(path, error))?;
        let (to_writer, orders) = sync_channel(QUEUE);
        let (followers, _) = broadcast::channel(FOLLOW);
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

    /// Notes how far a server has come; nothing of one that is forgotten.
    pub(crate) fn note(&self, server: &ServerName, progress: Option<Progress>) {
        let order = Order::Note { server: server.clone(), progress };
        if self.shared.to_writer.try_send(order).is_err() {
            tracing::error!(%server, "its failures could not be noted: too many events at once");
        }
    }

    /// Events, oldest first, of one server or of all.
    pub(crate) async fn read(&self, server: Option<ServerName>, part: Part) -> Vec<Numbered> {
        let (to, answer) = oneshot::channel();
        let mut order = Order::Read { server, part, to };
        while let Err(error) = self.shared.to_writer.try_send(order) {
            match error {
                // The disk does not keep up.
                TrySendError::Full(unsent) => order = unsent,
                TrySendError::Disconnected(_) => return Vec::new(),
            }
            sleep(QUEUE_RETRY).await;
        }
        answer.await.unwrap_or_default()
    }

    /// Events from now on.
    pub(crate) fn follow(&self) -> broadcast::Receiver<Numbered> {
        self.shared.followers.subscribe()
    }

    /// Writes what is left and closes the file.
    pub(crate) fn close(&self) {
        let writer = mainstay_core::lock(&self.shared.writer).take();
        if let Some(writer) = writer
            && self.shared.to_writer.send(Order::Close).is_ok()
            && writer.join().is_err()
        {
            tracing::error!("the event log's writer had panicked");
        }
    }
}

/// What the log knows of servers that earlier daemons drove.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The highest run of each.
    pub(crate) last_runs: HashMap<ServerName, RunId>,
    /// How far each has come.
    pub(crate) progress: HashMap<ServerName, Progress>,
}

/// Reads what the log knows. What cannot be read is not known: the log is no truth.
pub(crate) fn known(path: &Path) -> Known {
    read_known(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "what the event log knows of earlier runs cannot be read");
        Known::default()
    })
}

fn read_known(path: &Path) -> rusqlite::Result<Known> {
    let connection = Connection::open(path)?;
    let mut runs = connection.prepare(
        "SELECT server, max(run) FROM events
         WHERE server IS NOT NULL AND run IS NOT NULL GROUP BY server",
    )?;
    let runs = runs.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
    let mut known = Known::default();
    for row in runs {
        let (name, run) = row?;
        known.last_runs.extend(name.parse().ok().map(|name| (name, RunId::new(run))));
    }
    let mut notes = connection.prepare("SELECT server, content FROM progress")?;
    let notes =
        notes.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    for row in notes {
        let (name, content) = row?;
        let read = name.parse().ok().zip(serde_json::from_str(&content).ok());
        known.progress.extend(read);
    }
    Ok(known)
}

/// Undoes what a newer program did to the log before it failed. If it cannot be undone, the log stays as it is.
pub(crate) fn go_back(path: &Path) {
    if let Err(error) = EVENTS.go_back(path) {
        tracing::error!(%error, "the event log of before the update cannot be put back");
    }
}

/// Copies the log, if there is one, and changes nothing of it. One that this program cannot take over is
/// refused.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    EVENTS.copy(from, to)
}

/// Opens the file; one that cannot be read is moved aside, because a log must not stop a start.
fn open_or_replace(path: &Path) -> Result<Connection, StoreError> {
    match EVENTS.open(path) {
        Err(StoreError::Damaged { .. }) => {
            set_aside(path, "event log");
            EVENTS.open(path)
        }
        other => other,
    }
}
