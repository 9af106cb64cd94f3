//! The event log: what happened to each server, for `events` and `why`, and the progress of each server, for the next
//! daemon.
//!
//! It has observations, not intent: a power cut may lose the last events, but a slow disk must not delay a restart. So
//! one thread writes it (WAL, `synchronous=NORMAL`), and recording never waits. If the disk is full, the newest events
//! are kept in memory and written later. A damaged file is moved aside. Without a usable file, events are in memory only.
//!
//! Opening the log takes it over: the previous writer does not write any more, because events are numbered, and two
//! writers would use the same numbers.

mod progress;
mod rate_limit;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use progress::{Clocks, Progress};
pub(crate) use rate_limit::RateLimit;

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

use crate::state::schemas::EVENTS;
use crate::state::store::StoreError;
use writer::{Request, Writer};

/// Events on their way to disk; more at once are counted and dropped.
const QUEUE: usize = 4096;

/// How often a read request is retried while the queue is full.
const QUEUE_RETRY: Duration = Duration::from_millis(20);

/// Events on their way to each follower.
const FOLLOW: usize = 1024;

/// An event and its number.
pub(crate) type Numbered = (u64, EventRecord);

/// Which events to read. No more than a page at a time is ever in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// This many of the last events, at most a page.
    Last(usize),
    /// The next page after the event of this number.
    After(u64),
}

/// A handle to the event log. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct EventLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    next: AtomicU64,
    to_writer: SyncSender<Request>,
    followers: broadcast::Sender<Numbered>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl EventLog {
    /// Opens or creates the log, and takes it over.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Self::start(path, EVENTS.or_quarantine(path, || EVENTS.open(path))?.0)
    }

    /// Like [`Self::open`], but if the file cannot be used, events are in memory only, because the log must not prevent a
    /// start. A file of a newer program is still refused.
    pub(crate) fn open_or_in_memory(path: &Path) -> Result<Self, StoreError> {
        match Self::open(path) {
            Err(error @ (StoreError::Sqlite { .. } | StoreError::Backup { .. })) => {
                tracing::error!(%error, "the event log cannot be opened: events are in memory only");
                Self::start(path, EVENTS.in_memory()?)
            }
            other => other,
        }
    }

    fn start(path: &Path, connection: Connection) -> Result<Self, StoreError> {
        let (writer, last) =
            Writer::take_over(connection).map_err(|error| StoreError::from_sqlite(path, error))?;
        let (to_writer, requests) = sync_channel(QUEUE);
        let (followers, _) = broadcast::channel(FOLLOW);
        let writer = thread::Builder::new()
            .name("event log".to_owned())
            .spawn(move || writer.run(&requests))
            .expect("the system can start a thread");
        let writer = Mutex::new(Some(writer));
        let shared = Shared { next: AtomicU64::new(last + 1), to_writer, followers, writer };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Records an event.
    pub(crate) fn record(&self, event: EventRecord) {
        let numbered = (self.shared.next.fetch_add(1, Ordering::Relaxed), event);
        if self.shared.to_writer.try_send(Request::Record(numbered.clone())).is_err() {
            tracing::error!(event = ?numbered.1, "an event was dropped: too many at once");
        }
        // There may be no follower.
        self.shared.followers.send(numbered).ok();
    }

    /// Stores the progress of a server; none if it was removed.
    pub(crate) fn set_progress(&self, server: &ServerName, progress: Option<Progress>) {
        let request = Request::SetProgress { server: server.clone(), progress };
        if self.shared.to_writer.try_send(request).is_err() {
            tracing::error!(%server, "its progress was not stored: too many events at once");
        }
    }

    /// Reads events of one server or of all, oldest first.
    pub(crate) async fn read(&self, server: Option<ServerName>, part: Part) -> Vec<Numbered> {
        let (to, answer) = oneshot::channel();
        let mut request = Request::Read { server, part, to };
        while let Err(error) = self.shared.to_writer.try_send(request) {
            match error {
                // The disk does not keep up.
                TrySendError::Full(unsent) => request = unsent,
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
            && self.shared.to_writer.send(Request::Close).is_ok()
            && writer.join().is_err()
        {
            tracing::error!("the writer of the event log panicked");
        }
    }
}

/// The runs of earlier daemons, according to the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EarlierRuns {
    /// The highest run of each.
    pub(crate) last_runs: HashMap<ServerName, RunId>,
    pub(crate) progress: HashMap<ServerName, Progress>,
}

/// Reads the runs of earlier daemons; none if the log cannot be read.
pub(crate) fn earlier_runs(path: &Path) -> EarlierRuns {
    read_earlier_runs(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "the event log cannot be read for earlier runs");
        EarlierRuns::default()
    })
}

fn read_earlier_runs(path: &Path) -> rusqlite::Result<EarlierRuns> {
    let connection = Connection::open(path)?;
    let mut runs = connection.prepare(
        "SELECT server, max(run) FROM events
         WHERE server IS NOT NULL AND run IS NOT NULL GROUP BY server",
    )?;
    let runs = runs.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
    let mut known = EarlierRuns::default();
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
