//! The steps of a write, and observers of them.

use std::io;

/// Something that the writer is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Step {
    #[error("create the directory")]
    MakeDirectory,
    #[error("take the client's lock")]
    Lock,
    #[error("read the file")]
    Read,
    #[error("write a backup")]
    BackUp,
    #[error("create a temporary file")]
    Create,
    #[error("write the temporary file")]
    Fill,
    #[error("copy mode and owner")]
    CopyAttributes,
    #[error("flush it to disk")]
    Sync,
    /// Check whether another program wrote meanwhile.
    #[error("compare it with what was read")]
    Compare,
    #[error("rename it into place")]
    Rename,
    #[error("remove it")]
    Remove,
    #[error("flush the directory to disk")]
    SyncDirectory,
    /// Record a write in place in the state directory.
    #[error("record the write")]
    Note,
    #[error("write in place")]
    Overwrite,
    #[error("truncate it")]
    Truncate,
    #[error("release the client's lock")]
    Release,
}

/// Called before each step. An error prevents the step, as if the system had refused it. Tests use this to inject faults.
pub trait Observer: Send + Sync {
    fn before(&self, step: Step) -> io::Result<()>;
}
