//! The content and metadata of a file at one moment.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Access, OFlags, access};
use rustix::process::geteuid;

use super::FileError;
use super::state_file::if_exists;

/// The largest file that is read. Settings are smaller, and a file that keeps growing must not fill the memory.
pub(super) const MAX_BYTES: u64 = 16 * 1024 * 1024;

pub(super) struct Snapshot {
    pub(super) text: String,
    pub(super) metadata: Metadata,
    pub(super) file: File,
}

impl Snapshot {
    /// Reads a file, if it exists.
    pub(super) fn take(path: &Path) -> Result<Option<Self>, FileError> {
        // Opening a named pipe must not block.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let failed = |error| FileError::read(path, error);
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let Some(mut file) = if_exists(opened).map_err(failed)? else { return Ok(None) };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(FileError::NotAFile(path.to_owned()));
        }
        let too_large = || FileError::TooLarge(path.to_owned());
        if metadata.len() > MAX_BYTES {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        // It may grow while it is read.
        let read = (&mut file).take(MAX_BYTES + 1).read_to_end(&mut bytes);
        if read.map_err(failed)? as u64 > MAX_BYTES {
            return Err(too_large());
        }
        let text = String::from_utf8(bytes).map_err(|error| FileError::NotUtf8 {
            path: path.to_owned(),
            at: error.utf8_error().valid_up_to(),
        })?;
        Ok(Some(Self { text, metadata, file }))
    }

    /// Rejects files that every user can write, or that belong to another user: that user could make the client run any
    /// command. Root may write files of other users. Also rejects a file without a write bit, which is meant to stay
    /// unchanged even where it could be replaced.
    pub(super) fn check_writable(&self, path: &Path) -> Result<(), FileError> {
        refusal(&self.metadata, path).map_or(Ok(()), Err)?;
        check_directory(path)
    }
}

/// The same for the directory of a file, in which the file could be replaced.
pub(super) fn check_directory(path: &Path) -> Result<(), FileError> {
    let Some(dir) = path.parent() else { return Ok(()) };
    let Ok(metadata) = fs::metadata(dir) else { return Ok(()) };
    exposure(&metadata, dir).map_or(Ok(()), Err)
}

/// Whether other users may change a file, or replace files in a directory.
fn exposure(metadata: &Metadata, path: &Path) -> Option<FileError> {
    // In a sticky directory, such as /tmp, others cannot replace our files.
    let is_sticky = metadata.is_dir() && metadata.mode() & 0o1000 != 0;
    if metadata.mode() & 0o002 != 0 && !is_sticky {
        return Some(FileError::WorldWritable(path.to_owned()));
    }
    let (owner, us) = (metadata.uid(), geteuid().as_raw());
    let is_foreign = owner != us && owner != 0 && us != 0;
    is_foreign.then(|| FileError::OtherOwner { path: path.to_owned(), owner })
}

/// Why a file must not be written, if so. Ownership is checked first: a user cannot change the mode of a file of
/// another user.
pub(super) fn refusal(metadata: &Metadata, path: &Path) -> Option<FileError> {
    let unwritable = || {
        let may_write = access(path, Access::WRITE_OK).is_ok();
        why_read_only(metadata.mode(), metadata.uid(), geteuid().as_raw(), may_write, path)
    };
    exposure(metadata, path).or_else(unwritable)
}

fn why_read_only(
    mode: u32,
    owner: u32,
    us: u32,
    may_write: bool,
    path: &Path,
) -> Option<FileError> {
    let path = path.to_owned();
    // A file of root is safe, but it may not be writable.
    if owner != us && us != 0 && !may_write {
        return Some(FileError::OtherOwner { path, owner });
    }
    (mode & 0o222 == 0).then_some(FileError::ReadOnly(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_user_is_not_reported_as_read_only() {
        let why = |mode, owner, us, may_write| {
            why_read_only(mode, owner, us, may_write, Path::new("/f")).map(|why| why.to_string())
        };
        let foreign =
            "/f belongs to another user (uid 0), so it was not changed; make it yours with `chown`";
        assert_eq!(why(0o644, 0, 1000, false).as_deref(), Some(foreign));
        assert_eq!(why(0o444, 0, 1000, false).as_deref(), Some(foreign));
        assert_eq!(why(0o664, 0, 1000, true), None);
        let read_only = "/f is read-only; it was left as it is";
        assert_eq!(why(0o444, 1000, 1000, false).as_deref(), Some(read_only));
        assert_eq!(why(0o444, 1000, 0, true).as_deref(), Some(read_only));
        assert_eq!(why(0o644, 1000, 0, true), None);
    }
}
