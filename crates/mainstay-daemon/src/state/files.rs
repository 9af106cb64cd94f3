//! Small files in the state directory, and files beside a database.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Moves a damaged database aside, so that a new one can be created and the old one examined.
pub(crate) fn quarantine(path: &Path, what: &str) {
    let aside = quarantined(path);
    tracing::error!(path = %path.display(), aside = %aside.display(),
        "the {what} is damaged; moving it aside and creating a new one");
    if let Err(error) = fs::rename(path, &aside) {
        tracing::error!(%error, "the damaged {what} cannot be moved");
    }
    for part in ["-wal", "-shm"] {
        if let Err(error) = remove(&beside(path, part)) {
            tracing::warn!(%error, "a part of the damaged {what} cannot be removed");
        }
    }
}

/// Where a damaged database is moved.
pub(crate) fn quarantined(path: &Path) -> PathBuf {
    beside(path, ".damaged")
}

/// The path with this suffix appended.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Removes a file, if it exists.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Replaces a file that only its user can read. With `sync`, it is on disk when this returns.
pub(crate) fn replace_private(path: &Path, text: &str, sync: bool) -> io::Result<()> {
    let new = beside(path, ".new");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    if sync {
        file.sync_all()?;
    }
    fs::rename(&new, path)
}
