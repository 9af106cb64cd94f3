//! The thread that writes the journal.
//!
//! A write takes microseconds, unless the disk stalls. So it is never made on the runtime's thread, which waits for its
//! end for a limited time only.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::entry::Entry;
use super::file::JournalFile;

#[derive(Debug)]
pub(super) enum Job {
    /// Adds encoded entries to the file. If that fails, the file is emptied.
    Append(Vec<u8>),
    /// Replaces the file by one with these entries.
    Rewrite {
        entries: Vec<Entry>,
        /// Whether the old file is outdated, and is emptied if it cannot be replaced.
        or_wipe: bool,
    },
    /// Simulates a full disk.
    #[cfg(test)]
    FillDisk,
    /// Simulates a stalled disk until the sender is dropped.
    #[cfg(test)]
    Stall(Receiver<()>),
}

/// The result of a job.
#[derive(Debug)]
pub(super) enum Done {
    /// The number of bytes that were added.
    Appended(io::Result<u64>),
    /// The length of the new file.
    Rewritten(io::Result<u64>),
    /// A later daemon has a journal of its own. Nothing was written.
    Replaced,
}

/// A handle to the thread, which has at most one job at a time.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    is_busy: bool,
}

impl Writer {
    pub(super) fn start(mut file: JournalFile) -> Self {
        let (jobs, queue) = channel();
        let (report, done) = channel();
        let work = move || {
            while let Ok(job) = queue.recv() {
                if report.send(execute(&mut file, job)).is_err() {
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

fn execute(file: &mut JournalFile, job: Job) -> Done {
    match job {
        Job::Append(entries) => Done::Appended(file.append(&entries)),
        Job::Rewrite { .. } if file.is_replaced() => Done::Replaced,
        Job::Rewrite { entries, or_wipe } => {
            let rewritten = file.rewrite(entries);
            if rewritten.is_err() && or_wipe {
                file.wipe();
            }
            Done::Rewritten(rewritten)
        }
        #[cfg(test)]
        Job::FillDisk => {
            let full = std::fs::File::options().write(true).open("/dev/full");
            file.file = Some(full.expect("every system has it"));
            Done::Appended(Ok(0))
        }
        #[cfg(test)]
        Job::Stall(released) => {
            released.recv().ok();
            Done::Appended(Ok(0))
        }
    }
}
