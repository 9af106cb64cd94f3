//! Files in the state directory: replaced atomically, and readable by the user only.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use super::FileError;
use super::step::Step;
use crate::clock;

/// The average time between two tries to take a lock.
pub(super) const LOCK_POLL: Duration = Duration::from_millis(25);

/// The length of a note in bytes.
const NOTE_LEN: usize = 192;

/// The extension of a file that is not complete.
pub(super) const TEMPORARY: &str = "tmp";

/// A lock, held until this is dropped or the process ends.
pub(crate) struct FileLock {
    file: File,
}

/// Locks a file, which is created if necessary. It is never removed, because a waiting process would then lock a file
/// that no other process can find.
pub(crate) fn lock_file(path: &Path, lock_timeout: Duration) -> Result<FileLock, FileError> {
    let fail = |source| FileError::Write { path: path.to_owned(), step: Step::Lock, source };
    make_parent(path).map_err(fail)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(fail)?;
    match wait_for(&file, lock_timeout) {
        Ok(true) => Ok(FileLock { file }),
        Ok(false) => Err(FileError::Locked { lock: path.to_owned(), waited: lock_timeout }),
        Err(error) => Err(fail(error)),
    }
}

/// Locks a directory, without creating anything in it. Nothing if the directory does not exist, cannot be locked, as on
/// some network file systems, or stays locked.
pub(super) fn lock_directory(dir: &Path, lock_timeout: Duration) -> Option<FileLock> {
    let file = File::open(dir).ok()?;
    wait_for(&file, lock_timeout).ok()?.then_some(FileLock { file })
}

/// Waits for a lock. Returns whether it was taken.
fn wait_for(file: &File, lock_timeout: Duration) -> io::Result<bool> {
    let mut waited = Duration::ZERO;
    while waited <= lock_timeout {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                waited += clock::pause(LOCK_POLL / 2, LOCK_POLL + LOCK_POLL / 2);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

impl FileLock {
    /// Stores a note in the lock, for the next process that takes it.
    pub(super) fn write_note(&self, note: &str) -> io::Result<()> {
        // Of constant length and in one write, so that a death leaves either the old or the new note.
        rustix::io::pwrite(&self.file, format!("{note:<NOTE_LEN$}").as_bytes(), 0)?;
        Ok(())
    }

    pub(super) fn read_note(&self) -> io::Result<String> {
        let mut buffer = [0; NOTE_LEN];
        let length = rustix::io::pread(&self.file, &mut buffer, 0)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).trim_ascii_end().to_owned())
    }
}

/// Writes a file atomically and durably.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    make_parent(path)?;
    let temporary = path.with_extension(TEMPORARY);
    let moved = write_synced(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if moved.is_err() {
        // Do not leave garbage on a full disk.
        remove_if_exists(&temporary).ok();
    }
    moved?;
    sync_parent(path)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub(super) fn remove_if_exists(path: &Path) -> io::Result<()> {
    if_exists(fs::remove_file(path)).map(drop)
}

/// Turns the error that something does not exist into `None`.
pub(crate) fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Flushes the directory of a path.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// Renames a file or directory, unless the new name exists.
pub(super) fn rename_no_replace(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => rename_in_two_steps(from, to),
        result => Ok(result?),
    }
}

/// The same for file systems without such a rename. A directory replaces an empty one that only we can have created; a
/// file is linked under its new name, which fails if the name exists.
fn rename_in_two_steps(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir(to)?;
        return fs::rename(from, to);
    }
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // Links are not supported either; the check right before must suffice.
        Err(_) => fs::rename(from, to),
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), make_directory)
}

/// Creates a directory and its parents, accessible to this user only.
pub(super) fn make_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.json");
        fs::create_dir_all(path.join("in the way")).unwrap();
        write_atomically(&path, b"{}").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn rename_no_replace_keeps_an_existing_file() {
        for rename in [rename_no_replace, rename_in_two_steps] {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            for name in ["new dir", "old dir"] {
                fs::create_dir(path(name)).unwrap();
            }
            for name in ["new file", "old file"] {
                fs::write(path(name), name).unwrap();
            }
            for kind in ["dir", "file"] {
                let (new, old) = (path(&format!("new {kind}")), path(&format!("old {kind}")));
                let error = rename(&new, &old).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{kind}");
                rename(&new, &path(kind)).unwrap();
                assert!(!new.exists() && path(kind).exists(), "{kind}");
            }
            assert_eq!(fs::read_to_string(path("old file")).unwrap(), "old file");
            assert_eq!(fs::read_to_string(path("file")).unwrap(), "new file");
        }
    }
}
