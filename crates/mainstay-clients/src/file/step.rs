//! The steps of writing, and who may watch them.

use std::fmt;
use std::io;

/// Something the writer is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Make the client's directory.
    MakeDirectory,
    /// Take the client's own lock.
    Lock,
    /// Read the file.
    Read,
    /// Keep the old bytes in our state directory.
    BackUp,
    /// Create the temporary file.
    Create,
    /// Fill the temporary file.
    Fill,
    /// Give the temporary file the old one's mode, owner and attributes.
    CopyAttributes,
    /// Bring the temporary file to disk.
    Sync,
    /// Look whether somebody else wrote meanwhile.
    Compare,
    /// Move the temporary file into place.
    Rename,
    /// Remove the file.
    Remove,
    /// Bring the change of the directory to disk.
    SyncDirectory,
    /// Note in our state directory what is going to be written in place.
    Note,
    /// Write in place.
    Overwrite,
    /// Cut off what is left of a longer file that was written in place.
    Truncate,
    /// Give the client's lock back.
    Release,
}

/// Is told each step before it is taken. An error keeps it from being taken, as if the system had
/// refused it; tests use that, and the place itself, to let things go wrong.
pub trait Observer: Send + Sync {
    /// The writer is about to do this.
    fn before(&self, step: Step) -> io::Result<()>;
}

/// Lets everything pass.
pub(super) struct NoObserver;

impl Observer for NoObserver {
    fn before(&self, _: Step) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MakeDirectory => "make the directory",
            Self::Lock => "take the client's lock",
            Self::Read => "read the file",
            Self::BackUp => "keep a backup",
            Self::Create => "create a temporary file",
            Self::Fill => "fill the temporary file",
            Self::CopyAttributes => "keep mode and owner",
            Self::Sync => "bring it to disk",
            Self::Compare => "compare",
            Self::Rename => "move it into place",
            Self::Remove => "remove it",
            Self::SyncDirectory => "bring the directory to disk",
            Self::Note => "note what will be written",
            Self::Overwrite => "write in place",
            Self::Truncate => "cut off the rest",
            Self::Release => "give the client's lock back",
        })
    }
}
