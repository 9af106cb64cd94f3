//! Why an operation failed. The client's file is as it was.

use std::path::PathBuf;

use crate::edit::EditError;
use crate::file::FileError;
use crate::ledger::LedgerError;
use crate::table::OnlyStdio;

/// Why an operation on a client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No such client.
    #[error("no client is called `{id}`")]
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
    /// Our ledger could not be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl ClientError {
    /// The error and its causes in one line.
    pub fn line(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        text
    }
}
