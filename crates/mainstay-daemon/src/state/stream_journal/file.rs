//! The file of the journal.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::entry::{Entry, HEADER};

/// The size of each write when the file is created.
const CHUNK: usize = 256 * 1024;

/// The file of one daemon, which bears its number. A daemon reads the file of the newest before it and
/// replaces it by its own, so the writes of one that was replaced are never read.
#[derive(Debug)]
pub(super) struct JournalFile {
    path: PathBuf,
    file: File,
}

impl JournalFile {
    /// Creates the file of this number with these entries. Also returns its length.
    pub(super) fn create(
        dir: &Path,
        number: u64,
        entries: impl IntoIterator<Item = Entry>,
    ) -> io::Result<(Self, u64)> {
        make_dir(dir)?;
        let path = dir.join(number.to_string());
        let new = dir.join(format!("{number}.new"));
        let written = write(&new, entries).and_then(|done| fs::rename(&new, &path).map(|()| done));
        match written {
            Ok((file, length)) => Ok((Self { path, file }, length)),
            Err(error) => {
                // It may have been what filled the disk.
                fs::remove_file(&new).ok();
                Err(error)
            }
        }
    }

    /// Appends entries with one system call. Fails if the file was
    /// removed, because no daemon would find it.
    pub(super) fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::Error::new(ErrorKind::NotFound, "the file was removed"));
        }
        let written = loop {
            match self.file.write(entries) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if written < entries.len() {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Empties the file. It stays if possible, because its existence marks older files as outdated.
    pub(super) fn wipe(&self) {
        if let Err(error) = self.file.set_len(0).or_else(|_| fs::remove_file(&self.path)) {
            tracing::error!(%error, "an outdated journal of streams stays behind");
        }
    }

    /// Simulates a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        self.file = File::options().write(true).open("/dev/full").expect("every system has it");
    }
}

/// The content of the newest file, if there is one.
pub(super) fn newest(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    let newest = numbers(dir)?.into_iter().max();
    newest.map(|number| fs::read(dir.join(number.to_string()))).transpose()
}

/// The highest number of a daemon that left a file.
pub(super) fn newest_number(dir: &Path) -> Option<u64> {
    numbers(dir).ok()?.into_iter().max()
}

/// Whether a daemon of a higher number has taken over.
pub(super) fn is_replaced(dir: &Path, number: u64) -> bool {
    numbers(dir).is_ok_and(|numbers| numbers.into_iter().any(|other| other > number))
}

/// Creates the private directory.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Removes everything but the file of this number.
pub(super) fn clear(dir: &Path, number: u64) -> io::Result<()> {
    let own = number.to_string();
    for found in fs::read_dir(dir)? {
        let found = found?;
        if found.file_name() != *own {
            fs::remove_file(found.path())?;
        }
    }
    Ok(())
}

fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for found in fs::read_dir(dir)? {
        numbers.extend(found?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    Ok(numbers)
}

/// Writes entries to a new file, and returns its length.
fn write(path: &Path, entries: impl IntoIterator<Item = Entry>) -> io::Result<(File, u64)> {
    let mut file =
        File::options().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    let mut length = 0;
    let mut chunk = HEADER.to_vec();
    for entry in entries {
        entry.encode(&mut chunk);
        if chunk.len() >= CHUNK {
            file.write_all(&chunk)?;
            length += chunk.len() as u64;
            chunk.clear();
        }
    }
    file.write_all(&chunk)?;
    Ok((file, length + chunk.len() as u64))
}
