//! The journal of streams of requests in flight, so that they outlive the daemon.
//!
//! Every change of a stream is written to a file in the run directory before it takes effect, so it
//! outlives a daemon that is killed. It is not flushed to the disk, because servers do not outlive the
//! machine either.
//!
//! All live streams are also in memory ([`live_streams`]), so the file can be rewritten when
//! most of it is about streams that are over. Each daemon has its own file, named by its number. It begins
//! with the content of the newest older file; then older files are removed.
//!
//! With an outdated record, a request might be sent twice. So if a change cannot be written, the file is emptied, and
//! rewritten as soon as possible. Until then, streams do not outlive the daemon, which is logged.
//!
//! A thread writes the file ([`writer`]), because a disk can stall. A change waits for it for [`WRITE_TIMEOUT`] at
//! most. During a stall, changes take effect before they are written, and streams that began before it are outdated
//! on disk. Their requests are therefore not sent before the stall is over; all others are.

mod entry;
mod file;
mod live_streams;
mod writer;

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mainstay_hold::limits::FLUSH_JOURNAL;
use mainstay_proxy::{StreamChange, StreamKey, StreamRecord};

use self::entry::{Change, Entry};
use self::file::JournalFile;
use self::live_streams::LiveStreams;
use self::writer::{Done, Job, Writer};
use crate::clock;

/// The delay before a failed rewrite is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// How long a change waits until it is written. After that, the disk counts as stalled, and no change waits until
/// it responds.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// The same for a disk that has responded after a stall, and may still be slow.
const WRITE_TIMEOUT_AFTER_STALL: Duration = Duration::from_millis(5);

/// How many bytes of changes are kept for a stalled disk. Beyond that, the file is rewritten after the stall.
const MAX_BACKLOG: usize = 4 * 1024 * 1024;

/// A file that is smaller is not rewritten to save room.
const MIN_REWRITE_BYTES: u64 = 4 * 1024 * 1024;

/// The streams of all sessions.
#[derive(Debug)]
pub(crate) struct StreamJournal {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    alive: LiveStreams,
    disk: Disk,
    writer: Writer,
    /// Encoded changes that are not written yet.
    backlog: Vec<u8>,
    /// Set while the disk is stalled: the streams that are on it, or may be.
    stalled: Option<HashSet<StreamKey>>,
    /// Whether changes were dropped from the backlog.
    overflowed: bool,
}

/// What is on disk.
#[derive(Debug)]
enum Disk {
    /// Everything but the backlog, in a file of this length.
    File {
        length: u64,
        /// A longer file is rewritten if most of it is about streams that are over.
        rewrite_beyond: u64,
    },
    /// Nothing, or an outdated file. It is rewritten at this time.
    Nothing {
        retry_at: Instant,
        /// Why, if that was not logged yet.
        reason: Option<io::Error>,
    },
    /// This daemon is ending, or another one has taken over.
    Closed,
}

/// The number of the newest daemon that left a journal of streams in this directory.
pub(crate) fn newest_daemon(dir: &Path) -> Option<u64> {
    file::newest_number(dir)
}

impl StreamJournal {
    /// Recovers what the newest daemon before the one of this number has left in the directory.
    pub(crate) fn open(dir: &Path, number: u64) -> (Self, Vec<StreamRecord>) {
        let mut alive = LiveStreams::default();
        if let Err(error) = read_newest(dir, &mut alive) {
            tracing::warn!(%error, "the streams of the last daemon cannot be read");
        }
        alive.forget_lost();
        let records = alive.records();
        let mut file = JournalFile::new(dir, number);
        let disk = match file.rewrite(alive.entries()) {
            Ok(length) => Disk::file(length),
            Err(error) => Disk::Nothing { retry_at: clock::now(), reason: Some(error) },
        };
        // Also if it failed: outdated records must not be read, and may be what fills the disk.
        if let Err(error) = file.remove_others() {
            tracing::error!(%error, "streams of an earlier daemon cannot be removed");
        }
        let writer = Writer::start(file);
        let mut state =
            State { alive, disk, writer, backlog: Vec::new(), stalled: None, overflowed: false };
        state.flush();
        (Self { state: Mutex::new(state) }, records)
    }

