//! What a shim leaves in its run directory, for daemons that were not there.
//!
//! `shim.pid` names the shim while it lives. `exit` says how the run ended; it is written before the
//! shim says [`Gone`](crate::wire::FromShim::Gone) and stays. Both are replaced whole, never in part.
//!
//! `shim.pid` is a link to nowhere whose target is the name: a short link takes no room of its own, so
//! a full disk keeps no server from being started again.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;

use crate::codec::{DecodeError, Put, Reader};
use crate::procfs;

/// The name of the link that names the shim.
pub const PID: &str = "shim.pid";

/// The name of the exit record.
pub const EXIT: &str = "exit";

const VERSION: u32 = 1;

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
    /// Its last words for people.
    pub stderr_tail: Vec<u8>,
    /// How many processes could not be ended.
    pub survivors: u32,
}

/// The exit record of a run directory, if the run is over.
pub fn read(dir: &Path) -> io::Result<Option<ExitRecord>> {
    let Some(bytes) = read_if_there(&dir.join(EXIT))? else { return Ok(None) };
    let record = ExitRecord::decode(&bytes);
    record.map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// The pid of the shim of a run directory, if that very process is alive.
pub fn shim_alive(dir: &Path) -> io::Result<Option<u32>> {
    let name = match fs::read_link(dir.join(PID)) {
        Ok(target) => target.into_os_string(),
        // What is there and no link is not ours.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let named = name.to_str().and_then(|text| text.split_once(' '));
    let Some((pid, _)) = named else { return Ok(None) };
    let Ok(pid) = pid.parse() else { return Ok(None) };
    let alive = procfs::stat(pid)?.is_some_and(|stat| stat.alive)
        && identity(pid)?.is_some_and(|identity| identity.as_bytes() == name.as_bytes());
    Ok(alive.then_some(pid))
}

/// Writes the exit record.
pub(crate) fn write(dir: &Path, record: &ExitRecord) -> io::Result<()> {
    replace(dir, EXIT, &record.encode())
}

/// Names this process as the shim of a run directory.
pub(crate) fn write_pid(dir: &Path) -> io::Result<()> {
    let identity = identity(std::process::id())?
        .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "/proc does not know us"))?;
    let temporary = dir.join(format!(".{PID}.new"));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(identity, &temporary)?;
    fs::rename(&temporary, dir.join(PID))
}

impl ExitRecord {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u32(VERSION);
        bytes.put_maybe_i32(self.code);
        bytes.put_maybe_i32(self.signal);
        bytes.put_u8(u8::from(self.oom));
        bytes.put_u64(self.at_unix_ms);
        bytes.put_bytes(&self.stderr_tail);
        bytes.put_u32(self.survivors);
        bytes
    }

    /// Fields that a later build of this version may append are ignored.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut bytes = Reader::new(bytes);
        match bytes.u32()? {
            VERSION => Ok(Self {
                code: bytes.maybe_i32("code")?,
                signal: bytes.maybe_i32("signal")?,
                oom: bytes.bool("oom")?,
                at_unix_ms: bytes.u64()?,
                stderr_tail: bytes.bytes()?.to_vec(),
                survivors: bytes.u32()?,
            }),
            other => Err(DecodeError::Version(other)),
        }
    }
}

/// What tells a process from every other one, also after its pid was used again or the machine
/// was booted again. Less than 60 bytes, which file systems keep in the link itself.
fn identity(pid: u32) -> io::Result<Option<String>> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let stat = procfs::stat(pid)?;
    Ok(stat.map(|stat| format!("{pid} {} {}", stat.started, boot.trim().replace('-', ""))))
}

fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nothing is synced: a record is about processes, and none of them survives a loss of power.
fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&temporary)?.write_all(bytes)?;
    fs::rename(&temporary, dir.join(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn no_file_is_no_record_and_junk_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        fs::write(dir.path().join(EXIT), "junk").unwrap();
        assert_eq!(read(dir.path()).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn only_the_very_process_is_alive() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(shim_alive(dir.path()).unwrap(), None);
        write_pid(dir.path()).unwrap();
        assert_eq!(shim_alive(dir.path()).unwrap(), Some(std::process::id()));

        let me = identity(std::process::id()).unwrap().unwrap();
        let (pid, rest) = me.split_once(' ').unwrap();
        for stale in [format!("{pid} 1{rest}"), format!("{pid} "), "junk".into()] {
            fs::remove_file(dir.path().join(PID)).unwrap();
            symlink(&stale, dir.path().join(PID)).unwrap();
            assert_eq!(shim_alive(dir.path()).unwrap(), None, "{stale}");
        }
        fs::remove_file(dir.path().join(PID)).unwrap();
        fs::write(dir.path().join(PID), &me).unwrap();
        assert_eq!(shim_alive(dir.path()).unwrap(), None, "a file is no link");
    }
}
