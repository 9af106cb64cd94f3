//! Client sessions on disk, so that they outlive the daemon: the proxy's [`StateStore`].
//!
//! A database (WAL, `synchronous=NORMAL`) with one writer thread. Callers only queue
//! changes: per session and per server the newest change replaces the one before it, so the queue
//! is bounded by the number of sessions, however slow the disk is. If a write fails,
//! the changes stay queued and are retried. Beyond a limit, which only ten thousands of sessions that are opened and ended
//! during that time can reach, further changes are dropped with an error in the log.
//!
//! Streams are recorded separately, by [`StreamJournal`]: at once, and not for long.
//!
//! Sessions of absent clients may be only here, and are [found](mainstay_proxy::SessionStore::find) by id. The writer thread also
//! reads, so an unknown id or a slow disk delays no other request. The file holds at most 200,000 sessions;
//! see [`Database`] for which are removed.
//!
//! A daemon without sessions is better than none, so opening never
//! fails: a damaged file is moved aside. If the file cannot be used, or a newer program
//! wrote it, sessions are in memory only.

mod database;
mod era;
mod pending;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mainstay_proxy::{
    RecordLookup, SessionRecord, StateStore, StreamKey, StreamNews, StreamRecord, Unreadable,
    Written,
};
use tokio::sync::oneshot;

use self::database::Database;
use self::era::{Era, Found};
use self::pending::{Change, Full, Known, Pending};
use crate::clock;
use crate::state::schemas::SESSIONS;
use crate::state::store::StoreError;
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
        let found = Found::at(path);
        let with_streams: Vec<&str> = streams.iter().map(|stream| &*stream.key.session).collect();
        let opened = SESSIONS.or_quarantine(path, || Database::open(path, &with_streams));
        match opened {
            Ok(((database, recovered), lost)) => {
                let sessions = recovered.sessions.iter();
                let servers = sessions.map(|session| (session.id.clone(), session.server.clone()));
                let era = Era::begin(path, found, !lost, true);
                (
                    Self::new(Some(database), journal, era, servers.collect()),
                    RecoveredState { streams, lost, ..recovered },
                )
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "sessions are in memory only: they will not outlive this daemon"
                );
                let database = Database::in_memory().ok();
                (
                    Self::new(
                        database,
                        journal,
                        Era::begin(path, found, false, false),
                        HashMap::new(),
                    ),
                    RecoveredState { lost: true, streams, ..RecoveredState::default() },
                )
            }
        }
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
                .spawn(move || of_writer.write_all(&mut database))
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

    fn note(&self, stream: &StreamKey, news: StreamNews) -> bool {
        self.shared.journal.note(stream, news)
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

/// Work for the writer thread.
enum Work {
    Write(Pending, Vec<oneshot::Sender<()>>),
    Find(Vec<Lookup>),
}

impl Shared {
    /// The writer thread. All pending changes are written in one transaction.
    fn write_all(&self, database: &mut Database) {
        let mut retry = None;
        while let Some(work) = self.wait(retry) {
            let (pending, _waiting) = match work {
                Work::Write(pending, waiting) => (pending, waiting),
                Work::Find(lookups) => {
                    self.find_all(database, lookups);
                    continue;
                }
            };
            let is_in_memory = |id: &str| self.lock().servers.contains_key(id);
            let Err(error) = database.write(&pending, is_in_memory) else {
                retry = None;
                continue;
            };
            let mut state = self.lock();
            if retry.is_none() || state.closed {
                tracing::error!(%error, "sessions cannot be written; they are kept in memory");
            }
            state.pending.put_back(pending);
            if state.closed {
                return;
            }
            retry = Some(clock::now() + RETRY);
        }
    }

    /// Waits for work; `None` when closed. Changes that could not be written are retried at `retry`.
    fn wait(&self, retry: Option<Instant>) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if !state.lookups.is_empty() {
                return Some(Work::Find(std::mem::take(&mut state.lookups)));
            }
            let early = retry.map(|at| at.saturating_duration_since(clock::now()));
            let early = early.filter(|early| !early.is_zero() && !state.closed);
            if early.is_none() && !state.pending.is_empty() {
                let waiting = std::mem::take(&mut state.waiting);
                return Some(Work::Write(std::mem::take(&mut state.pending), waiting));
            }
            // Nothing is left to write, or the last write failed.
            state.waiting.clear();
            if state.closed {
                return None;
            }
            state = match early {
                Some(early) => {
                    let waited = self.changed.wait_timeout(state, early);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Finds sessions among the pending changes, then on disk.
    fn find_all(&self, database: &Database, lookups: Vec<Lookup>) {
        for Lookup { id, answer } in lookups {
            let known = self.lock().pending.find(&id);
            let found = match known {
                Known::Record(record) => Ok(Some(*record)),
                Known::Ended => Ok(None),
                Known::Nothing => database.find(&id),
            };
            let found = found.map_err(|error| {
                tracing::warn!(%error, "a session cannot be read");
                Unreadable
            });
            let is_there = |found: &SessionRecord| {
                !self.lock().pending.removed_servers.contains(&found.server)
            };
            // The caller may have given up.
            answer.send(found.map(|found| found.filter(is_there))).ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

/// Undoes the migration of a newer program that failed afterwards. If that fails, the file stays as it is.
pub(crate) fn undo_migration(path: &Path) {
    if let Err(error) = SESSIONS.undo_migration(path) {
        tracing::error!(%error, "the sessions from before the update cannot be restored");
    }
}

/// Copies the file, if it exists, without changing it. Fails if this program cannot migrate it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    SESSIONS.copy(from, to)
}

#[cfg(test)]
mod tests;