    /// Records a change of a stream. Returns false if the disk is stalled and its record of the request is that it was
    /// not sent: then it must not be sent now, and nothing is recorded.
    pub(crate) fn note(&self, stream: &StreamKey, change: StreamChange) -> bool {
        let mut state = self.lock();
        match change {
            StreamChange::Sent(_) => return state.record_sent(stream, change),
            // One write, so that the disk never has the first without the second.
            StreamChange::BegunSent(request, sent, attempts) => {
                state.add(stream, StreamChange::Begun(request));
                state.add_entry(Entry::Stream(stream.clone(), Change::Sent(sent, attempts)));
            }
            StreamChange::Begun(_)
            | StreamChange::Message(..)
            | StreamChange::Answered(..)
            | StreamChange::Abandoned(_)
            | StreamChange::Over => state.add(stream, change),
        }
        state.flush();
        true
    }

    /// Forgets all streams of a session.
    pub(crate) fn end(&self, session: &str) {
        let mut state = self.lock();
        if state.alive.has(session) {
            state.add_entry(Entry::Ended(Arc::from(session)));
            state.flush();
        }
    }

    /// Writes the file again if it was removed.
    pub(crate) fn restore(&self) {
        let mut state = self.lock();
        if matches!(state.disk, Disk::File { .. }) && !state.writer.is_busy() {
            // Adding nothing fails if the file was removed.
            state.writer.execute(Job::Append(Vec::new()));
        }
        state.flush();
    }

    /// Writes the backlog of a stall, if it is over.
    pub(crate) fn catch_up(&self) {
        let mut state = self.lock();
        if state.stalled.is_some() {
            state.flush();
        }
    }

    /// Writes the backlog. Later changes are not recorded.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.flush_within(FLUSH_JOURNAL);
        if state.stalled.is_some() {
            tracing::error!("the disk does not respond: the record of requests is out of date");
        }
        state.disk = Disk::Closed;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.state)
    }
}

impl Disk {
    fn file(length: u64) -> Self {
        Self::File { length, rewrite_beyond: MIN_REWRITE_BYTES }
    }
}

impl State {
    /// Records that a request is about to be sent.
    fn record_sent(&mut self, request: &StreamKey, change: StreamChange) -> bool {
        if self.stalled.is_some() {
            self.flush();
            if self.must_wait(request) {
                return false;
            }
        }
        let before = self.alive.changes(request);
        self.add(request, change);
        self.flush();
        if !self.must_wait(request) {
            return true;
        }
        // It is not sent, so what was just recorded is put back.
        for change in before {
            self.add_entry(Entry::Stream(request.clone(), change));
        }
        false
    }

    /// Whether the disk is stalled, and may have a record that this request was not sent.
    fn must_wait(&self, request: &StreamKey) -> bool {
        self.stalled.as_ref().is_some_and(|on_disk| on_disk.contains(request))
    }

    /// Adds a change to the backlog, if it changes anything.
    fn add(&mut self, stream: &StreamKey, change: StreamChange) {
        if let Some(entry) = self.alive.entry(stream, change) {
            self.add_entry(entry);
        }
    }

    fn add_entry(&mut self, entry: Entry) {
        if !matches!(self.disk, Disk::Closed) {
            entry.encode(&mut self.backlog);
            self.alive.apply(entry);
        }
    }

    /// Writes the backlog. If the disk is stalled, it does not wait for it.
    fn flush(&mut self) {
        let timeout = if self.stalled.is_some() { Duration::ZERO } else { WRITE_TIMEOUT };
        self.flush_within(timeout);
    }

