//! The daemon's own log. A thread writes it, so a disk that does not respond blocks nothing else.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use mainstay_core::panics;
use mainstay_hold::limits::FLUSH_LOG;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

use crate::Config;

/// When the log is rotated; one old one is kept.
const MAX_BYTES: u64 = 5 * 1024 * 1024;

/// Lines that wait for the disk; further lines are dropped.
const QUEUE: usize = 4096;

/// Sends traces to standard error or to the log file. The log must be flushed before the daemon exits.
pub(crate) fn set_up(config: &Config) -> io::Result<Log> {
    let filter = config.log_filter.as_deref().unwrap_or("info");
    let filter: Targets = filter
        .parse()
        .map_err(|error| io::Error::other(format!("the filter `{filter}`: {error}")))?;
    let foreground = config.foreground;
    let file = if foreground { None } else { Some(LogFile::open(config.instance.daemon_log())) };
    let (to, unusable): (Box<dyn Write + Send>, _) = match file {
        None => (Box::new(io::stderr()), None),
        Some(Ok(file)) => (Box::new(file), None),
        // The holder keeps the last lines of standard error. A daemon without a log is better than none.
        Some(Err(error)) => (Box::new(io::stderr()), Some(error)),
    };
    let log = Log::start(to)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(foreground && io::stderr().is_terminal())
        .with_writer(log.clone());
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(io::Error::other)?;
    let panic_log = log.clone();
    std::panic::set_hook(Box::new(move |panic| on_panic(panic, &panic_log, foreground)));
    if let Some(error) = unusable {
        tracing::error!(%error, "the log file cannot be used");
    }
    Ok(log)
}

/// Logs a panic once, and aborts the daemon unless the panic is [caught](panics). The holder, which reads
/// standard error, then starts the next daemon.
fn on_panic(panic: &PanicHookInfo<'_>, log: &Log, foreground: bool) {
    if panics::is_caught() {
        return tracing::error!(%panic, "a task panicked; the daemon continues");
    }
    tracing::error!(%panic, "the daemon panicked; the holder starts another one");
    if !foreground {
        // There is nothing left to do if this fails.
        writeln!(io::stderr(), "{panic}").ok();
    }
    log.flush();
    process::abort();
}

/// A handle to the writer thread. Clones share it.
#[derive(Clone)]
pub(crate) struct Log {
    lines: SyncSender<Line>,
}

enum Line {
    Text(Vec<u8>),
    /// All lines before it are written when this is dropped.
    Flush(SyncSender<()>),
}

impl Log {
    fn start(mut to: Box<dyn Write + Send>) -> io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&queue, &mut *to))?;
        Ok(Self { lines })
    }

    /// Waits until the lines so far are written, for at most [`FLUSH_LOG`].
    pub(crate) fn flush(&self) {
        let (written, done) = sync_channel(0);
        if self.lines.try_send(Line::Flush(written)).is_ok() {
            // Nothing is sent; the channel closes when the lines are written.
            done.recv_timeout(FLUSH_LOG).ok();
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // If the queue is full, the disk does not keep up, and the line is dropped.
        self.lines.try_send(Line::Text(line.to_vec())).ok();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes lines until all senders are gone. Lines that cannot be written are dropped.
fn write_all(queue: &Receiver<Line>, to: &mut dyn Write) {
    while let Ok(line) = queue.recv() {
        match line {
            Line::Text(text) => drop(to.write_all(&text)),
            Line::Flush(written) => drop(written),
        }
    }
}

/// A log file that is rotated when it grows too long. A full disk costs lines, nothing else.
struct LogFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = append(&path)?;
        let length = file.metadata()?.len();
        Ok(Self { path, file, length })
    }
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.length > MAX_BYTES {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
            (self.file, self.length) = (append(&self.path)?, 0);
        }
        self.file.write_all(line)?;
        self.length += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_in_order_and_the_file_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let log = Log::start(Box::new(LogFile::open(path.clone()).unwrap())).unwrap();
        let filler = vec![b'x'; usize::try_from(MAX_BYTES).unwrap()];
        for line in [&b"one\n"[..], &filler, b"two\n", b"three\n"] {
            (&log).write_all(line).unwrap();
        }
        while fs::read_to_string(&path).unwrap_or_default() != "two\nthree\n" {
            log.flush();
        }
        assert!(fs::read(path.with_extension("log.1")).unwrap().starts_with(b"one\nx"));
    }

    /// A pipe without a reader fills up, like a disk that stalls.
    #[test]
    fn a_stalled_disk_drops_lines_and_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let reader = File::options().read(true).write(true).open(&path).unwrap();
        let log = Log::start(Box::new(LogFile::open(path).unwrap())).unwrap();
        for _ in 0..2 * QUEUE {
            (&log).write_all(&[b'x'; 1000]).unwrap();
        }
        // The writer may have emptied a part of the queue until the pipe was full.
        let is_full = (0..QUEUE).any(|_| log.lines.try_send(Line::Text(Vec::new())).is_err());
        assert!(is_full, "writing does not wait");
        log.flush();
        drop(reader);
    }
}
