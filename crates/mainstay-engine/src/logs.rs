//! Reads servers' logs, which shims and [`LogWriter`](crate::docker) write and rotate.
//!
//! Memory is bounded: lines are streamed, an over-long one is cut, and a tail
//! holds no more than [`TAIL_BYTES`]. The files are opened at once, newest first, so that a rotation
//! in between hides no line.

mod lines;
mod selection;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_core::ServerName;
use mainstay_hold::record::if_exists;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::tasks::Tasks;
use crate::{EngineError, LogLine, LogRange};
use lines::{LogLines, Tail};
use selection::Selection;

/// Lines on their way to a reader.
const QUEUE: usize = 256;

/// How often a followed log is checked for new lines.
const POLL: Duration = Duration::from_millis(200);

/// The maximum number of rotated files.
const MAX_ROTATED: u32 = 100;

/// How much is read at a time.
const READ: usize = 64 * 1024;

/// The maximum size of a tail in memory.
const TAIL_BYTES: usize = 8 * 1024 * 1024;

/// Opens a server's log. A server that has not written anything has an empty one. The task that reads
/// it ends with the log, or when the receiver is dropped.
pub(crate) async fn open(
    tasks: &Tasks,
    dir: &Path,
    server: &ServerName,
    range: LogRange,
) -> Result<mpsc::Receiver<LogLine>, EngineError> {
    let current = current(dir, server);
    let files = open_files(dir, server).await.map_err(EngineError::io("opening the log"))?;
    let (lines, receiver) = mpsc::channel(QUEUE);
    let reader = Reader {
        splitter: LogLines::default(),
        selection: Selection::of(&range),
        tail: range.tail.map(|count| Tail::new(count, TAIL_BYTES)),
        lines,
    };
    tasks.spawn(async move {
        match reader.read(&current, files, range.follow).await {
            Ok(()) => {}
            // The receiver was dropped.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => {
                tracing::warn!(%error, path = %current.display(), "cannot read a log");
            }
        }
    });
    Ok(receiver)
}

/// Removes a server's log, with its rotated files.
pub(crate) fn remove(dir: &Path, server: &ServerName) -> Result<(), EngineError> {
    for path in rotated(dir, server).chain([current(dir, server)]) {
        if_exists(fs::remove_file(&path)).map_err(EngineError::io("removing the log"))?;
    }
    Ok(())
}

/// An open file of a log.
struct LogFile {
    file: File,
    inode: u64,
    /// Its length when it was opened. Later lines are for followers only.
    length: u64,
}

fn current(dir: &Path, server: &ServerName) -> PathBuf {
    dir.join(format!("{server}.log"))
}

/// The existing rotated files, newest first.
fn rotated(dir: &Path, server: &ServerName) -> impl Iterator<Item = PathBuf> {
    (1..=MAX_ROTATED)
        .map(move |number| dir.join(format!("{server}.log.{number}")))
        .take_while(|path| path.exists())
}

/// The files of a log, oldest first. They are opened newest first: a file that is renamed meanwhile is
/// opened twice instead of missed.
async fn open_files(dir: &Path, server: &ServerName) -> io::Result<Vec<LogFile>> {
    let mut files: Vec<LogFile> = Vec::new();
    for path in [current(dir, server)].into_iter().chain(rotated(dir, server)) {
        if let Some(opened) = open_file(&path).await?
            && files.iter().all(|file| file.inode != opened.inode)
        {
            files.push(opened);
        }
    }
    files.reverse();
    Ok(files)
}

async fn open_file(path: &Path) -> io::Result<Option<LogFile>> {
    let Some(file) = if_exists(File::open(path).await)? else { return Ok(None) };
    let found = file.metadata().await?;
    Ok(Some(LogFile { file, inode: found.ino(), length: found.len() }))
}

/// Reads the files of a log and sends the selected lines.
struct Reader {
    splitter: LogLines,
    selection: Selection,
    /// Collects the last lines until all files are read.
    tail: Option<Tail>,
    lines: mpsc::Sender<LogLine>,
}

