//! The files that a shim leaves in its run directory, for later daemons.
//!
//! `shim.pid` names the shim while it lives, `guard.pid` its guard. `exit` records how the run ended; it is written before the
//! shim sends [`Gone`](crate::wire::FromShim::Gone) and stays. Both are replaced whole, never in part.
//!
//! `shim.pid` and `guard.pid` are dangling links whose target is the name: a short link takes no room on the disk, so a
//! server can be started again on a full disk.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

use crate::codec::{DecodeError, Field, Reader, encoded};
use crate::procfs;
use crate::tree::Process;

/// The name of the link that names the shim.
pub const PID: &str = "shim.pid";

/// The name of the link that names the shim's guard.
pub const GUARD: &str = "guard.pid";

/// The name of the exit record.
pub const EXIT: &str = "exit";

const VERSION: u32 = 1;

/// The part of a record that is read. None is longer.
const MAX_BYTES: u64 = 256 * 1024;

encoded! {
    /// How a run ended.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ExitRecord {
        /// The exit code, if the server exited.
        pub code: Option<i32>,
        /// The signal that ended it, if one did.
        pub signal: Option<i32>,
        /// Whether the kernel killed it for lack of memory.
        pub oom: bool,
        /// When its end was noticed.
        pub at_unix_ms: u64,
        /// The end of its standard error.
        pub stderr_tail: Vec<u8>,
        /// How many processes could not be ended.
        pub survivors: u32,
    }
}

/// The exit record of a run directory, if the run is over.
pub fn read(dir: &Path) -> io::Result<Option<ExitRecord>> {
    let Some(bytes) = read_file(dir, EXIT)? else { return Ok(None) };
    let record = ExitRecord::decode(&bytes);
    record.map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// The shim of a run directory, if that very process is alive.
pub fn shim_alive(dir: &Path) -> io::Result<Option<Process>> {
    named_process(CWD, &dir.join(PID))
}

/// The guard of a run directory's shim, if that very process is alive: then the run is not over.
pub fn guard_alive(dir: &Path) -> io::Result<Option<Process>> {
    named_process(CWD, &dir.join(GUARD))
}

/// The shim of an open run directory, if that very process is alive.
pub(crate) fn shim_alive_in(dir: BorrowedFd<'_>) -> io::Result<Option<Process>> {
    named_process(dir, Path::new(PID))
}

pub(crate) fn write(dir: BorrowedFd<'_>, record: &ExitRecord) -> io::Result<()> {
    replace_file(dir, EXIT, &record.encode())
}

/// Names this process as the shim of a run directory.
pub(crate) fn write_pid(dir: BorrowedFd<'_>, identity: &str) -> io::Result<()> {
    replace(dir, PID, |temporary| Ok(symlinkat(identity, dir, temporary)?))
}

/// Names the parent of this process as the guard of a run directory's shim, unless it has been killed.
pub(crate) fn write_guard(dir: BorrowedFd<'_>, guard: u32) -> io::Result<()> {
    if std::os::unix::process::parent_id() != guard {
        return Ok(());
    }
    let Some(stat) = procfs::stat(guard)? else { return Ok(()) };
    let identity = identity(guard, stat.started)?;
    replace(dir, GUARD, |temporary| Ok(symlinkat(&identity, dir, temporary)?))
}

/// Whether a run directory still names the process with this identity as its shim.
pub(crate) fn names(dir: BorrowedFd<'_>, identity: &str) -> bool {
    pid_link(dir, Path::new(PID)).is_ok_and(|name| name.as_deref() == Some(identity))
}

/// Identifies this process, also after its pid was used again or the machine was booted again. Less than 60 bytes,
/// which file systems keep in the link itself.
pub(crate) fn own_identity() -> io::Result<String> {
    identity_of(std::process::id())
}

/// As [`own_identity`], for another process.
pub(crate) fn identity_of(pid: u32) -> io::Result<String> {
    let stat = procfs::stat(pid)?
        .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "/proc does not list the process"))?;
    identity(pid, stat.started)
}

/// Whether an identity is from this boot.
pub(crate) fn is_of_this_boot(identity: &str) -> io::Result<bool> {
    Ok(identity.rsplit(' ').next() == Some(boot()?.as_str()))
}

