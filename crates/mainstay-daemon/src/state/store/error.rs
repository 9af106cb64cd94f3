//! Why a database cannot be read or written.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rustix::fs::statvfs;

use super::restore::usable_copy;

/// A disk with less room than this passes for one that fails: what is kept beside a database that is open
/// takes as much.
const ROOM: u64 = 64 * 1024;

/// Why the store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A later version of this program wrote it.
    #[error("the database `{}` has schema {found}, this version of Mainstay knows {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema that this program knows.
        known: i64,
        /// What was kept of the file when it still had a schema that this program knows.
        backup: Option<PathBuf>,
    },
    /// It is no database, or not ours, or its content makes no sense.
    #[error("the database `{}` is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// It is not there, although there was one.
    #[error("the database `{}` {what}", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// There is no room left for it.
    #[error("the disk is full: `{}` could not be written", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be kept as it is, so its schema is not changed.
    #[error("the backup `{}` could not be made: {source}", path.display())]
    Backup {
        /// The backup.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another daemon has it now.
    #[error("another daemon has taken over `{}`", path.display())]
    Fenced {
        /// The file.
        path: PathBuf,
    },
    /// Anything else.
    #[error("the database `{}` cannot be used: {source}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

impl StoreError {
    pub(crate) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        // A value where none of its kind can be, or that makes no sense, was not written by us.
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

    /// What the user can do about it.
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
                None => "put a copy of yours in its place, or start without servers: \
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
    statvfs(beside).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < ROOM)
}
