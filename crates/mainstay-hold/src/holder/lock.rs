//! The instance lock: one holder, with its daemons, per state directory.
//!
//! The lock belongs to the open file and not to a process. The holder gives it to every daemon, so the
//! instance stays locked while any of them lives.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

/// The outcome of an attempt that does not wait.
pub(super) enum Attempt {
    /// The lock is ours, and says so.
    Ours(File),
    /// Somebody else has it; the file can be used to wait.
    Taken(File, Option<u32>),
}

/// Takes the lock if it is free.
pub(super) fn attempt(state_dir: &Path) -> io::Result<Attempt> {
    let mut file = File::options()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .open(path(state_dir))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
        Ok(()) => {
            sign(&mut file)?;
            Ok(Attempt::Ours(file))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Ok(Attempt::Taken(file, owner(state_dir)?))
        }
        Err(error) => Err(error),
    }
}

/// The holder that took the lock last.
pub(super) fn owner(state_dir: &Path) -> io::Result<Option<u32>> {
    Ok(fs::read_to_string(path(state_dir))?.trim().parse().ok())
}

/// Waits until the lock is free and takes it.
pub(super) fn wait(mut file: File) -> io::Result<File> {
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    sign(&mut file)?;
    Ok(file)
}

/// Writes our process into a lock that is ours.
pub(super) fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_lock_and_says_who() {
        let dir = tempfile::tempdir().unwrap();
        let Attempt::Ours(ours) = attempt(dir.path()).unwrap() else { panic!("nobody has it") };
        let copy = ours.try_clone().unwrap();
        drop(ours);
        let Attempt::Taken(other, pid) = attempt(dir.path()).unwrap() else {
            panic!("a copy is enough")
        };
        assert_eq!(pid, Some(std::process::id()));
        drop(copy);
        wait(other).unwrap();
    }
}
