//! Records the cgroup of a run in its run directory, for the guard and for later daemons.
//!
//! The file is text: the identity of the shim that created the cgroup, its inode number (`-` while it is being
//! created), and its path. The kernel does not use an inode number of a cgroup again.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, statat, unlinkat};
use rustix::io::Errno;

use super::{PREFIX, RunCgroup};
use crate::record;

/// A file in the run directory.
pub const CGROUP: &str = "cgroup";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The identity of the shim.
    pub(super) owner: String,
    pub(super) cgroup: RunCgroup,
}

pub(super) fn write(dir: BorrowedFd<'_>, record: &Record) -> io::Result<()> {
    record::replace_file(dir, CGROUP, &render(record))
}

/// The record of a run directory, if there is one from this boot.
pub(super) fn read(dir: &Path) -> io::Result<Option<Record>> {
    let bytes = record::read_file(dir, CGROUP)?;
    let Some(record) = bytes.as_deref().and_then(parse) else { return Ok(None) };
    Ok(record::is_of_this_boot(&record.owner)?.then_some(record))
}

/// Unless the kernel denies it, there is one.
pub(super) fn exists_in(dir: BorrowedFd<'_>, path: &Path) -> bool {
    !matches!(statat(dir, path, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
}

pub(crate) fn remove(dir: BorrowedFd<'_>) {
    // One that stays names a cgroup that is gone, which the next daemon finds out.
    let _stays = unlinkat(dir, CGROUP, AtFlags::empty());
}

fn render(Record { owner, cgroup }: &Record) -> Vec<u8> {
    let id = cgroup.id.map_or("-".to_owned(), |id| id.to_string());
    [format!("{owner}\n{id}\n").as_bytes(), cgroup.path.as_os_str().as_bytes()].concat()
}

/// A path that no shim would have written is not a record.
fn parse(bytes: &[u8]) -> Option<Record> {
    let mut parts = bytes.splitn(3, |&byte| byte == b'\n');
    let mut next = || parts.next();
    let owner = std::str::from_utf8(next()?).ok()?.to_owned();
    let id = match std::str::from_utf8(next()?).ok()? {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    let path = PathBuf::from(OsStr::from_bytes(next()?));
    let is_named_by_us = path.file_name()?.as_bytes().starts_with(PREFIX.as_bytes());
    let is_plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    (path.is_absolute() && is_plain && is_named_by_us)
        .then_some(Record { owner, cgroup: RunCgroup { path, id } })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    fn example(id: Option<u64>) -> Record {
        let path = "/sys/fs/cgroup/unit/mainstay-time-3-70-8812".into();
        Record { owner: "70 8812 boot".to_owned(), cgroup: RunCgroup { path, id } }
    }

    #[test]
    fn a_record_survives_the_disk_and_counts_for_its_own_boot() {
        for id in [None, Some(0), Some(u64::MAX)] {
            assert_eq!(parse(&render(&example(id))), Some(example(id)));
        }
        let temp = tempfile::tempdir().unwrap();
        let dir = File::open(temp.path()).unwrap();
        assert_eq!(read(temp.path()).unwrap(), None);
        write(dir.as_fd(), &example(Some(4))).unwrap();
        assert_eq!(read(temp.path()).unwrap(), None, "it is of another boot");
        let mine = Record { owner: record::own_identity().unwrap(), ..example(Some(4)) };
        write(dir.as_fd(), &mine).unwrap();
        assert_eq!(read(temp.path()).unwrap(), Some(mine));
        fs::write(temp.path().join(CGROUP), [0xff; 9]).unwrap();
        assert_eq!(read(temp.path()).unwrap(), None);
    }

    #[test]
    fn junk_is_not_a_record() {
        for junk in [
            "",
            "70 1 boot",
            "70 1 boot\n4",
            "70 1 boot\n4\n",
            "70 1 boot\nx\n/sys/fs/cgroup/mainstay-a",
            "70 1 boot\n4\nrelative/mainstay-a",
            "70 1 boot\n4\n/sys/fs/cgroup/system.slice",
            "70 1 boot\n4\n/sys/fs/cgroup/mainstay-a/../mainstay-b",
            "70 1 boot\n4\n/sys/fs/cgroup/mainstay-a/..",
        ] {
            assert_eq!(parse(junk.as_bytes()), None, "{junk:?}");
        }
    }
}
