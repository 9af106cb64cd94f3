//! Errors of databases.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rustix::fs::statvfs;

use super::restore::usable_copy;

/// An IO error on a disk with less free space is reported as a full disk: the files beside an open database need
/// as much.
const LOW_SPACE: u64 = 64 * 1024;

/// Why a database cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// `backup` is a copy of the file with a schema that this program knows.
    #[error("the database `{}` has schema {found}, this version of Mainstay knows {known}", path.display())]
    Newer { path: PathBuf, found: i64, known: i64, backup: Option<PathBuf> },
    /// It is not a database, belongs to another program, or has invalid content.
    #[error("the database `{}` is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    /// It does not exist, although there was one.
    #[error("the database `{}` {what}", path.display())]
    Lost { path: PathBuf, what: String },
    #[error("the disk is full: `{}` could not be written", path.display())]
    Full { path: PathBuf },
    /// Without a backup, the schema is not changed.
    #[error("the backup `{}` could not be made: {source}", path.display())]
    Backup { path: PathBuf, source: io::Error },
    #[error("another daemon has taken over `{}`", path.display())]
    Fenced { path: PathBuf },
    #[error("the database `{}` cannot be used: {source}", path.display())]
    Sqlite { path: PathBuf, source: rusqlite::Error },
}

impl StoreError {
    pub(crate) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        // A value of the wrong type was not written by Mainstay.
        if let rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::FromSqlConversionFailure(..) = source
        {
            return Self::Damaged { path, what: source.to_string() };
        }
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full { path },
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) if is_full(&path) => {
                Self::Full { path }
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged { path, what: source.to_string() }
            }
            _ => Self::Sqlite { path, source },
        }
    }

    pub(super) fn backup(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull => Self::Full { path },
            _ => Self::Backup { path, source },
        }
    }

    /// Advice for the user.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Newer { backup: None, .. } => {
                Some("install the newer version again, or point MAINSTAY_HOME elsewhere".to_owned())
            }
            Self::Newer { path, backup: Some(backup), .. } => Some(format!(
                "install the newer version again; or, to give up what was changed since, replace `{}` \
                 by `{}`",
                path.display(),
                backup.display()
            )),
            Self::Lost { path, .. } | Self::Damaged { path, .. } => Some(match usable_copy(path) {
                Some(copy) => {
                    format!("`mainstay doctor --restore` restores it from `{}`", copy.display())
                }
                None => "restore your own copy of it, or start without servers: \
                         `mainstay doctor --restore --empty`, then `mainstay import` reads an export"
                    .to_owned(),
            }),
            Self::Full { .. } => Some("free some space; nothing was changed".to_owned()),
            Self::Backup { path, .. } => {
                Some(format!("nothing was changed; make it possible to write `{}`", path.display()))
            }
            Self::Fenced { .. } => {
                Some("nothing was changed; the same command reaches the new daemon".to_owned())
            }
            Self::Sqlite { .. } => None,
        }
    }
}

fn is_full(path: &Path) -> bool {
    let beside = path.parent().unwrap_or(path);
    statvfs(beside).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < LOW_SPACE)
}
