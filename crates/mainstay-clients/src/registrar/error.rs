//! Why an operation failed. The client's file is as it was.

use std::path::PathBuf;

use mainstay_core::with_causes;

use crate::QuarantineReason;
use crate::edit::EditError;
use crate::file::FileError;
use crate::ledger::LedgerError;
use crate::table::OnlyStdio;

/// Why an operation on a client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No such client.
    #[error("no client is called `{id}`; `mainstay client ls` shows those there are")]
    Unknown {
        /// What was given.
        id: String,
    },
    /// The client is not there.
    #[error("{product} is not installed ({file} would be its file)", file = file.display())]
    NotInstalled {
        /// The client.
        product: &'static str,
        /// The file it would have.
        file: PathBuf,
    },
    /// It cannot be given a URL.
    #[error(transparent)]
    OnlyStdio(#[from] OnlyStdio),
    /// Its file does not make sense, or not enough to be edited.
    #[error("{file} was left as it is", file = file.display())]
    Edit {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: EditError,
    },
    /// Its file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its file crashed the code that reads it, and is left alone.
    #[error(
        "{file} is not read: {why}; it is tried again when it changes, or with `mainstay client add`",
        file = file.display()
    )]
    Quarantined {
        /// The file.
        file: PathBuf,
        /// What happened.
        why: QuarantineReason,
    },
    /// Our ledger could not be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl ClientError {
    /// What went wrong, with its causes, in one line for people.
    pub fn line(&self) -> String {
        with_causes(self)
    }
}