impl Reader {
    /// Sends the selected lines of these files, and then new lines, if `follow`.
    async fn read(mut self, path: &Path, files: Vec<LogFile>, follow: bool) -> io::Result<()> {
        let mut last = None;
        for mut file in files {
            if last.is_some() {
                // A line does not continue in another file.
                self.end_line().await?;
            }
            let length = file.length;
            self.read_file(&mut file, length).await?;
            last = Some(file);
        }
        if !follow {
            self.end_line().await?;
        }
        for line in self.tail.take().into_iter().flat_map(|tail| tail.lines) {
            self.send(line).await?;
        }
        if follow { self.follow(path, last).await } else { Ok(()) }
    }

    /// Sends new lines until the receiver is dropped, across rotations.
    async fn follow(mut self, path: &Path, mut file: Option<LogFile>) -> io::Result<()> {
        loop {
            let now = tokio::fs::metadata(path).await.ok().map(|found| found.ino());
            if let Some(open) = &mut file {
                // A file that was rotated before `now` was read does not grow any more, so this is all of it.
                self.read_file(open, u64::MAX).await?;
            }
            if now.is_some() && file.as_ref().map(|open| open.inode) != now {
                self.end_line().await?;
                file = open_file(path).await?;
                continue;
            }
            tokio::select! {
                () = sleep(POLL) => {}
                () = self.lines.closed() => return Err(ErrorKind::BrokenPipe.into()),
            }
        }
    }

    /// Reads to the present end of a file, but no more than `limit` bytes.
    async fn read_file(&mut self, from: &mut LogFile, limit: u64) -> io::Result<()> {
        let mut file = (&mut from.file).take(limit);
        let mut chunk = Vec::with_capacity(READ);
        while file.read_buf(&mut chunk).await? > 0 {
            let lines: Vec<String> = self.splitter.push(&chunk).collect();
            self.select(lines).await?;
            chunk.clear();
        }
        Ok(())
    }

    /// The line so far is complete, although it has no line end.
    async fn end_line(&mut self) -> io::Result<()> {
        let line = self.splitter.finish();
        self.select(line).await
    }

    async fn send(&self, line: LogLine) -> io::Result<()> {
        Ok(self.lines.send(line).await.map_err(|_| ErrorKind::BrokenPipe)?)
    }

