//! The cgroup (control group, version 2) of a run.
//!
//! A process cannot leave its cgroup by another session, another parent or an empty environment, and its children
//! are in the same one. Where the cgroup of the shim is delegated (by systemd's `Delegate=`), the shim therefore
//! creates another one below it for each run, and starts the server in it. Shim and guard stay outside. The
//! shim kills the whole cgroup at the end of the run, and removes it; if the shim was killed, its guard does; if both
//! were, the next daemon does, by the record in the run directory.
//!
//! It is created only if the shim's own cgroup has the mark of delegation, and enables no controllers. A mark further
//! up delegates to another manager, such as that of the user, and not to what that starts. Without a mark, or if anything fails, the run has none, and what escapes from a killed shim is found by its parents and by
//! [`process_record`](crate::process_record).

mod location;
mod record;

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use self::location::Facts;
use self::record::Record;
use crate::record::if_exists;
use crate::tree::Process;
use crate::{clock, procfs};

pub use self::record::CGROUP;
pub(crate) use self::record::remove as remove_record;

/// How the name of the cgroup of every run begins.
const PREFIX: &str = "mainstay-";

/// The longest part of the name of a cgroup that comes from the run directory.
const MAX_PART: usize = 80;

/// How systemd marks what it delegates. Only root can read the second one, which older versions set.
const MARKS: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// The type that `statfs` reports for a cgroup version 2 hierarchy.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// The pause between the first two attempts to end a cgroup, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The cgroup of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunCgroup {
    path: PathBuf,
    /// The inode number, which distinguishes it from another cgroup of the same name. `None` if it is not known whether
    /// this one was created.
    id: Option<u64>,
}

/// The directory of the cgroup of this process in the version 2 hierarchy, if that is mounted.
pub fn own_dir() -> Option<PathBuf> {
    let text = |path| Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned());
    location::find(&text("/proc/self/mountinfo")?, &text("/proc/self/cgroup")?)
}

/// Kills everything in the cgroup that a run directory records, and removes it. Returns whether anything had to be
/// killed. Does nothing if no cgroup was recorded, or if it is gone. Blocks until the kernel reports that it is
/// empty, but no longer than this. The record is removed with the cgroup, and kept if that fails.
pub fn end_recorded(dir: &Path, limit: Duration) -> io::Result<bool> {
    let killed = match record::read(dir)? {
        Some(record) => record.cgroup.end(limit)?,
        None => false,
    };
    if_exists(fs::remove_file(dir.join(CGROUP)))?;
    Ok(killed)
}

/// Whether a run directory has the record of a cgroup, which may still exist. Such a directory must be kept for
/// another [`end_recorded`].
pub fn is_recorded(dir: &Path) -> bool {
    record::exists_in(CWD, &dir.join(CGROUP))
}

/// The cgroup that a run directory records, if the shim with this identity created it.
pub(crate) fn recorded_by(owner: &str, dir: &Path) -> Option<RunCgroup> {
    let record = record::read(dir).ok().flatten()?;
    (record.owner == owner).then_some(record.cgroup)
}

impl RunCgroup {
    /// Creates the cgroup of a run and records it, if the cgroup of this process is delegated. `run_dir` is `dir`,
    /// and `owner` is the identity of this process.
    pub(crate) fn create(run_dir: &Path, dir: BorrowedFd<'_>, owner: &str) -> Option<Self> {
        let parent = own_dir()?;
        if !facts(&parent).ok()?.is_delegated() {
            return None;
        }
        // The cgroup of an earlier run in this directory could not be ended, and must not be forgotten.
        if record::exists_in(dir, Path::new(CGROUP)) {
            return None;
        }
        let mut cgroup = Self { path: parent.join(name(run_dir, owner)), id: None };
        // It is recorded before it exists, so that it is found whenever this process is killed.
        cgroup.record(dir, owner).ok()?;
        let created = fs::create_dir(&cgroup.path).and_then(|()| {
            cgroup.id = Some(fs::metadata(&cgroup.path)?.ino());
            cgroup.record(dir, owner)
        });
        if created.is_err() {
            let _stays = fs::remove_dir(&cgroup.path);
            remove_record(dir);
            return None;
        }
        Some(cgroup)
    }

    /// Records the cgroup in the run directory, as created by the shim with this identity.
    pub(crate) fn record(&self, dir: BorrowedFd<'_>, owner: &str) -> io::Result<()> {
        record::write(dir, &Record { owner: owner.to_owned(), cgroup: self.clone() })
    }

