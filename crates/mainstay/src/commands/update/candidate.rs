//! The file of the new program, checked without running it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use super::unreadable;
use crate::error::CliError;

/// Opens the new program. It must be a program for the same system and processor as the present one: `exec` would hand
/// any other file to a shell. Whether it is complete and is Mainstay is known when it has been run.
pub(super) fn open(path: &Path, present: &File) -> Result<File, CliError> {
    // Opening a pipe would wait for a writer.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("flags are small");
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(unreadable(path))?;
    if !file.metadata().map_err(unreadable(path))?.is_file() {
        let message = format!("`{}` is not a regular file", path.display());
        return Err(CliError::failed(message, super::NAME_THE_FILE));
    }
    let platform = |file| platform(file).map_err(unreadable(path));
    if platform(&file)? != platform(present)? {
        return Err(CliError::failed(
            format!("`{}` is not a program for this system and processor", path.display()),
            "name the `mainstay` program itself, unpacked and built for this machine; nothing was changed",
        ));
    }
    Ok(file)
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

    fn error(path: &Path) -> Option<String> {
        let present = File::open(std::env::current_exe().unwrap()).unwrap();
        open(path, &present).err().map(|error| error.to_string())
    }

    fn is_refused(bytes: &[u8]) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mainstay");
        fs::write(&path, bytes).unwrap();
        error(&path).is_some_and(|error| error.contains("is not a program for this system"))
    }

    #[test]
    fn a_program_for_another_platform_is_refused() {
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
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| error(path).unwrap();
        assert!(open(dir.path()).ends_with("is not a regular file"));
        assert!(open(&dir.path().join("none")).contains("cannot be read: No such file"));
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(open(&pipe).ends_with("is not a regular file"));
    }
}