    /// Adds lines to the tail, or sends them if there is none.
    async fn select(&mut self, found: impl IntoIterator<Item = String>) -> io::Result<()> {
        for line in found {
            let Some(line) = self.selection.select(line) else { continue };
            match &mut self.tail {
                Some(tail) => tail.push(line),
                None => self.send(line).await?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use regex_lite::Regex;

    use super::*;

    /// A directory for the log of the server `time`.
    struct Logs {
        dir: tempfile::TempDir,
        tasks: Tasks,
    }

    impl Logs {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap(), tasks: Tasks::default() }
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let path = self.dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        }

        async fn open(&self, tail: Option<usize>, follow: bool) -> mpsc::Receiver<LogLine> {
            self.open_range(LogRange { tail, follow, ..LogRange::default() }).await
        }

        async fn open_range(&self, range: LogRange) -> mpsc::Receiver<LogLine> {
            let server = "time".parse().unwrap();
            open(&self.tasks, self.dir.path(), &server, range).await.unwrap()
        }

        async fn read(&self, tail: Option<usize>) -> Vec<String> {
            self.read_range(LogRange { tail, ..LogRange::default() }).await
        }

        async fn read_range(&self, range: LogRange) -> Vec<String> {
            let mut lines = self.open_range(range).await;
            let mut all = Vec::new();
            while let Some(line) = lines.recv().await {
                all.push(line.text);
            }
            all
        }
    }

    #[tokio::test]
    async fn rotated_files_come_first_and_the_tail_spans_them() {
        let logs = Logs::new();
        assert_eq!(logs.read(None).await, [""; 0]);
        logs.write("time.log.2", "a\n");
        logs.write("time.log.1", "b\nc\n");
        logs.write("time.log", "d\ne");
        assert_eq!(logs.read(None).await, ["a", "b", "c", "d", "e"]);
        assert_eq!(logs.read(Some(3)).await, ["c", "d", "e"]);
        assert_eq!(logs.read(Some(0)).await, [""; 0]);
    }

    #[tokio::test]
    async fn a_tail_counts_selected_lines_only() {
        let logs = Logs::new();
        let line = |second: u32, text: &str| format!("2026-05-01T14:03:{second:02}.000Z {text}\n");
        logs.write("time.log.1", "of an older version\n".to_owned() + &line(1, "a"));
        logs.write("time.log", [line(2, "b"), line(3, "ab"), line(4, "b")].concat());
        let range = LogRange {
            tail: Some(2),
            since: Some("2026-05-01T14:03:02Z".parse().unwrap()),
            grep: Some(Regex::new("^a?b$").unwrap()),
            ..LogRange::default()
        };
        assert_eq!(logs.read_range(range).await, ["ab", "b"]);
        let lines = logs.open(Some(4), false).await.recv().await.unwrap();
        assert_eq!((lines.at, lines.text.as_str()), ("2026-05-01T14:03:01Z".parse().ok(), "a"));
        assert_eq!(logs.read(None).await[0], "of an older version");
    }

    #[tokio::test]
    async fn a_follower_sees_new_lines_over_a_rotation() {
        let logs = Logs::new();
        let path = logs.write("time.log", "old\n");
        let mut lines = logs.open(Some(0), true).await;
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.recv().await.unwrap().text, "one");
        file.write_all(b"o\n").unwrap();
        fs::rename(&path, logs.dir.path().join("time.log.1")).unwrap();
        logs.write("time.log", "three\n");
        assert_eq!(lines.recv().await.unwrap().text, "two");
        assert_eq!(lines.recv().await.unwrap().text, "three");
    }

    #[tokio::test]
    async fn a_follower_of_a_missing_log_sees_its_first_line() {
        let logs = Logs::new();
        let mut lines = logs.open(None, true).await;
        logs.write("time.log", "first\n");
        assert_eq!(lines.recv().await.unwrap().text, "first");
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_cut_for_readers_and_followers() {
        let logs = Logs::new();
        let path = logs.write("time.log", vec![b'x'; 300_000]);
        let check = |line: &str| assert!(line.len() < 70_000 && line.ends_with("[cut]"), "{line}");
        for tail in [None, Some(1)] {
            let all = logs.read(tail).await;
            assert_eq!(all.len(), 1);
            check(&all[0]);
        }
        let mut lines = logs.open(None, true).await;
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(b"y\nnext\n").unwrap();
        check(&lines.recv().await.unwrap().text);
        assert_eq!(lines.recv().await.unwrap().text, "next");
    }

    #[tokio::test]
    async fn a_long_log_is_streamed_and_its_tail_is_bounded() {
        let logs = Logs::new();
        let text: Vec<u8> = (0..300_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        logs.write("time.log", text);
        let mut lines = logs.open(None, false).await;
        assert_eq!(lines.recv().await.unwrap().text, "0");
        assert!(lines.len() <= QUEUE);
        let all = logs.read(Some(usize::MAX)).await;
        assert_eq!(all.last().unwrap(), "299999");
        let cost: usize = all.iter().map(|line| line.len() + size_of::<String>()).sum();
        assert!(cost <= TAIL_BYTES, "{cost}");
    }

    #[test]
    fn forgetting_removes_every_file() {
        let logs = Logs::new();
        for name in ["time.log", "time.log.1", "timer.log"] {
            logs.write(name, "x");
        }
        remove(logs.dir.path(), &"time".parse().unwrap()).unwrap();
        let left: Vec<_> =
            fs::read_dir(logs.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["timer.log"]);
    }
}