    /// A process that writes `0` to this enters the cgroup.
    pub(crate) fn entry(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.path.join("cgroup.procs"), flags, Mode::empty())?)
    }

    /// Sends KILL to everything in it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match self.open()? {
            Some(dir) => kill_members(dir.as_fd()),
            None => Ok(()),
        }
    }

    /// Kills everything in it until it is empty, and removes it, but gives up after this time. Returns whether
    /// anything had to be killed.
    pub(crate) fn end(&self, limit: Duration) -> io::Result<bool> {
        if self.id.is_none() {
            // Nothing was started in it. If it is not empty, it is not ours.
            let _stays = fs::remove_dir(&self.path);
            return Ok(false);
        }
        let give_up = clock::now() + limit;
        let (mut killed, mut pause) = (false, FIRST_PAUSE);
        loop {
            let error = match self.try_to_end(&mut killed) {
                Ok(true) => return Ok(killed),
                Ok(false) => io::Error::new(ErrorKind::TimedOut, "the cgroup does not get empty"),
                Err(error) => error,
            };
            if clock::now() >= give_up {
                return Err(error);
            }
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Returns whether the cgroup is gone.
    fn try_to_end(&self, killed: &mut bool) -> io::Result<bool> {
        let Some(dir) = self.open()? else { return Ok(true) };
        if is_populated(&read(dir.as_fd(), "cgroup.events")?) {
            *killed = true;
            kill_members(dir.as_fd())?;
            return Ok(false);
        }
        remove_children(dir.as_fd())?;
        match rustix::fs::rmdir(&self.path) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::BUSY | Errno::NOTEMPTY) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// `None` if it is gone, also if there is another one in its place.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let dir = match rustix::fs::open(&self.path, DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let is_this_one = Some(rustix::fs::fstat(&dir)?.st_ino) == self.id && is_cgroup(&dir)?;
        Ok(is_this_one.then_some(dir))
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn facts(own: &Path) -> io::Result<Facts> {
    let dir = rustix::fs::open(own, DIRECTORY, Mode::empty())?;
    let may = |path: &Path, access| rustix::fs::access(path, access).is_ok();
    let mark = |name| {
        let mut value = [0; 8];
        let length = rustix::fs::fgetxattr(&dir, name, &mut value).ok()?;
        Some(value[..length].to_vec())
    };
    Ok(Facts {
        owner: rustix::fs::fstat(&dir)?.st_uid,
        user: rustix::process::geteuid().as_raw(),
        writable: is_cgroup(&dir)?
            && may(own, Access::WRITE_OK | Access::EXEC_OK)
            && may(&own.join("cgroup.procs"), Access::WRITE_OK),
        marks: MARKS.into_iter().filter_map(mark).collect(),
    })
}

fn is_cgroup(dir: &OwnedFd) -> io::Result<bool> {
    Ok(u64::try_from(rustix::fs::fstatfs(dir)?.f_type) == Ok(CGROUP2_MAGIC))
}

/// Server and run, for users who list cgroups, and the pid and start time of the shim, which make it unique.
fn name(run_dir: &Path, owner: &str) -> String {
    let parts = run_dir.components().rev().take(2).map(|part| part.as_os_str().to_string_lossy());
    let mut parts: Vec<String> = parts
        .map(|part| {
            let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
            part.chars().take(MAX_PART).map(safe).collect()
        })
        .collect();
    parts.reverse();
    parts.extend(owner.split(' ').take(2).map(str::to_owned));
    format!("{PREFIX}{}", parts.join("-"))
}

/// Sends KILL to everything in a cgroup and below it.
fn kill_members(dir: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let at_once = openat(dir, "cgroup.kill", flags, Mode::empty())
        .and_then(|file| rustix::io::write(file, b"1"));
    match at_once {
        Ok(_) => Ok(()),
        // Linux 5.14 has it.
        Err(_) => kill_one_by_one(dir),
    }
}

/// A process that forks meanwhile is found by the next call.
fn kill_one_by_one(dir: BorrowedFd<'_>) -> io::Result<()> {
    let listed = members(&read(dir, "cgroup.procs")?);
    let known = listed.into_iter().filter_map(|pid| {
        let stat = procfs::stat(pid).ok().flatten()?;
        Some(Process::new(pid, stat))
    });
    let known: Vec<Process> = known.collect();
    // A pid may have been given to another process between the two reads. One that is still listed is a member.
    let still = members(&read(dir, "cgroup.procs")?);
    for process in known.iter().filter(|process| still.contains(&process.pid)) {
        // A process that may not be signalled stays, and the caller gives up in the end.
        let _forbidden = process.kill();
    }
    for child in children(dir)? {
        kill_one_by_one(openat(dir, &child, DIRECTORY, Mode::empty())?.as_fd())?;
    }
    Ok(())
}

/// Removes the cgroups that the server has created in its own.
fn remove_children(dir: BorrowedFd<'_>) -> io::Result<()> {
    for child in children(dir)? {
        remove_children(openat(dir, &child, DIRECTORY, Mode::empty())?.as_fd())?;
        unlinkat(dir, &child, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

fn children(dir: BorrowedFd<'_>) -> io::Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn read(dir: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    fs::File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

/// Whether there are processes in a cgroup or below it, by its `cgroup.events`. There are unless the kernel denies it.
fn is_populated(events: &str) -> bool {
    !events.lines().any(|line| line == "populated 0")
}

/// The pids in a `cgroup.procs`. The kernel writes 0 for processes of other pid namespaces.
fn members(procs: &str) -> Vec<u32> {
    procs.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
}

#[cfg(test)]
mod tests;
