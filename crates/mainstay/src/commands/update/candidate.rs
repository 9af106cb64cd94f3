//! The file that a user wants to update to, looked at without running it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::error::UpdateError;
use super::header::{HEAD, Header};

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
        // The opening of a pipe would wait for somebody who writes to it.
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

    /// Whether it is a whole program, built for the same machine as the present one.
    pub(super) fn check(&self, present: &File) -> Result<(), UpdateError> {
        let failed = |source| UpdateError::Read { path: self.path.clone(), source };
        let no_program = |source| UpdateError::NoProgram { path: self.path.clone(), source };
        let head = |file| read(file, 0, HEAD).map_err(failed);
        let new = Header::read(&head(&self.file)?).map_err(no_program)?;
        let ours = Header::read(&head(present)?).map_err(no_program)?;
        if new.platform != ours.platform {
            let (theirs, ours) = (new.platform, ours.platform);
            return Err(UpdateError::Platform { path: self.path.clone(), theirs, ours });
        }
        let limit = usize::try_from(new.parts.len).expect("a table is short");
        let parts = read(&self.file, new.parts.offset, limit).map_err(failed)?;
        let len = self.file.metadata().map_err(failed)?.len();
        let needs = new.extent(&parts);
        if len < needs {
            return Err(UpdateError::Truncated { path: self.path.clone(), len, needs });
        }
        Ok(())
    }
}

/// So many bytes, or as many as there are.
fn read(file: &File, at: u64, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; limit];
    let mut filled = 0;
    while filled < limit {
        let at = at.saturating_add(u64::try_from(filled).expect("a table is short"));
        match file.read_at(&mut bytes[filled..], at) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn check(bytes: &[u8], expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mainstay");
        fs::write(&path, bytes).unwrap();
        let present = File::open(std::env::current_exe().unwrap()).unwrap();
        let error = Candidate::open(&path).unwrap().check(&present).unwrap_err();
        let told = mainstay_core::with_causes(&error);
        assert_eq!(told.replace(dir.path().to_str().unwrap(), ""), expected);
    }

    #[test]
    fn this_program_would_do_and_half_of_it_would_not() {
        let path = std::env::current_exe().unwrap();
        let present = File::open(&path).unwrap();
        Candidate::open(&path).unwrap().check(&present).unwrap();
        let bytes = fs::read(&path).unwrap();
        let len = bytes.len();
        check(
            &bytes[..len / 2],
            &format!("`/mainstay` is not whole: {} bytes of at least {len}", len / 2),
        );
        check(&bytes[..70], &format!("`/mainstay` is not whole: 70 bytes of at least {len}"));
    }

    #[test]
    fn what_is_not_for_this_machine_is_refused() {
        check(b"#!/bin/sh\n", "`/mainstay` cannot be run here: it is no program");
        check(b"", "`/mainstay` cannot be run here: it is no program");
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
