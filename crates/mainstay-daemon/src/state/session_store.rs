//! Client sessions on disk, so that they outlive the daemon: the proxy's [`StateStore`].
//!
//! A database (WAL, `synchronous=NORMAL`) with one writer thread. Callers only queue
//! changes: per session and per server the newest change replaces the one before it, so the queue
//! is bounded by the number of sessions, however slow the disk is. If a write fails,
//! the changes stay queued and are retried. Beyond a limit, which only ten thousands of sessions that are opened and ended
//! during that time can reach, further changes are dropped with an error in the log.
//!
//! Streams are recorded in the [`StreamJournal`].
//!
//! Sessions of absent clients may be only here, and are [found](mainstay_proxy::SessionStore::find) by id. The writer thread also
//! reads, so an unknown id or a slow disk delays no other request. The file holds at most 200,000 sessions;
//! see [`Database`] for which are removed.
//!
//! Opening never fails: a damaged file is moved aside. If the file cannot be used, or a newer program wrote it, sessions
//! are in memory only.

mod database;
mod era;
mod pending;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mainstay_proxy::{
    RecordLookup, SessionRecord, StateStore, StreamChange, StreamKey, StreamRecord, Unreadable,
    Written,
};
use tokio::sync::oneshot;

use self::database::Database;
use self::era::Era;
use self::pending::{Change, Full, Pending};
use crate::clock;
use crate::state::schemas::SESSIONS;
use crate::state::stream_journal::StreamJournal;

/// The delay before a failed write is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// How many lookups may be pending.
const MAX_LOOKUPS: usize = 4096;

/// A handle to the sessions on disk. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct SessionStore {
    shared: Arc<Shared>,
}

/// What an earlier daemon has stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveredState {
    /// The sessions that were used last, and those with streams. Others are loaded on demand.
    pub(crate) sessions: Vec<SessionRecord>,
    /// The list copies, each with its server.
    pub(crate) copies: Vec<(String, Vec<u8>)>,
    /// The streams of sessions, oldest first.
    pub(crate) streams: Vec<StreamRecord>,
    /// Whether the file could not be read, so that clients may have unknown sessions.
    pub(crate) lost: bool,
    /// The saved value of the session clock.
    pub(crate) clock: Duration,
}

impl SessionStore {
    /// Opens or creates the file, and reads it. Streams are recorded in a directory, with
    /// the number of this daemon.
    pub(crate) fn open(path: &Path, streams_dir: &Path, daemon: u64) -> (Self, RecoveredState) {
        let (journal, streams) = StreamJournal::open(streams_dir, daemon);
        let last_era = era::recorded(path);
        let with_streams: Vec<&str> = streams.iter().map(|stream| &*stream.key.session).collect();
        let opened = SESSIONS.or_quarantine(path, || Database::open(path, &with_streams));
        let ((database, recovered), lost) = match opened {
            Ok((opened, lost)) => (opened, lost),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "sessions are in memory only: they will not outlive this daemon"
                );
                let recovered = RecoveredState { lost: true, streams, ..RecoveredState::default() };
                let era = Era::begin(path, None, false);
                let database = Database::in_memory().ok();
                return (Self::new(database, journal, era, HashMap::new()), recovered);
            }
        };
        let sessions = recovered.sessions.iter();
        let servers = sessions.map(|session| (session.id.clone(), session.server.clone()));
        let era = Era::begin(path, last_era.filter(|_| !lost), true);
        let store = Self::new(Some(database), journal, era, servers.collect());
        (store, RecoveredState { streams, lost, ..recovered })
    }

    /// Writes pending changes and closes the file. Later changes are dropped.
    pub(crate) fn close(&self) {
        let writer = {
            let mut state = self.shared.lock();
            state.closed = true;
            state.writer.take()
        };
        self.shared.journal.close();
        self.shared.changed.notify_one();
        let ended = writer.map(JoinHandle::join);
        if let Some(Err(_)) = &ended {
            tracing::error!("the writer of sessions panicked");
        }
        let mut state = self.shared.lock();
        if let Some(Ok(())) = ended
            && state.pending.is_empty()
        {
            self.shared.era.close();
        }
        // Pending lookups fail.
        state.lookups.clear();
        state.waiting.clear();
    }

    fn new(
        database: Option<Database>,
        journal: StreamJournal,
        era: Era,
        servers: HashMap<String, String>,
    ) -> Self {
        let shared = Arc::new(Shared {
            era,
            state: Mutex::new(State { closed: database.is_none(), servers, ..State::default() }),
            changed: Condvar::new(),
            journal,
        });
        if let Some(mut database) = database {
            let of_writer = shared.clone();
            let writer = thread::Builder::new()
                .name("sessions".to_owned())
                .spawn(move || of_writer.run(&mut database))
                .expect("the system can start a thread");
            shared.lock().writer = Some(writer);
        }
        Self { shared }
    }

    /// Changes when records of sessions may have been lost.
    pub(crate) fn era(&self) -> u32 {
        self.shared.era.number
    }

    /// Restores the journal of streams if it was removed.
    pub(crate) fn restore_journal(&self) {
        self.shared.journal.restore();
    }

    /// Queues a change. Returns whether it was accepted.
    fn change(&self, change: impl FnOnce(&mut State) -> Result<(), Full>) -> bool {
        let mut state = self.shared.lock();
        if state.closed {
            return false;
        }
        let changed = change(&mut state);
        if let Err(Full) = changed {
            tracing::error!("a change of a session was dropped: too many wait for the disk");
        }
        drop(state);
        self.shared.changed.notify_one();
        changed.is_ok()
    }
}

