//! Files of clients that crash the code that reads them.
//!
//! Before work on a file starts, a mark is written to our state directory; it is removed afterwards. A panic
//! is caught and recorded in the mark, and the file is not read again. A mark whose process has ended means
//! that the process died while it worked on the file: by an abort, a stack overflow or a `kill -9`. The file
//! is then tried once more, and after a second death in a row it is not read again. The same applies if work
//! on it does not finish within a minute. A quarantine lasts until the file changes, or until a user asks for
//! an entry.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::panics;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::file::digest;
use crate::registrar::ClientError;

/// After this many deaths in a row, a file is not read again.
const MAX_DEATHS: u32 = 2;

/// How long work on a file may take. Waits for locks of other programs are much shorter.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// The marks of all files.
#[derive(Debug, Clone)]
pub(crate) struct Quarantine {
    dir: PathBuf,
}

/// Which version of a file a mark is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    inode: u64,
    length: u64,
    seconds: i64,
    nanos: i64,
}

/// A record of work on a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    file: PathBuf,
    stamp: Stamp,
    /// The process that works on it.
    pid: u32,
    since: Timestamp,
    /// How many processes have died at it in a row.
    deaths: u32,
    /// The message of the panic that it led to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    panic: Option<String>,
}

impl Quarantine {
    /// Keeps its marks below this directory.
    pub(crate) fn new(state: &Path) -> Self {
        Self { dir: state.join("quarantine") }
    }

    /// Runs work on a file, unless the file is quarantined. `forced` means that a user asked for it.
    pub(crate) fn guard<T>(
        &self,
        file: &Path,
        forced: bool,
        work: impl FnOnce() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        // There is nothing to read.
        let Some(stamp) = stamp(file) else { return work() };
        let path = self.dir.join(format!("{}.json", digest(file.as_os_str().as_encoded_bytes())));
        let (now, own) = (clock::now(), std::process::id());
        let known = read(&path).filter(|mark| mark.stamp == stamp && !forced);
        let refused = |why| ClientError::Quarantined { file: file.to_owned(), why };
        let deaths = known.map_or(Ok(0), |mark| deaths_so_far(mark, now, own, is_alive));
        let deaths = deaths.map_err(refused)?;
        let mark = Mark { file: file.to_owned(), stamp, pid: own, since: now, deaths, panic: None };
        // A disk that takes no mark takes no edit either.
        self.put(&path, &mark);
        match panics::catch(work) {
            Ok(done) => {
                // Not the mark of another process that worked on the file at the same time, and may have panicked.
                if read(&path).as_ref() == Some(&mark) {
                    fs::remove_file(&path).ok();
                }
                done
            }
            Err(message) => {
                self.put(&path, &Mark { panic: Some(message.clone()), ..mark });
                Err(refused(QuarantineReason::Panic(message)))
            }
        }
    }

    /// Not synced: a mark only needs to outlive the process.
    fn put(&self, path: &Path, mark: &Mark) {
        let text = serde_json::to_vec(mark).expect("a mark can be written as JSON");
        let new = path.with_extension(format!("{:016x}", clock::random()));
        let written = fs::create_dir_all(&self.dir).and_then(|()| fs::write(&new, text));
        if written.and_then(|()| fs::rename(&new, path)).is_err() {
            fs::remove_file(&new).ok();
        }
    }
}

/// Why a file is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuarantineReason {
    #[error("reading it failed because of a bug ({0})")]
    Panic(String),
    #[error("the daemon died twice while it worked on it")]
    Deaths,
    #[error("work on it has not finished within a minute")]
    Stuck,
}

