//! The steps of a write, and observers of them.

use std::fmt;
use std::io;

/// Something that the writer is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    MakeDirectory,
    Lock,
    Read,
    BackUp,
    Create,
    Fill,
    CopyAttributes,
    Sync,
    /// Check whether another program wrote meanwhile.
    Compare,
    Rename,
    Remove,
    SyncDirectory,
    /// Record a write in place in the state directory.
    Note,
    Overwrite,
    Truncate,
    Release,
}

/// Called before each step. An error prevents the step, as if the system had refused it. Tests use this to inject faults.
pub trait Observer: Send + Sync {
    fn before(&self, step: Step) -> io::Result<()>;
}

pub(super) struct NoObserver;

impl Observer for NoObserver {
    fn before(&self, _: Step) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MakeDirectory => "create the directory",
            Self::Lock => "take the client's lock",
            Self::Read => "read the file",
            Self::BackUp => "write a backup",
            Self::Create => "create a temporary file",
            Self::Fill => "write the temporary file",
            Self::CopyAttributes => "copy mode and owner",
            Self::Sync => "flush it to disk",
            Self::Compare => "compare it with what was read",
            Self::Rename => "rename it into place",
            Self::Remove => "remove it",
            Self::SyncDirectory => "flush the directory to disk",
            Self::Note => "record the write",
            Self::Overwrite => "write in place",
            Self::Truncate => "truncate it",
            Self::Release => "release the client's lock",
        })
    }
}