impl mainstay_proxy::SessionStore for SessionStore {
    fn written(&self) -> Written {
        let (waiting, done) = oneshot::channel();
        let mut state = self.shared.lock();
        if !state.closed {
            state.waiting.push(waiting);
        }
        drop(state);
        self.shared.changed.notify_one();
        // The sender is only dropped.
        Box::pin(async { drop(done.await) })
    }

    fn find(&self, id: &str) -> RecordLookup {
        let (answer, found) = oneshot::channel();
        let mut state = self.shared.lock();
        // If it is not queued, the channel closes and the lookup fails.
        if !state.closed && state.lookups.len() < MAX_LOOKUPS {
            state.lookups.push(Lookup { id: id.to_owned(), answer });
        }
        drop(state);
        self.shared.changed.notify_one();
        Box::pin(async { found.await.unwrap_or(Err(Unreadable)) })
    }
}

impl StateStore for SessionStore {
    fn save(&self, record: SessionRecord) {
        self.change(|state| {
            if !state.servers.contains_key(&record.id) {
                state.servers.insert(record.id.clone(), record.server.clone());
            }
            state.pending.change(record.id.clone(), Change::Save(Box::new(record)))
        });
    }

    fn touched(&self, now: Duration, used: Vec<(String, Duration)>) {
        self.shared.journal.catch_up();
        self.change(|State { pending, .. }| {
            pending.clock = Some(now);
            used.into_iter().try_for_each(|(id, at)| pending.change(id, Change::Touch(at)))
        });
    }

    fn move_to_disk(&self, record: SessionRecord) -> bool {
        let id = record.id.clone();
        let is_queued = self.change(|state| {
            // Without the database the session would be lost.
            if state.writer.is_none() {
                return Err(Full);
            }
            state.pending.change(id.clone(), Change::Save(Box::new(record)))?;
            state.servers.remove(&id);
            Ok(())
        });
        if is_queued {
            self.shared.journal.end(&id);
        }
        is_queued
    }

    fn remove(&self, id: &str) {
        self.change(|state| {
            state.servers.remove(id);
            state.pending.change(id.to_owned(), Change::Remove)
        });
        self.shared.journal.end(id);
    }

    fn save_copy(&self, server: &str, copy: Vec<u8>) {
        self.change(|state| {
            state.pending.save_copy(server.to_owned(), copy);
            Ok(())
        });
    }

    fn remove_server(&self, server: &str) {
        let mut ended = Vec::new();
        self.change(|state| {
            ended.extend(state.servers.extract_if(|_, of| of == server).map(|(id, _)| id));
            state.pending.remove_server(server.to_owned());
            Ok(())
        });
        for id in ended {
            self.shared.journal.end(&id);
        }
    }

    fn append_to_journal(&self, stream: &StreamKey, change: StreamChange) -> bool {
        self.shared.journal.note(stream, change)
    }
}

#[derive(Debug)]
struct Shared {
    era: Era,
    state: Mutex<State>,
    changed: Condvar,
    journal: StreamJournal,
}

#[derive(Debug, Default)]
struct State {
    pending: Pending,
    /// The servers of all sessions, by their ids.
    servers: HashMap<String, String>,
    /// Pending lookups.
    lookups: Vec<Lookup>,
    /// Dropped when what was pending is written, or cannot be.
    waiting: Vec<oneshot::Sender<()>>,
    closed: bool,
    writer: Option<JoinHandle<()>>,
}

/// A pending lookup of a session.
#[derive(Debug)]
struct Lookup {
    id: String,
    answer: oneshot::Sender<Result<Option<SessionRecord>, Unreadable>>,
}

impl Shared {
    /// The writer thread. All pending changes are written in one transaction. If that fails, they are retried later.
    fn run(&self, database: &mut Database) {
        let mut retry_at: Option<Instant> = None;
        let mut state = self.lock();
        loop {
            let lookups = std::mem::take(&mut state.lookups);
            if !lookups.is_empty() {
                drop(state);
                self.find_all(database, lookups);
                state = self.lock();
                continue;
            }
            let delay = retry_at.map(|at| at.saturating_duration_since(clock::now()));
            let delay = delay.filter(|delay| !delay.is_zero() && !state.closed);
            if delay.is_none() && !state.pending.is_empty() {
                let pending = std::mem::take(&mut state.pending);
                let _waiting = std::mem::take(&mut state.waiting);
                drop(state);
                let is_in_memory = |id: &str| self.lock().servers.contains_key(id);
                let written = database.write(&pending, is_in_memory);
                state = self.lock();
                let Err(error) = written else {
                    retry_at = None;
                    continue;
                };
                if retry_at.is_none() || state.closed {
                    tracing::error!(%error, "sessions cannot be written; they are kept in memory");
                }
                state.pending.put_back(pending);
                if state.closed {
                    return;
                }
                retry_at = Some(clock::now() + RETRY);
                continue;
            }
            // Nothing is left to write, or the last write failed.
            state.waiting.clear();
            if state.closed {
                return;
            }
            state = match delay {
                Some(delay) => {
                    let waited = self.changed.wait_timeout(state, delay);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Finds sessions among the pending changes, then on disk.
    fn find_all(&self, database: &Database, lookups: Vec<Lookup>) {
        for Lookup { id, answer } in lookups {
            let change = self.lock().pending.sessions.get(&id).cloned();
            let found = match change {
                Some(Change::Save(record)) => Ok(Some(*record)),
                Some(Change::Remove) => Ok(None),
                Some(Change::Touch(_)) | None => database.find(&id),
            };
            let found = found.map_err(|error| {
                tracing::warn!(%error, "a session cannot be read");
                Unreadable
            });
            let exists = |found: &SessionRecord| {
                !self.lock().pending.removed_servers.contains(&found.server)
            };
            // The receiver may have been dropped.
            answer.send(found.map(|found| found.filter(exists))).ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

#[cfg(test)]
mod tests;
