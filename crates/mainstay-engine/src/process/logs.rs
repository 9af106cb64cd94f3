//! Reading servers' logs, which their shims write and rotate.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_core::ServerName;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::{EngineError, LogRange};

/// Lines on their way to a reader.
const QUEUE: usize = 256;

/// How often a followed log is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// No more rotated files than that are looked for.
const MAX_ROTATED: u32 = 100;

/// How much is read at a time.
const READ: usize = 64 * 1024;

/// Opens a server's log. A server that has not written anything has an empty one.
pub(crate) async fn open(
    dir: &Path,
    server: &ServerName,
    range: LogRange,
) -> Result<mpsc::Receiver<String>, EngineError> {
    let files = files(dir, server).map_err(EngineError::io("looking for the log"))?;
    let current = current(dir, server);
    let (lines, receiver) = mpsc::channel(QUEUE);
    let read = tokio::task::spawn_blocking(move || last_lines(&files, range.tail)).await;
    let (last, seen) = read
        .unwrap_or_else(|panic| Err(io::Error::other(panic)))
        .map_err(EngineError::io("reading the log"))?;
    tokio::spawn(async move {
        for line in last {
            if lines.send(line).await.is_err() {
                return;
            }
        }
        if range.follow
            && let Err(error) = follow(&current, seen, &lines).await
        {
            tracing::warn!(%error, path = %current.display(), "cannot follow a log");
        }
    });
    Ok(receiver)
}

/// Removes a server's log and what was rotated from it.
pub(crate) fn remove(dir: &Path, server: &ServerName) -> Result<(), EngineError> {
    for file in files(dir, server).map_err(EngineError::io("looking for the log"))? {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(EngineError::io("removing the log")(error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn current(dir: &Path, server: &ServerName) -> PathBuf {
    dir.join(format!("{server}.log"))
}

/// The files of a log, oldest first.
fn files(dir: &Path, server: &ServerName) -> io::Result<Vec<PathBuf>> {
    let current = current(dir, server);
    let mut rotated = (1..=MAX_ROTATED)
        .map(|number| dir.join(format!("{server}.log.{number}")))
        .take_while(|path| path.exists())
        .collect::<Vec<_>>();
    rotated.reverse();
    if current.try_exists()? {
        rotated.push(current);
    }
    Ok(rotated)
}

/// Where in the current file a follower goes on: the file's number and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    inode: u64,
    offset: u64,
}

/// The last lines of all files together, and where they end. A last line without an end is left for
/// the follower when there is one, and given when there is not, by being read to the end here.
fn last_lines(files: &[PathBuf], tail: Option<usize>) -> io::Result<(VecDeque<String>, Seen)> {
    let limit = tail.unwrap_or(usize::MAX);
    let mut lines = VecDeque::new();
    let mut seen = Seen::default();
    for path in files {
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        seen = Seen { inode: file.metadata()?.ino(), offset: 0 };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line)?;
            if length == 0 {
                break;
            }
            seen.offset += length as u64;
            if lines.len() >= limit {
                lines.pop_front();
            }
            if limit > 0 {
                lines.push_back(text(&line));
            }
        }
    }
    Ok((lines, seen))
}

/// Hands on new lines until the reader goes away, over rotations.
async fn follow(path: &Path, mut seen: Seen, lines: &mpsc::Sender<String>) -> io::Result<()> {
    let mut file = None;
    let mut partial = Vec::new();
    loop {
        if file.is_none() {
            file = open_at(path, &mut seen).await?;
        }
        if let Some(open) = &mut file {
            let mut chunk = Vec::with_capacity(READ);
            while open.read_buf(&mut chunk).await? > 0 {
                seen.offset += chunk.len() as u64;
                for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
                    partial.extend_from_slice(piece);
                    if piece.ends_with(b"\n") {
                        if lines.send(text(&partial)).await.is_err() {
                            return Ok(());
                        }
                        partial.clear();
                    }
                }
                chunk.clear();
            }
            if !fs::metadata(path).is_ok_and(|found| found.ino() == seen.inode) {
                file = None;
                continue;
            }
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            () = lines.closed() => return Ok(()),
        }
    }
}

/// Opens the current file where reading left off, or at its beginning if it is a new one.
async fn open_at(path: &Path, seen: &mut Seen) -> io::Result<Option<File>> {
    use tokio::io::AsyncSeekExt;
    let mut file = match File::open(path).await {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let inode = file.metadata().await?.ino();
    if inode != seen.inode {
        *seen = Seen { inode, offset: 0 };
    }
    file.seek(io::SeekFrom::Start(seen.offset)).await?;
    Ok(Some(file))
}

fn text(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    async fn read(dir: &Path, tail: Option<usize>) -> Vec<String> {
        let server = "time".parse().unwrap();
        let mut lines = open(dir, &server, LogRange { tail, follow: false }).await.unwrap();
        let mut all = Vec::new();
        while let Some(line) = lines.recv().await {
            all.push(line);
        }
        all
    }

    #[tokio::test]
    async fn rotated_files_come_first_and_the_tail_spans_them() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), None).await, [""; 0]);
        fs::write(dir.path().join("time.log.2"), "a\n").unwrap();
        fs::write(dir.path().join("time.log.1"), "b\nc\n").unwrap();
        fs::write(dir.path().join("time.log"), "d\ne").unwrap();
        assert_eq!(read(dir.path(), None).await, ["a", "b", "c", "d", "e"]);
        assert_eq!(read(dir.path(), Some(3)).await, ["c", "d", "e"]);
        assert_eq!(read(dir.path(), Some(0)).await, [""; 0]);
    }

    #[tokio::test]
    async fn a_follower_sees_new_lines_over_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("time.log");
        fs::write(&path, "old\n").unwrap();
        let server = "time".parse().unwrap();
        let range = LogRange { tail: Some(0), follow: true };
        let mut lines = open(dir.path(), &server, range).await.unwrap();
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.recv().await.unwrap(), "one");
        file.write_all(b"o\n").unwrap();
        fs::rename(&path, dir.path().join("time.log.1")).unwrap();
        fs::write(&path, "three\n").unwrap();
        assert_eq!(lines.recv().await.unwrap(), "two");
        assert_eq!(lines.recv().await.unwrap(), "three");
    }

    #[test]
    fn forgetting_removes_every_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["time.log", "time.log.1", "timer.log"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        remove(dir.path(), &"time".parse().unwrap()).unwrap();
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["timer.log"]);
    }
}
