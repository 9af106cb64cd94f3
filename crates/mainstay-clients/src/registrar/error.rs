//! Errors of operations on a client. The client's file is unchanged.

use std::path::PathBuf;

use mainstay_core::with_causes;

use crate::QuarantineReason;
use crate::edit::EditError;
use crate::file::FileError;
use crate::ledger::LedgerError;
use crate::table::OnlyStdio;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no client is called `{id}`; `mainstay client ls` lists the clients")]
    Unknown { id: String },
    #[error("{product} is not installed ({file} would be its file)", file = file.display())]
    NotInstalled {
        product: &'static str,
        /// The file it would have.
        file: PathBuf,
    },
    #[error(transparent)]
    OnlyStdio(#[from] OnlyStdio),
    #[error("{file} was left as it is", file = file.display())]
    Edit {
        file: PathBuf,
        #[source]
        source: EditError,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "{file} is not read: {why}; it is tried again when it changes, or with `mainstay client add`",
        file = file.display()
    )]
    Quarantined { file: PathBuf, why: QuarantineReason },
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl ClientError {
    /// The message and its causes on one line.
    pub fn line(&self) -> String {
        with_causes(self)
    }
}
