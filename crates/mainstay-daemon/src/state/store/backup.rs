//! Copies of databases: before a migration, and of the store after every change.
//!
//! A backup is a complete database in one private file, `NAME.schema-N.bak` beside the original, and it is
//! on disk before anything is changed. There is one per schema, the newest replaces an
//! older one, and at most three are kept. The store's copy is `state.db.backup`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Connection;

use super::StoreError;
use crate::clock;
use crate::state::files::{beside, remove};

/// How many backups of a file are kept.
const KEEP: usize = 3;

/// An unfinished copy that has not changed for this long is abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Makes a backup of a database.
pub(super) fn keep(connection: &Connection, path: &Path, schema: i64) -> Result<(), StoreError> {
    let kept = place(path, schema);
    write_out(connection, &kept)?;
    prune(path, &kept);
    tracing::info!(path = %path.display(), backup = %kept.display(), "backup made");
    Ok(())
}

/// Copies a database to a file, which is replaced if it exists. The file is complete and on disk afterwards.
pub(super) fn write_out(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let unfinished = beside(to, ".new");
    let written = write(connection, &unfinished, to);
    if written.is_err() {
        fs::remove_file(&unfinished).ok();
    }
    written
}

/// Removes unfinished copies of daemons that were killed. A failure does no harm.
pub(super) fn remove_unfinished(path: &Path) {
    let is_abandoned = |file: &Path| {
        let changed = fs::metadata(file).and_then(|found| found.modified()).ok();
        let changed = changed.and_then(|at| Timestamp::try_from(at).ok());
        changed.is_some_and(|at| clock::since(at) >= ABANDONED_AFTER)
    };
    for file in siblings(path).filter(|(rest, file)| is_unfinished(rest) && is_abandoned(file)) {
        if let Err(error) = remove(&file.1) {
            tracing::warn!(file = %file.1.display(), %error, "an unfinished copy cannot be removed");
        }
    }
}

/// Whether a file is an unfinished copy, or a part of one, by what its name has after that of the database.
fn is_unfinished(rest: &str) -> bool {
    let base = rest
        .split_once(".new")
        .filter(|(_, part)| matches!(*part, "" | "-journal" | "-wal" | "-shm"));
    base.is_some_and(|(copy, _)| copy.starts_with('.'))
}

/// The backup with the newest schema up to this one.
pub(super) fn newest(path: &Path, schema: i64) -> Option<PathBuf> {
    (1..=schema).rev().map(|schema| place(path, schema)).find(|backup| backup.exists())
}

/// The copy that is made after every change.
pub(super) fn copy_of(path: &Path) -> PathBuf {
    beside(path, ".backup")
}

/// The file of a backup.
pub(super) fn place(path: &Path, schema: i64) -> PathBuf {
    beside(path, &format!(".schema-{schema}.bak"))
}

fn write(connection: &Connection, unfinished: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::backup(to, source);
    remove(unfinished).map_err(failed)?;
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
    sync_names(to).map_err(failed)
}

/// All copies of a database, the newest first: the one made after every change, then the backups by schema.
pub(super) fn copies(path: &Path) -> Vec<PathBuf> {
    let mut backups = backups(path);
    backups.sort_unstable();
    let backups = backups.into_iter().rev().map(|(_, backup)| backup);
    [copy_of(path)].into_iter().filter(|copy| copy.exists()).chain(backups).collect()
}

/// Syncs the directory of a file.
pub(super) fn sync_names(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

/// Removes all but the newest backups. A failure does no harm.
fn prune(path: &Path, just_made: &Path) {
    let mut old = backups(path);
    old.retain(|(_, backup)| backup != just_made);
    old.sort_unstable();
    let excess = (old.len() + 1).saturating_sub(KEEP);
    for (_, backup) in old.drain(..excess) {
        if let Err(error) = fs::remove_file(&backup) {
            tracing::warn!(backup = %backup.display(), %error, "an old backup cannot be removed");
        }
    }
}

/// The backups of a file, each with its schema.
fn backups(path: &Path) -> Vec<(i64, PathBuf)> {
    let found = siblings(path).filter_map(|(rest, backup)| {
        let schema = rest.strip_prefix(".schema-")?.strip_suffix(".bak")?.parse().ok()?;
        Some((schema, backup))
    });
    found.collect()
}

/// The files beside a database whose names begin with its name, each with the rest of its name.
fn siblings(path: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let beside = path.parent().and_then(|dir| fs::read_dir(dir).ok());
    beside.into_iter().flatten().flatten().filter_map(move |entry| {
        let file = entry.path();
        let rest = file.to_str()?.strip_prefix(path.to_str()?)?.to_owned();
        Some((rest, file))
    })
}
