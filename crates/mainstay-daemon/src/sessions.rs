//! Client sessions on disk, so that they outlive the daemon: the proxy's [`Keeper`].
//!
//! A database of its own (WAL, `synchronous=NORMAL`), which one thread writes. Callers only note
//! what changed: per session and per server the newest change replaces the one before it, so what
//! waits for the disk is bounded by the sessions there are, however slow the disk is. If it refuses,
//! the changes stay and are tried again. Past a limit, which only sessions opened and ended by the
//! ten thousand during that time can reach, further ones are not kept, and the log says so.
//!
//! What becomes of their streams is kept apart, by [`Calls`]: it has to be kept at once, and not for long.
//!
//! Sessions are worth keeping, but a daemon without them is better than none, so opening never
//! fails: a damaged file is moved aside, and with one that cannot be used, or that a later program
//! wrote, sessions live in memory only.

mod database;
mod migrations;
mod pending;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use mainstay_proxy::{Keeper, SessionRecord, StreamKey, StreamNews, StreamRecord};

use self::database::Database;
use self::migrations::SESSIONS;
use self::pending::{Change, Full, Pending};
use crate::aside::set_aside;
use crate::calls::Calls;
use crate::store::StoreError;

/// How long to wait with the next try after the disk has refused.
const RETRY: Duration = Duration::from_secs(5);

/// A handle on the sessions on disk; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    shared: Arc<Shared>,
}

/// What an earlier daemon kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The sessions.
    pub(crate) sessions: Vec<SessionRecord>,
    /// The copies, each with its server.
    pub(crate) copies: Vec<(String, Vec<u8>)>,
    /// The streams of sessions, oldest first.
    pub(crate) streams: Vec<StreamRecord>,
    /// Whether there was a file that could not be read, so that clients have sessions we do not know.
    pub(crate) lost: bool,
}

impl Sessions {
    /// Opens the file, or begins a new one, and reads what is in it. Streams are kept in a directory, by
    /// the daemon of this number.
    pub(crate) fn open(path: &Path, streams_dir: &Path, daemon: u64) -> (Self, Kept) {
        let (calls, streams) = Calls::open(streams_dir, daemon);
        match open_or_replace(path) {
            Ok((database, kept)) => {
                let sessions = kept.sessions.iter();
                let servers = sessions.map(|session| (session.id.clone(), session.server.clone()));
                (Self::new(Some(database), calls, servers.collect()), Kept { streams, ..kept })
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "sessions live in memory only: they will not outlive this daemon"
                );
                let nobody = HashMap::new();
                (Self::new(None, calls, nobody), Kept { lost: true, streams, ..Kept::default() })
            }
        }
    }

    /// Writes what is left and closes the file. What is said afterwards is not kept.
    pub(crate) fn close(&self) {
        let writer = {
            let mut state = self.shared.lock();
            state.closed = true;
            state.writer.take()
        };
        self.shared.calls.close();
        self.shared.news.notify_one();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the writer of sessions had panicked");
        }
    }

    fn new(database: Option<Database>, calls: Calls, servers: HashMap<String, String>) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { closed: database.is_none(), servers, ..State::default() }),
            news: Condvar::new(),
            calls,
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

    fn change(&self, change: impl FnOnce(&mut State) -> Result<(), Full>) {
        let mut state = self.shared.lock();
        if state.closed {
            return;
        }
        if let Err(Full) = change(&mut state) {
            tracing::error!("a change to a session could not be kept: too many wait for the disk");
        }
        drop(state);
        self.shared.news.notify_one();
    }
}

impl Keeper for Sessions {
    fn save(&self, record: SessionRecord) {
        self.change(|state| {
            if !state.servers.contains_key(&record.id) {
                state.servers.insert(record.id.clone(), record.server.clone());
            }
            state.pending.change(record.id.clone(), Change::Save(Box::new(record)))
        });
    }

    fn touched(&self, used: Vec<(String, SystemTime)>) {
        self.change(|State { pending, .. }| {
            used.into_iter().try_for_each(|(id, at)| pending.change(id, Change::Touch(at)))
        });
    }

    fn remove(&self, id: &str) {
        self.change(|state| {
            state.servers.remove(id);
            state.pending.change(id.to_owned(), Change::Remove)
        });
        self.shared.calls.end(id);
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
            self.shared.calls.end(&id);
        }
    }

    fn note(&self, stream: &StreamKey, news: StreamNews) {
        self.shared.calls.note(stream, news);
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
    calls: Calls,
}

#[derive(Debug, Default)]
struct State {
    pending: Pending,
    /// The servers of all sessions, by their ids.
    servers: HashMap<String, String>,
    closed: bool,
    writer: Option<JoinHandle<()>>,
}

impl Shared {
    /// The writer: everything that is waiting goes into one transaction.
    fn write_all(&self, database: &mut Database) {
        let mut failing = false;
        while let Some(pending) = self.wait(failing) {
            let Err(error) = database.write(&pending) else {
                failing = false;
                continue;
            };
            let mut state = self.lock();
            if !failing || state.closed {
                tracing::error!(%error, "sessions cannot be written; they are kept in memory");
            }
            if state.closed {
                return;
            }
            failing = true;
            state.pending.put_back(pending);
        }
    }

    /// Waits for changes and takes them; nothing if none will come. After a failure, also old ones
    /// are taken again, when some time has passed.
    fn wait(&self, failing: bool) -> Option<Pending> {
        let mut state = self.lock();
        if failing && !state.closed {
            let waited = self.news.wait_timeout_while(state, RETRY, |state| !state.closed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        while state.pending.is_empty() {
            if state.closed {
                return None;
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut state.pending))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

/// Undoes what a newer program did to the file before it failed. If it cannot be undone, the file stays as
/// it is.
pub(crate) fn go_back(path: &Path) {
    if let Err(error) = SESSIONS.go_back(path) {
        tracing::error!(%error, "the sessions of before the update cannot be put back");
    }
}

/// Copies the file, if there is one, and changes nothing of it. One that this program cannot take over is
/// refused.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    SESSIONS.copy(from, to)
}

fn open_or_replace(path: &Path) -> Result<(Database, Kept), StoreError> {
    match Database::open(path) {
        Err(StoreError::Damaged { .. }) => {
            set_aside(path, "file of sessions");
            let (database, kept) = Database::open(path)?;
            Ok((database, Kept { lost: true, ..kept }))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
