//! Errors of reading and writing files. The client's file is unchanged unless a message states otherwise.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Step, VerifyError};

/// Why a client's file, or a file in the state directory, could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{path}: too many symbolic links", path = .0.display())]
    LinkLoop(PathBuf),
    #[error("{path} could not be read", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A directory, a device or the like.
    #[error("{path} is not a regular file", path = .0.display())]
    NotAFile(PathBuf),
    #[error("{path} is not UTF-8 (first invalid byte: {at})", path = path.display())]
    NotUtf8 {
        path: PathBuf,
        /// The offset of the first invalid byte.
        at: usize,
    },
    #[error(
        "{path} is larger than 16 MiB, so it was not read; move other data out of it",
        path = .0.display()
    )]
    TooLarge(PathBuf),
    #[error(
        "every user of this machine can write {path}, so it was not changed; run `chmod o-w {path}`",
        path = .0.display()
    )]
    WorldWritable(PathBuf),
    #[error(
        "{path} belongs to another user (uid {owner}), so it was not changed; make it yours with `chown`",
        path = path.display()
    )]
    OtherOwner {
        /// The file, or its directory.
        path: PathBuf,
        /// The uid.
        owner: u32,
    },
    /// The file or its file system.
    #[error("{path} is read-only; it was left as it is", path = .0.display())]
    ReadOnly(PathBuf),
    /// The directory is missing, and the client is not installed.
    #[error("{path} does not exist, and its client is not installed", path = .0.display())]
    NoDirectory(PathBuf),
    /// For example, because a disk is not mounted.
    #[error("{path} is a link into {dir}, which does not exist; create {dir} or remove the link", path = path.display(), dir = dir.display())]
    DanglingLink { path: PathBuf, dir: PathBuf },
    #[error(
        "{lock} has been held by another program for {waited:?}; if none is running, remove it",
        lock = lock.display()
    )]
    Locked { lock: PathBuf, waited: Duration },
    #[error("other programs changed {path} {tries} times during the edit, so it was not changed", path = path.display())]
    KeepsChanging { path: PathBuf, tries: u32 },
    /// The edit would have changed something else, too.
    #[error("the edit of `{name}` in {path} failed its check, so the file was not changed", path = path.display())]
    VerifyFailed {
        path: PathBuf,
        name: String,
        #[source]
        source: VerifyError,
    },
    #[error("{path}: could not {step}", path = path.display())]
    Write {
        path: PathBuf,
        step: Step,
        #[source]
        source: io::Error,
    },
}

impl FileError {
    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }
}
