//! Why a file could not be read or written. The file is as it was, unless a message says otherwise.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Step, VerifyError};

/// Why a client's file, or a file of ours beside it, could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Links that lead in a circle.
    #[error("{path}: the links lead in a circle", path = .0.display())]
    LinkLoop(PathBuf),
    /// It could not be read.
    #[error("{path} could not be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is a directory, a device or the like.
    #[error("{path} is no regular file", path = .0.display())]
    NotAFile(PathBuf),
    /// It is not UTF-8.
    #[error("{path} is not UTF-8 text (first at byte {at})", path = path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where the first odd byte is.
        at: usize,
    },
    /// It is too large to be a client's settings.
    #[error(
        "{path} is larger than 16 MiB, so it was not read; move other data out of it",
        path = .0.display()
    )]
    TooLarge(PathBuf),
    /// Every user may write it.
    #[error(
        "every user of this machine can write {path}, so it was not changed; run `chmod o-w {path}`",
        path = .0.display()
    )]
    WorldWritable(PathBuf),
    /// It belongs to another user.
    #[error(
        "{path} belongs to another user (uid {owner}), so it was not changed; make it yours with `chown`",
        path = path.display()
    )]
    OtherOwner {
        /// The file, or its directory.
        path: PathBuf,
        /// The uid of the owner.
        owner: u32,
    },
    /// It, or the file system it is on, is read-only.
    #[error("{path} is read-only; it was left as it is", path = .0.display())]
    ReadOnly(PathBuf),
    /// The directory is missing, and its client is not installed.
    #[error("{path} does not exist, and its client is not installed", path = .0.display())]
    NoDirectory(PathBuf),
    /// A link leads to a directory that is missing, as if a disk were not there.
    #[error("{path} leads into {dir}, which does not exist; make it, or remove the link", path = path.display(), dir = dir.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// The directory.
        dir: PathBuf,
    },
    /// Somebody else holds a lock, and does not let go of it.
    #[error(
        "{lock} has been held by another program for {waited:?}; if none is running, remove it",
        lock = lock.display()
    )]
    Locked {
        /// The lock.
        lock: PathBuf,
        /// How long we waited.
        waited: Duration,
    },
    /// Others wrote each time before we could.
    #[error("{path} was written by others {tries} times meanwhile; it was left as it is", path = path.display())]
    KeepsChanging {
        /// The file.
        path: PathBuf,
        /// How often we tried.
        tries: u32,
    },
    /// The edit would have changed something else too.
    #[error("an edit of `{name}` in {path} was not sound; the file was left as it is", path = path.display())]
    VerifyFailed {
        /// The file.
        path: PathBuf,
        /// The entry.
        name: String,
        /// What was wrong with it.
        #[source]
        source: VerifyError,
    },
    /// A step of writing failed.
    #[error("{path}: could not {step}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The step.
        step: Step,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl FileError {
    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }
}
