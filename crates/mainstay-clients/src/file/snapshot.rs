//! A file as it was at one moment.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::FileError;

/// What a file said, and what kind of file it was.
pub(super) struct Snapshot {
    pub(super) text: String,
    pub(super) metadata: Metadata,
    pub(super) file: File,
}

impl Snapshot {
    /// Reads a file, if there is one.
    pub(super) fn take(path: &Path) -> Result<Option<Self>, FileError> {
        // A pipe in the file's place must not make us wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::read(path, error)),
        };
        let metadata = file.metadata().map_err(|error| FileError::read(path, error))?;
        if !metadata.is_file() {
            return Err(FileError::NotAFile { path: path.to_owned() });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| FileError::read(path, error))?;
        let text = String::from_utf8(bytes).map_err(|error| FileError::NotText {
            path: path.to_owned(),
            at: error.utf8_error().valid_up_to(),
        })?;
        Ok(Some(Self { text, metadata, file }))
    }

    /// A file without a write bit is meant to stay as it is, even where we could replace it.
    pub(super) fn refuse_if_read_only(&self, path: &Path) -> Result<(), FileError> {
        if is_read_only(&self.metadata) {
            return Err(FileError::ReadOnly { path: path.to_owned() });
        }
        Ok(())
    }
}

pub(super) fn is_read_only(metadata: &Metadata) -> bool {
    metadata.mode() & 0o222 == 0
}
