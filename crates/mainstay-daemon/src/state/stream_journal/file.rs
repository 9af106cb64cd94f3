//! The file of the journal.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::retry_on_intr;

use super::entry::{Entry, HEADER};

/// The size of each write when the file is created.
const CHUNK: usize = 256 * 1024;

/// The file of one daemon, named by its number. A daemon reads the file of the newest one before it and replaces it by
/// its own, so the writes of a replaced daemon are never read.
#[derive(Debug)]
pub(super) struct JournalFile {
    dir: PathBuf,
    number: u64,
    /// `None` if nothing can be appended.
    pub(super) file: Option<File>,
}

impl JournalFile {
    pub(super) fn new(dir: &Path, number: u64) -> Self {
        Self { dir: dir.to_owned(), number, file: None }
    }

    /// Replaces the file by one with these entries. Returns its length.
    pub(super) fn rewrite(&mut self, entries: impl IntoIterator<Item = Entry>) -> io::Result<u64> {
        make_dir(&self.dir)?;
        let (path, new) = (self.path(), self.path().with_extension("new"));
        let written = write(&new, entries).and_then(|done| fs::rename(&new, path).map(|()| done));
        // An unfinished file may have filled the disk.
        let (file, length) = written.inspect_err(|_| drop(fs::remove_file(&new)))?;
        self.file = Some(file);
        Ok(length)
    }

    /// Appends entries with one system call, and returns their length. If that fails, the file is emptied. It fails if
    /// the file was removed, because no daemon would find it.
    pub(super) fn append(&mut self, entries: &[u8]) -> io::Result<u64> {
        let file = self.file.as_ref().ok_or(ErrorKind::NotFound)?;
        append(file, entries).inspect_err(|_| self.wipe())
    }

    /// Empties the file. It stays if possible, because its existence marks older files as outdated.
    pub(super) fn wipe(&mut self) {
        let Some(file) = self.file.take() else { return };
        if let Err(error) = file.set_len(0).or_else(|_| fs::remove_file(self.path())) {
            tracing::error!(%error, "an outdated journal of streams cannot be removed");
        }
    }

    /// Whether a daemon of a higher number has taken over.
    pub(super) fn is_replaced(&self) -> bool {
        newest_number(&self.dir).is_some_and(|newest| newest > self.number)
    }

    /// Removes all other files.
    pub(super) fn remove_others(&self) -> io::Result<()> {
        for found in fs::read_dir(&self.dir)? {
            let found = found?;
            if found.path() != self.path() {
                fs::remove_file(found.path())?;
            }
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.dir.join(self.number.to_string())
    }
}

/// The content of the newest file, if there is one.
pub(super) fn newest(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    make_dir(dir)?;
    newest_number(dir).map(|number| fs::read(dir.join(number.to_string()))).transpose()
}

/// The highest number of a daemon that left a file.
pub(super) fn newest_number(dir: &Path) -> Option<u64> {
    let names = fs::read_dir(dir).ok()?.flatten().map(|found| found.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).max()
}

fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn append(file: &File, entries: &[u8]) -> io::Result<u64> {
    if file.metadata()?.nlink() == 0 {
        return Err(io::Error::new(ErrorKind::NotFound, "the file was removed"));
    }
    let written = retry_on_intr(|| rustix::io::write(file, entries))?;
    if written < entries.len() {
        return Err(ErrorKind::StorageFull.into());
    }
    Ok(written as u64)
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