impl ExitRecord {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        VERSION.put(&mut bytes);
        self.put(&mut bytes);
        bytes
    }

    /// Fields that a later build of this version may append are ignored.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut bytes = Reader::new(bytes);
        match bytes.u32()? {
            VERSION => Self::take(&mut bytes, EXIT),
            other => Err(DecodeError::Version(other)),
        }
    }
}

/// The process that a link names, if it is alive.
fn named_process(dir: impl AsFd, link: &Path) -> io::Result<Option<Process>> {
    let Some(name) = pid_link(dir, link)? else { return Ok(None) };
    let Some(pid) = name.split_once(' ').and_then(|(pid, _)| pid.parse().ok()) else {
        return Ok(None);
    };
    let Some(stat) = procfs::stat(pid)?.filter(|stat| stat.alive) else { return Ok(None) };
    Ok((identity(pid, stat.started)? == name).then(|| Process::new(pid, stat)))
}

fn identity(pid: u32, started: u64) -> io::Result<String> {
    Ok(format!("{pid} {started} {}", boot()?))
}

fn boot() -> io::Result<String> {
    Ok(procfs::boot_id()?.trim().replace('-', ""))
}

/// The target of the link; `None` if it is something else.
fn pid_link(dir: impl AsFd, path: &Path) -> io::Result<Option<String>> {
    match readlinkat(dir, path, Vec::new()) {
        Ok(target) => Ok(target.into_string().ok()),
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The content of a record, if it exists. Only the first part of a longer file is read.
pub(crate) fn read_file(dir: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = if_exists(File::open(dir.join(name)))? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Turns the error that something does not exist into `None`.
pub fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file whole, never in part.
pub(crate) fn replace_file(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
    replace(dir, name, |temporary| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(dir, temporary, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(bytes)
    })
}

/// Creates a file or link and renames it to `name`. Nothing is synced: a record is about processes, and none of them
/// survives a loss of power.
fn replace(
    dir: BorrowedFd<'_>,
    name: &str,
    create: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = format!(".{name}.new");
    match unlinkat(dir, &temporary, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    create(&temporary)?;
    Ok(renameat(dir, &temporary, dir, name)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::fs;

    use super::*;

    proptest! {
        #[test]
        fn a_record_survives_the_disk(
            (code, signal, oom, at_unix_ms, survivors) in any::<(Option<i32>, Option<i32>, bool, u64, u32)>(),
            stderr_tail: Vec<u8>,
            later: Vec<u8>,
        ) {
            let record = ExitRecord { code, signal, oom, at_unix_ms, stderr_tail, survivors };
            let mut bytes = record.encode();
            bytes.extend(later);
            prop_assert_eq!(ExitRecord::decode(&bytes), Ok(record));
        }

        #[test]
        fn garbage_never_panics(junk: Vec<u8>) {
            let _record = ExitRecord::decode(&junk);
        }
    }

    #[test]
    fn a_missing_file_is_none_and_a_damaged_one_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        fs::write(dir.path().join(EXIT), "junk").unwrap();
        assert_eq!(read(dir.path()).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn only_the_recorded_process_counts_as_alive() {
        let temp = tempfile::tempdir().unwrap();
        let dir = File::open(temp.path()).unwrap();
        assert_eq!(shim_alive(temp.path()).unwrap(), None);
        let me = own_identity().unwrap();
        write_pid(dir.as_fd(), &me).unwrap();
        let found = shim_alive(temp.path()).unwrap();
        assert_eq!(found.map(|process| process.pid), Some(std::process::id()));
        assert_eq!(shim_alive_in(dir.as_fd()).unwrap(), found);
        assert!(names(dir.as_fd(), &me));

        let (pid, rest) = me.split_once(' ').unwrap();
        for stale in [format!("{pid} 1{rest}"), format!("{pid} "), "junk".into()] {
            write_pid(dir.as_fd(), &stale).unwrap();
            assert_eq!(shim_alive(temp.path()).unwrap(), None, "{stale}");
            assert!(!names(dir.as_fd(), &me));
        }
        fs::remove_file(temp.path().join(PID)).unwrap();
        fs::write(temp.path().join(PID), &me).unwrap();
        assert_eq!(shim_alive(temp.path()).unwrap(), None, "a file is not a link");
    }
}
