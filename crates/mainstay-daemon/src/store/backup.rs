//! What is kept of a database before its schema is changed.
//!
//! A backup is a whole database in one file, `NAME.schema-N.bak` beside the original, only its user can
//! read it, and it is on disk before anything is changed. There is one per schema, the newest replaces an
//! older one, and no more than three are kept.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::StoreError;
use super::schema::open_to_read;

/// How many backups of a file are kept.
const KEEP: usize = 3;

/// Keeps a database as it is.
pub(super) fn keep(connection: &Connection, path: &Path, schema: i64) -> Result<(), StoreError> {
    let kept = place(path, schema);
    write_out(connection, &kept)?;
    prune(path, &kept);
    tracing::info!(path = %path.display(), backup = %kept.display(), "database kept as it was");
    Ok(())
}

/// Copies a database as it is at one moment, if there is one. Others may write it meanwhile.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    if from.exists() { write_out(&open_to_read(from)?, to) } else { Ok(()) }
}

/// Writes all that a database has into a new file, in place of one that may be there. It is whole and on
/// disk, or not there.
pub(super) fn write_out(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let unfinished = with_suffix(to, ".new");
    let written = write(connection, &unfinished, to);
    if written.is_err() {
        // It may not have been made at all.
        fs::remove_file(&unfinished).ok();
    }
    written
}

/// Puts the backup of this schema in the place of a file of another, which is set aside with all that
/// belongs to it.
pub(super) fn put_back(path: &Path, schema: i64, found: i64) -> Result<(), StoreError> {
    let failed = |source| StoreError::backup(path, source);
    let backup = place(path, schema);
    let whole = with_suffix(path, ".new");
    copy(&backup, &whole)?;
    for part in ["", "-wal", "-shm"] {
        let aside = with_suffix(path, &format!(".schema-{found}.undone{part}"));
        match fs::rename(with_suffix(path, part), aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
    }
    fs::rename(&whole, path).map_err(failed)?;
    tracing::warn!(path = %path.display(), backup = %backup.display(), "database put back as it was");
    Ok(())
}

/// The backup with the newest schema up to this one.
pub(super) fn newest(path: &Path, schema: i64) -> Option<PathBuf> {
    (1..=schema).rev().map(|schema| place(path, schema)).find(|backup| backup.exists())
}

/// Where a backup is kept.
pub(super) fn place(path: &Path, schema: i64) -> PathBuf {
    with_suffix(path, &format!(".schema-{schema}.bak"))
}

fn write(connection: &Connection, unfinished: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::backup(to, source);
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    let file = File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(unfinished)
        .map_err(failed)?;
    let name = unfinished.to_str().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
    connection
        .execute("VACUUM INTO ?1", [name])
        .map_err(|error| StoreError::from_sqlite(to, error))?;
    file.sync_all().map_err(failed)?;
    fs::rename(unfinished, to).map_err(failed)?;
    let dir = to.parent().unwrap_or(to);
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
}

/// Removes all but the newest backups. One that stays does no harm.
fn prune(path: &Path, just_made: &Path) {
    let mut old = backups(path);
    old.retain(|(_, backup)| backup != just_made);
    old.sort_unstable();
    let excess = (old.len() + 1).saturating_sub(KEEP);
    for (_, backup) in old.drain(..excess) {
        if let Err(error) = fs::remove_file(&backup) {
            tracing::warn!(backup = %backup.display(), %error, "an old backup stays behind");
        }
    }
}

/// The backups of a file, each with its schema.
fn backups(path: &Path) -> Vec<(i64, PathBuf)> {
    let beside = path.parent().and_then(|dir| fs::read_dir(dir).ok());
    let found = beside.into_iter().flatten().flatten().filter_map(|entry| {
        let backup = entry.path();
        let rest = backup.to_str()?.strip_prefix(path.to_str()?)?.strip_prefix(".schema-")?;
        let schema = rest.strip_suffix(".bak")?.parse().ok()?;
        Some((schema, backup))
    });
    found.collect()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
