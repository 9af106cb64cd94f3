//! The file that a user wants to update to, looked at without running it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::error::UpdateError;

/// A file that could be the new program.
#[derive(Debug)]
pub(super) struct Candidate {
    path: PathBuf,
    file: File,
}

impl Candidate {
    /// Opens a regular file.
    pub(super) fn open(path: &Path) -> Result<Self, UpdateError> {
        let failed = |source| UpdateError::Read { path: path.to_owned(), source };
        // Opening a pipe would wait for a writer.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("flags are small");
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(UpdateError::NoFile(path.to_owned()));
        }
        Ok(Self { path: path.to_owned(), file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Refuses a file that is not a program for the same system and processor as the present one: `exec` would
    /// hand it to a shell. Whether a program is whole and is Mainstay shows when it is run.
    pub(super) fn check(&self, present: &File) -> Result<(), UpdateError> {
        let failed = |source| UpdateError::Read { path: self.path.clone(), source };
        let platform = |file| platform(file).map_err(failed);
        if platform(&self.file)? == platform(present)? {
            return Ok(());
        }
        Err(UpdateError::Platform { path: self.path.clone() })
    }
}

/// What the first bytes of a program say about its system and processor. In ELF these are the magic number with
/// class, byte order and version, and the machine; in Mach-O the magic number with most of the processor
/// type, and two bytes that are zero in every program.
fn platform(file: &File) -> io::Result<Option<[u8; 9]>> {
    let mut head = [0; 20];
    match file.read_exact_at(&mut head, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut platform = [0; 9];
    platform[..7].copy_from_slice(&head[..7]);
    platform[7..].copy_from_slice(&head[18..]);
    Ok(Some(platform))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn is_refused(bytes: &[u8]) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mainstay");
        fs::write(&path, bytes).unwrap();
        let present = File::open(std::env::current_exe().unwrap()).unwrap();
        let checked = Candidate::open(&path).unwrap().check(&present);
        matches!(checked, Err(UpdateError::Platform { .. }))
    }

    #[test]
    fn only_programs_for_this_machine_are_run() {
        let mut head = fs::read(std::env::current_exe().unwrap()).unwrap();
        head.truncate(64);
        assert!(!is_refused(&head));
        // The processor.
        head[18] ^= 1;
        assert!(is_refused(&head));
        head[18] ^= 1;
        // The word size.
        head[4] ^= 3;
        assert!(is_refused(&head));
        assert!(is_refused(b"#!/bin/sh\necho mainstay 7.0.0\n"));
        assert!(is_refused(b""));
    }

    #[test]
    fn only_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| Candidate::open(path).unwrap_err();
        assert!(matches!(open(dir.path()), UpdateError::NoFile(_)));
        assert!(matches!(open(&dir.path().join("none")), UpdateError::Read { .. }));
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(matches!(open(&pipe), UpdateError::NoFile(_)));
    }
}
