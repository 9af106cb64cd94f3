//! What lies beside a database, and a damaged one that is moved there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Moves a damaged database aside, so that a new one can be begun and the old one looked at.
/// `what` it is goes into the log.
pub(crate) fn set_aside(path: &Path, what: &str) {
    let aside = place(path);
    tracing::error!(path = %path.display(), aside = %aside.display(),
        "the {what} is damaged; it is moved aside and a new one begun");
    if let Err(error) = fs::rename(path, &aside) {
        tracing::error!(%error, "the damaged {what} cannot be moved");
    }
    for part in ["-wal", "-shm"] {
        if let Err(error) = remove(&beside(path, part)) {
            tracing::warn!(%error, "a part of the damaged {what} stays behind");
        }
    }
}

/// Where a damaged database is moved.
pub(crate) fn place(path: &Path) -> PathBuf {
    beside(path, ".damaged")
}

/// The file whose name is that of another one and something more.
pub(crate) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// Removes a file that may not be there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
