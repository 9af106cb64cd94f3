//! Streams of requests in flight, so that they outlive the daemon.
//!
//! What becomes of a stream is written to a file in the run directory the moment it is said: it is in
//! the hands of the system when [`Calls::note`] returns, so it outlives a daemon that is killed. It is
//! not flushed to the disk, as the servers themselves do not outlive the machine either.
//!
//! Everything that is alive is also kept in memory ([`alive`]), so the file can be written anew whenever
//! most of it is about streams that are over. Each daemon has a file of its own, by its number; it begins
//! with what the newest one before it said, and then the older ones are removed.
//!
//! A record that is out of date would be worse than none: a request might be sent twice. So when a note
//! cannot be written, the file is emptied, and everything is written anew as soon as that is possible.
//! Until then, streams do not outlive the daemon, and the log says so.

mod alive;
mod entry;
mod file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mainstay_proxy::{StreamKey, StreamNews, StreamRecord};

use self::alive::Alive;
use self::entry::Entry;
use self::file::Journal;
use crate::clock;

/// How long to wait with the next try after the disk has refused.
const RETRY: Duration = Duration::from_secs(5);

/// How much room for one entry is kept between two of them.
const BUFFER: usize = 64 * 1024;

/// The streams of all sessions.
#[derive(Debug)]
pub(crate) struct Calls {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    dir: PathBuf,
    number: u64,
    alive: Alive,
    paper: Paper,
    buffer: Vec<u8>,
}

/// What there is to write on.
#[derive(Debug)]
enum Paper {
    /// All is well.
    File(Journal),
    /// The disk has refused; it is tried again then.
    None { again: Instant },
    /// This daemon ends, or another has taken over.
    Closed,
}

impl Calls {
    /// Takes up what the newest daemon before the one of this number has left in the directory.
    pub(crate) fn open(dir: &Path, number: u64) -> (Self, Vec<StreamRecord>) {
        let mut alive = Alive::default();
        if let Err(error) = file::make_dir(dir).and_then(|()| recall(dir, &mut alive)) {
            tracing::warn!(%error, "the streams of the last daemon cannot be read");
        }
        alive.forget_lost();
        let records = alive.records();
        let mut state = State {
            dir: dir.to_owned(),
            number,
            alive,
            paper: Paper::None { again: clock::now() },
            buffer: Vec::new(),
        };
        let first = Journal::write_anew(dir, number, &state.alive);
        // Also if it failed: what is out of date must not be read, and may be what fills the disk.
        if let Err(error) = file::clear(dir, number) {
            tracing::error!(%error, "streams of an earlier daemon stay behind");
        }
        match first {
            Ok(journal) => state.paper = Paper::File(journal),
            Err(error) => state.write_anew(Some(&error)),
        }
        (Self { state: Mutex::new(state) }, records)
    }

    /// Takes note of what became of a stream.
    pub(crate) fn note(&self, stream: &StreamKey, news: StreamNews) {
        let mut state = self.lock();
        if let Some(entry) = state.alive.entry(stream, news) {
            state.take(entry);
        }
    }

    /// Forgets all streams of a session.
    pub(crate) fn end(&self, session: &str) {
        let mut state = self.lock();
        if state.alive.has(session) {
            state.take(Entry::Ended(Arc::from(session)));
        }
    }

    /// What is said from now on is not kept.
    pub(crate) fn close(&self) {
        self.lock().paper = Paper::Closed;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

impl State {
    fn take(&mut self, entry: Entry) {
        if matches!(self.paper, Paper::Closed) {
            return;
        }
        self.buffer.clear();
        entry.encode(&mut self.buffer);
        self.alive.take(entry);
        match &mut self.paper {
            Paper::File(journal) => match journal.append(&self.buffer) {
                Ok(()) if journal.is_wasteful(self.alive.bytes()) => self.tidy_up(),
                Ok(()) => {}
                Err(error) => {
                    journal.wipe();
                    self.write_anew(Some(&error));
                }
            },
            Paper::None { again } if clock::now() >= *again => self.write_anew(None),
            Paper::None { .. } | Paper::Closed => {}
        }
        self.buffer.shrink_to(BUFFER);
    }

    /// Writes the file anew because most of it is of no use any more. The old one is good, too.
    fn tidy_up(&mut self) {
        if file::is_replaced(&self.dir, self.number) {
            self.paper = Paper::Closed;
        }
        let Paper::File(journal) = &mut self.paper else { return };
        match Journal::write_anew(&self.dir, self.number, &self.alive) {
            Ok(tidy) => *journal = tidy,
            Err(error) => {
                tracing::debug!(%error, "the file of streams cannot be written anew");
                journal.go_on();
            }
        }
    }

    /// Writes everything anew, because what was on disk is out of date: for the reason given, if that is
    /// new.
    fn write_anew(&mut self, reason: Option<&io::Error>) {
        if file::is_replaced(&self.dir, self.number) {
            self.paper = Paper::Closed;
            return;
        }
        match (Journal::write_anew(&self.dir, self.number, &self.alive), reason) {
            (Ok(journal), reason) => {
                if reason.is_none() {
                    tracing::info!("requests in flight outlive this daemon again");
                }
                self.paper = Paper::File(journal);
            }
            (Err(_), reason) => {
                if let Some(error) = reason {
                    tracing::warn!(%error, "requests in flight do not outlive this daemon for now");
                }
                self.paper = Paper::None { again: clock::now() + RETRY };
            }
        }
    }
}

/// Reads what the newest daemon has left.
fn recall(dir: &Path, alive: &mut Alive) -> io::Result<()> {
    let Some(file) = file::newest(dir)? else { return Ok(()) };
    let Some(mut entries) = entry::read(&file) else {
        tracing::warn!("the streams of the last daemon are in a form that is not known here");
        return Ok(());
    };
    for entry in entries.by_ref() {
        alive.take(entry);
    }
    match entries.left() {
        0 => {}
        left => tracing::debug!(left, "the last note of the last daemon was cut short"),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
