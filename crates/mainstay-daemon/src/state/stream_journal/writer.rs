//! The thread that writes the journal.
//!
//! A write takes microseconds, unless the disk stalls. It is therefore never made on the runtime's
//! thread, which only waits for its end, and not for long.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::entry::Entry;
use super::file::{self, JournalFile};

#[derive(Debug)]
pub(super) enum Job {
    /// Adds encoded entries to the file. If that fails, the file is emptied.
    Append(Vec<u8>),
    /// Writes a new file with these entries, in place of the old one.
    Rewrite {
        entries: Vec<Entry>,
        /// Whether the old one is out of date, and is emptied if there can be no new one.
        or_wipe: bool,
    },
    /// Simulates a full disk.
    #[cfg(test)]
    FillDisk,
    /// Simulates a stalled disk until the sender is dropped.
    #[cfg(test)]
    Stall(Receiver<()>),
}

/// How a job ended.
#[derive(Debug)]
pub(super) enum Done {
    /// The number of bytes that were added.
    Appended(io::Result<u64>),
    /// The length of the new file.
    Rewritten(io::Result<u64>),
    /// A later daemon has a journal of its own. Nothing was written.
    Replaced,
}

/// A handle on the thread, which has at most one job at a time.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    is_busy: bool,
}

impl Writer {
    /// Starts the thread. Without a journal, the first job must be a rewrite.
    pub(super) fn start(dir: PathBuf, number: u64, journal: Option<JournalFile>) -> Self {
        let (jobs, todo) = channel();
        let (report, done) = channel();
        let mut thread = Thread { dir, number, journal };
        let work = move || {
            while let Ok(job) = todo.recv() {
                if report.send(thread.execute(job)).is_err() {
                    return;
                }
            }
        };
        // It is never joined: a disk that stalls must not keep the daemon from exiting.
        let spawned = thread::Builder::new().name("stream journal".to_owned()).spawn(work);
        drop(spawned.expect("the system can start a thread"));
        Self { jobs, done, is_busy: false }
    }

    /// Whether a job is not done yet, as far as is known.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Starts a job. The previous one must be done.
    pub(super) fn execute(&mut self, job: Job) {
        debug_assert!(!self.is_busy);
        self.jobs.send(job).expect("the thread lives as long as this handle");
        self.is_busy = true;
    }

    /// Waits for the end of the job. `None` if it takes longer.
    pub(super) fn wait(&mut self, timeout: Duration) -> Option<Done> {
        let done = self.done.recv_timeout(timeout).ok()?;
        self.is_busy = false;
        Some(done)
    }
}

struct Thread {
    dir: PathBuf,
    number: u64,
    journal: Option<JournalFile>,
}

impl Thread {
    fn execute(&mut self, job: Job) -> Done {
        match job {
            Job::Append(entries) => Done::Appended(self.append(&entries)),
            Job::Rewrite { .. } if file::is_replaced(&self.dir, self.number) => Done::Replaced,
            Job::Rewrite { entries, or_wipe } => Done::Rewritten(self.rewrite(entries, or_wipe)),
            #[cfg(test)]
            Job::FillDisk => {
                self.journal.as_mut().expect("there is a file").fill_disk();
                Done::Appended(Ok(0))
            }
            #[cfg(test)]
            Job::Stall(released) => {
                released.recv().ok();
                Done::Appended(Ok(0))
            }
        }
    }

    fn append(&mut self, entries: &[u8]) -> io::Result<u64> {
        let Some(journal) = &mut self.journal else { return Err(io::ErrorKind::NotFound.into()) };
        match journal.append(entries) {
            Ok(()) => Ok(entries.len() as u64),
            Err(error) => {
                self.wipe();
                Err(error)
            }
        }
    }

    fn rewrite(&mut self, entries: Vec<Entry>, or_wipe: bool) -> io::Result<u64> {
        match JournalFile::create(&self.dir, self.number, entries) {
            Ok((journal, length)) => {
                self.journal = Some(journal);
                Ok(length)
            }
            Err(error) => {
                if or_wipe {
                    self.wipe();
                }
                Err(error)
            }
        }
    }

    fn wipe(&mut self) {
        if let Some(journal) = self.journal.take() {
            journal.wipe();
        }
    }
}