    fn flush_within(&mut self, mut timeout: Duration) {
        loop {
            if self.writer.is_busy() {
                match self.writer.wait(timeout) {
                    Some(done) => self.finished(done),
                    None => return self.stall(),
                }
                // The disk has responded.
                timeout = timeout.max(WRITE_TIMEOUT_AFTER_STALL);
            }
            let Some(job) = self.next_job() else { break };
            self.writer.execute(job);
        }
        if self.stalled.take().is_some() && matches!(self.disk, Disk::File { .. }) {
            tracing::info!("the disk responds again: requests in flight outlive this daemon");
        }
        if self.is_mostly_over() {
            // The old file is up to date meanwhile, so only the next change waits for the new one.
            let entries = self.alive.entries().collect();
            self.writer.execute(Job::Rewrite { entries, or_wipe: false });
        }
    }

    /// What to write next.
    fn next_job(&mut self) -> Option<Job> {
        match &self.disk {
            Disk::File { .. } if !self.backlog.is_empty() => {
                Some(Job::Append(std::mem::take(&mut self.backlog)))
            }
            Disk::Nothing { retry_at, .. } => {
                self.backlog.clear();
                let is_due = clock::now() >= *retry_at;
                is_due.then(|| Job::Rewrite {
                    entries: self.alive.entries().collect(),
                    or_wipe: true,
                })
            }
            Disk::File { .. } | Disk::Closed => None,
        }
    }

    /// Whether most of the file is about streams that are over.
    fn is_mostly_over(&self) -> bool {
        matches!(self.disk, Disk::File { length, rewrite_beyond }
            if length > rewrite_beyond && length / 2 > self.alive.bytes() as u64)
    }

    fn finished(&mut self, done: Done) {
        let now = clock::now();
        match (done, &mut self.disk) {
            (_, Disk::Closed) | (Done::Appended(Ok(_)), Disk::Nothing { .. }) => {}
            (Done::Replaced, disk) => *disk = Disk::Closed,
            (Done::Appended(Ok(bytes)), Disk::File { length, .. }) => *length += bytes,
            (Done::Appended(Err(error)), disk) => {
                *disk = Disk::Nothing { retry_at: now, reason: Some(error) };
            }
            (Done::Rewritten(Ok(length)), disk) => {
                if let Disk::Nothing { reason: None, .. } = disk {
                    tracing::info!("requests in flight outlive this daemon again");
                }
                *disk = Disk::file(length);
            }
            // The old file is still good.
            (Done::Rewritten(Err(error)), Disk::File { length, rewrite_beyond }) => {
                tracing::debug!(%error, "the file of streams cannot be rewritten");
                *rewrite_beyond = *length + MIN_REWRITE_BYTES;
            }
            (Done::Rewritten(Err(_)), Disk::Nothing { retry_at, reason }) => {
                if let Some(error) = reason.take() {
                    tracing::warn!(%error, "requests in flight do not outlive this daemon for now");
                }
                *retry_at = now + RETRY;
            }
        }
        if std::mem::take(&mut self.overflowed) && !matches!(self.disk, Disk::Closed) {
            let reason = io::Error::other("too much was to be written while the disk was stalled");
            self.disk = Disk::Nothing { retry_at: now, reason: Some(reason) };
        }
    }

    fn stall(&mut self) {
        if self.stalled.is_none() {
            tracing::warn!("the disk is stalled: requests in flight do not outlive this daemon");
            self.stalled = Some(self.alive.keys().cloned().collect());
        }
        if self.backlog.len() > MAX_BACKLOG {
            self.backlog = Vec::new();
            self.overflowed = true;
        }
    }
}

/// Reads what the newest daemon has left.
fn read_newest(dir: &Path, alive: &mut LiveStreams) -> io::Result<()> {
    let Some(file) = file::newest(dir)? else { return Ok(()) };
    let Some(mut entries) = entry::read(&file) else {
        tracing::warn!("the journal of the last daemon has an unknown format");
        return Ok(());
    };
    for entry in entries.by_ref() {
        alive.apply(entry);
    }
    if entries.left() > 0 {
        tracing::debug!(bytes = entries.left(), "the last entry of the last daemon is incomplete");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