/// Interprets a mark for the same version of the file: how many processes have died while they worked on it, or why the
/// file is not read.
fn deaths_so_far(
    mark: Mark,
    now: Timestamp,
    own: u32,
    is_alive: impl FnOnce(u32) -> bool,
) -> Result<u32, QuarantineReason> {
    if let Some(message) = mark.panic {
        return Err(QuarantineReason::Panic(message));
    }
    let is_under_way = mark.pid == own || is_alive(mark.pid);
    let deaths = if is_under_way { mark.deaths } else { mark.deaths + 1 };
    if deaths >= MAX_DEATHS {
        return Err(QuarantineReason::Deaths);
    }
    let lasts = Duration::try_from(now.duration_since(mark.since)).unwrap_or_default();
    if is_under_way && lasts > WORK_TIMEOUT {
        return Err(QuarantineReason::Stuck);
    }
    Ok(deaths)
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn stamp(file: &Path) -> Option<Stamp> {
    let found = fs::metadata(file).ok()?;
    Some(Stamp {
        inode: found.ino(),
        length: found.len(),
        seconds: found.mtime(),
        nanos: found.mtime_nsec(),
    })
}

fn read(path: &Path) -> Option<Mark> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(pid: u32, deaths: u32, panic: Option<&str>) -> Mark {
        let stamp = Stamp { inode: 1, length: 2, seconds: 3, nanos: 4 };
        let (file, since) = ("mcp.json".into(), Timestamp::UNIX_EPOCH);
        Mark { file, stamp, pid, since, deaths, panic: panic.map(str::to_owned) }
    }

    #[test]
    fn a_file_is_refused_after_a_panic_or_two_deaths_or_a_minute() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let refused = Err;
        for (mark, seconds, alive, expected) in [
            (
                mark(9, 0, Some("oops")),
                0,
                false,
                refused(QuarantineReason::Panic("oops".to_owned())),
            ),
            (mark(9, 0, None), 0, false, Ok(1)),
            (mark(9, 1, None), 0, false, refused(QuarantineReason::Deaths)),
            // One that still works on it has not died at it.
            (mark(9, 1, None), 0, true, Ok(1)),
            (mark(7, 1, None), 0, false, Ok(1)),
            (mark(7, 0, None), 60, false, Ok(0)),
            (mark(7, 0, None), 61, false, refused(QuarantineReason::Stuck)),
            (mark(9, 0, None), 61, true, refused(QuarantineReason::Stuck)),
            (mark(9, 0, None), 61, false, Ok(1)),
        ] {
            assert_eq!(
                deaths_so_far(mark.clone(), at(seconds), 7, |_| alive),
                expected,
                "{mark:?}"
            );
        }
    }

    fn why(done: Result<u8, ClientError>) -> Option<QuarantineReason> {
        match done {
            Err(ClientError::Quarantined { why, .. }) => Some(why),
            Ok(_) | Err(_) => None,
        }
    }

    #[test]
    fn a_panic_is_caught_once_and_forgotten_when_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mcp.json");
        let quarantine = Quarantine::new(dir.path());
        let work = |forced| quarantine.guard(&file, forced, || Ok(1));
        assert!(why(quarantine.guard(&file, false, || Ok(1))).is_none(), "no file, no mark");
        fs::write(&file, "{}").unwrap();
        assert_eq!(work(false).unwrap(), 1);

        let panicked = Some(QuarantineReason::Panic("as if by a bug".to_owned()));
        assert_eq!(why(quarantine.guard(&file, false, || panic!("as if by a bug"))), panicked);
        assert_eq!(why(work(false)), panicked, "it is not tried again");
        assert_eq!(work(true).unwrap(), 1, "a person asked for it");
        assert_eq!(work(false).unwrap(), 1, "and it worked");

        assert_eq!(why(quarantine.guard(&file, false, || panic!("as if by a bug"))), panicked);
        fs::write(&file, "{\n}").unwrap();
        assert_eq!(work(false).unwrap(), 1, "it is another file now");
        assert_eq!(fs::read_dir(dir.path().join("quarantine")).unwrap().count(), 0);
    }

    #[test]
    fn a_file_is_quarantined_after_two_deaths() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mcp.json");
        fs::write(&file, "{}").unwrap();
        let quarantine = Quarantine::new(dir.path());
        let path =
            quarantine.dir.join(format!("{}.json", digest(file.as_os_str().as_encoded_bytes())));
        // No process has this pid.
        let died = |deaths| Mark {
            stamp: stamp(&file).unwrap(),
            ..mark(i32::MAX.unsigned_abs(), deaths, None)
        };
        quarantine.put(&path, &died(0));
        let seen = quarantine.guard(&file, false, || Ok(read(&path).unwrap().deaths));
        assert_eq!(seen.unwrap(), 1, "the next one remembers the first");
        assert_eq!(quarantine.guard(&file, false, || Ok(read(&path).unwrap().deaths)).unwrap(), 0);
        quarantine.put(&path, &died(1));
        assert_eq!(why(quarantine.guard(&file, false, || Ok(1))), Some(QuarantineReason::Deaths));
    }
}
