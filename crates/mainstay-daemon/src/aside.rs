//! Moving a damaged database out of the way.

use std::ffi::OsString;
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
    for suffix in ["-wal", "-shm"] {
        let mut name = OsString::from(path);
        name.push(suffix);
        match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "a part of the damaged {what} stays behind");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Where a damaged database is moved.
pub(crate) fn place(path: &Path) -> PathBuf {
    path.with_extension("db.damaged")
}
