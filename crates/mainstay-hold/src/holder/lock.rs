//! Two locks in the state directory.
//!
//! The instance lock (`lock`): one holder, with its daemons, per state directory. It belongs to the open file
//! and not to a process. The holder gives it to every daemon, so the instance stays locked while any of
//! them lives.
//!
//! The holder lock (`holder.lock`): one holder, even while daemons have the instance lock. It never leaves
//! the holder's process, except to the program that this process executes.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

use crate::descriptors;
use crate::limits::HOLDER_LOCK;

/// How often the holder lock is tried.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The outcome of an attempt that does not wait.
pub(super) enum Attempt {
    /// The lock is ours, and has our pid.
    Ours(File),
    /// Another process has it; the file can be used to wait.
    Taken(File, Option<u32>),
}

/// Takes the instance lock if it is free.
pub(super) fn attempt(state_dir: &Path) -> io::Result<Attempt> {
    let mut file = open(&path(state_dir))?;
    if try_lock(&file)? {
        sign(&mut file)?;
        Ok(Attempt::Ours(file))
    } else {
        Ok(Attempt::Taken(file, owner(state_dir)?))
    }
}

/// Takes the holder lock, or fails with [`AddrInUse`](ErrorKind::AddrInUse) if another process has it. If the
/// file cannot be used at all, because the state directory is gone or read-only, the holder runs without
/// this lock: the daemon has made sure that the last holder has ended, and no holder would be worse.
pub(super) fn holder(state_dir: &Path) -> io::Result<File> {
    let Ok(file) = open(&state_dir.join("holder.lock")) else { return descriptors::null() };
    let mut waited = Duration::ZERO;
    while !try_lock(&file)? {
        if waited >= HOLDER_LOCK {
            return Err(io::Error::new(ErrorKind::AddrInUse, "another holder is running"));
        }
        thread::sleep(LOCK_RETRY);
        waited += LOCK_RETRY;
    }
    Ok(file)
}

/// The holder that took the lock last.
pub(super) fn owner(state_dir: &Path) -> io::Result<Option<u32>> {
    Ok(fs::read_to_string(path(state_dir))?.trim().parse().ok())
}

/// The process of the holder, if the lock is taken.
pub fn pid(state_dir: &Path) -> Option<u32> {
    let file = File::open(path(state_dir)).ok()?;
    // A shared lock does not disturb other commands that check.
    let is_free = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    if is_free { None } else { owner(state_dir).ok().flatten() }
}

/// Waits until the lock is free and takes it.
pub(super) fn wait(mut file: File) -> io::Result<File> {
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    sign(&mut file)?;
    Ok(file)
}

/// Writes our pid into a lock that is ours.
pub(super) fn sign(file: &mut File) -> io::Result<()> {
    let pid = format!("{}\n", std::process::id());
    file.rewind()?;
    file.write_all(pid.as_bytes())?;
    file.set_len(pid.len() as u64)
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("lock")
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).read(true).write(true).truncate(false).mode(0o600).open(path)
}

/// Returns false if another process has it.
fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_the_lock_and_its_pid_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let Attempt::Ours(ours) = attempt(dir.path()).unwrap() else { panic!("the lock is free") };
        let copy = ours.try_clone().unwrap();
        drop(ours);
        let Attempt::Taken(other, pid) = attempt(dir.path()).unwrap() else {
            panic!("a copy is enough")
        };
        assert_eq!(pid, Some(std::process::id()));
        assert_eq!(super::pid(dir.path()), pid);
        drop(copy);
        assert_eq!(super::pid(dir.path()), None);
        wait(other).unwrap();
    }

    #[test]
    fn there_is_one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = holder(dir.path()).unwrap();
        assert_eq!(holder(dir.path()).unwrap_err().kind(), ErrorKind::AddrInUse);
        let ending = thread::spawn(move || {
            thread::sleep(LOCK_RETRY * 3);
            drop(first);
        });
        holder(dir.path()).unwrap();
        ending.join().unwrap();
    }

    #[test]
    fn a_holder_runs_without_a_lock_that_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("holder.lock")).unwrap();
        holder(dir.path()).unwrap();
        holder(&dir.path().join("missing")).unwrap();
    }
}
