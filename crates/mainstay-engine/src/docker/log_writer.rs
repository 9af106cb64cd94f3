//! Writes the logs of containers on a thread of its own, so that a disk that does not answer blocks only the
//! logs.
//!
//! Writes wait in a bounded queue. If it is full, they are dropped, and the log notes how many bytes.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use mainstay_core::ServerName;
use mainstay_hold::launch::LogConfig;
use mainstay_hold::log::Log;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::{EngineError, logs};

/// Writes that wait for the disk. Most are a few lines; none is longer than what an engine sends at once.
const QUEUE: usize = 1024;

/// How long a reader waits for what was written before.
const FLUSH: Duration = Duration::from_secs(1);

/// A handle to the writer thread. Clones share it; the thread ends with the last one.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter {
    queue: SyncSender<Job>,
}

/// The log of one container, which is written by that thread.
#[derive(Debug)]
pub(crate) struct ContainerLog {
    writer: LogWriter,
    server: ServerName,
    /// Bytes that were dropped since the last write.
    dropped: usize,
}

#[derive(Debug)]
enum Job {
    Write(ServerName, Text),
    /// Everything before it is written when this is answered.
    Flush(oneshot::Sender<()>),
    /// Closes the log of a server and removes its files.
    Remove(ServerName, oneshot::Sender<Result<(), EngineError>>),
}

#[derive(Debug)]
enum Text {
    /// What the server wrote, as it is.
    Bytes(Vec<u8>),
    /// Lines by Mainstay, which never share a line with the server's output.
    Lines(Vec<u8>),
}

impl LogWriter {
    /// Starts the thread, for logs in this directory.
    pub(crate) fn start(dir: PathBuf, max_bytes: u64, keep: u32) -> io::Result<Self> {
        let (queue, jobs) = sync_channel(QUEUE);
        let config = move |server: &ServerName| {
            let path = dir.join(format!("{server}.log"));
            LogConfig { path, max_bytes, keep }
        };
        thread::Builder::new()
            .name("container-logs".to_owned())
            .spawn(move || write_all(&jobs, config))?;
        Ok(Self { queue })
    }

    pub(crate) fn log(&self, server: &ServerName) -> ContainerLog {
        ContainerLog { writer: self.clone(), server: server.clone(), dropped: 0 }
    }

    /// Waits until all earlier writes are on disk, for at most [`FLUSH`].
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.queue.try_send(Job::Flush(done)).is_ok() {
            timeout(FLUSH, flushed).await.map(drop).ok();
        }
    }

    /// Removes the log of a server.
    pub(crate) async fn remove(&self, server: &ServerName) -> Result<(), EngineError> {
        let (done, removed) = oneshot::channel();
        let mut job = Job::Remove(server.clone(), done);
        let removed = async {
            while let Err(TrySendError::Full(again)) = self.queue.try_send(job) {
                job = again;
                sleep(Duration::from_millis(5)).await;
            }
            removed.await.ok()
        };
        let late = || EngineError::io("removing the log")(io::ErrorKind::TimedOut.into());
        timeout(FLUSH, removed).await.ok().flatten().unwrap_or_else(|| Err(late()))
    }
}

impl ContainerLog {
    /// Adds bytes as they are.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.put(Text::Bytes(bytes.to_vec()), bytes.len());
    }

    /// Adds lines by Mainstay, which never share a line with the server's output.
    pub(crate) fn write_lines(&mut self, text: &[u8]) {
        self.put(Text::Lines(text.to_vec()), text.len());
    }

    fn put(&mut self, text: Text, length: usize) {
        if self.dropped > 0 {
            let note = format!("[{} bytes were dropped: the disk was too slow]", self.dropped);
            if !self.queue(Text::Lines(note.into_bytes())) {
                self.dropped += length;
                return;
            }
            self.dropped = 0;
        }
        if !self.queue(text) {
            self.dropped += length;
        }
    }

    /// Whether there was room in the queue.
    fn queue(&self, text: Text) -> bool {
        match self.writer.queue.try_send(Job::Write(self.server.clone(), text)) {
            // Without the thread, the daemon is about to end.
            Ok(()) | Err(TrySendError::Disconnected(_)) => true,
            Err(TrySendError::Full(_)) => false,
        }
    }
}

fn write_all(jobs: &Receiver<Job>, config: impl Fn(&ServerName) -> LogConfig) {
    let mut logs: HashMap<ServerName, Log> = HashMap::new();
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Write(server, text) => {
                let new = |server: &ServerName| Log::new(config(server));
                let log = logs.entry(server).or_insert_with_key(new);
                match text {
                    Text::Bytes(bytes) => log.write(&bytes),
                    Text::Lines(lines) => log.write_lines(&lines),
                }
            }
            Job::Flush(done) => drop(done.send(())),
            Job::Remove(server, done) => {
                logs.remove(&server);
                let path = config(&server).path;
                let dir = path.parent().expect("a log is in a directory");
                drop(done.send(logs::remove(dir, &server)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn server() -> ServerName {
        "time".parse().unwrap()
    }

    fn without_times(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| line.split_once("Z ").unwrap().1.to_owned()).collect()
    }

    #[tokio::test]
    async fn writes_are_visible_after_a_flush_and_gone_after_a_removal() {
        let dir = tempfile::tempdir().unwrap();
        let writer = LogWriter::start(dir.path().to_owned(), 10_000, 1).unwrap();
        let (mut first, mut second) = (writer.log(&server()), writer.log(&server()));
        first.write(b"half");
        second.write_lines(b"--- end ---");
        writer.flush().await;
        let path = dir.path().join("time.log");
        assert_eq!(without_times(&path), ["half", "--- end ---"]);
        writer.remove(&server()).await.unwrap();
        assert!(!path.exists());
        first.write(b"again\n");
        writer.flush().await;
        assert_eq!(without_times(&path), ["again"]);
    }

    /// A pipe without a reader cannot be opened for writing until there is one, like a file on a disk that stalls.
    #[tokio::test]
    async fn a_disk_that_stalls_does_not_block_and_the_log_notes_dropped_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("time.log");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let writer = LogWriter::start(dir.path().to_owned(), 10_000_000, 1).unwrap();
        let mut log = writer.log(&server());
        log.write(b"first\n");
        // Until the thread has taken it, and waits for the disk.
        while writer.queue.try_send(Job::Flush(oneshot::channel().0)).is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..100 {
            log.write(b"0123456789\n");
        }
        assert_eq!(log.dropped, 100 * 11);
        assert!(writer.remove(&server()).await.is_err(), "it does not wait for ever");
        let reader = thread::spawn(move || {
            let mut text = Vec::new();
            io::Read::read_to_end(&mut fs::File::open(path).unwrap(), &mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        let dropped = log.dropped;
        while log.dropped > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            log.write(b"later\n");
        }
        drop((log, writer));
        let text = reader.join().unwrap();
        let noted =
            text.lines().any(|line| line.ends_with(" bytes were dropped: the disk was too slow]"));
        assert!(noted && text.ends_with(" later\n"), "{dropped}: {text}");
    }
}
