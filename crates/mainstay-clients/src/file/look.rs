//! Looking at a client's file, which somebody else may just be writing.

use std::path::Path;
use std::time::Duration;

use super::snapshot::Snapshot;
use super::{FileError, Step, TRIES, Writer, resolve};
use crate::clock;

/// A client that writes in place shows an empty file, or half of one, for a moment. Such a file is
/// believed if it is the same after this.
const SETTLES: Duration = Duration::from_millis(250);

/// A file to look at.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) writer: &'a Writer,
    /// The path the client uses.
    pub(super) path: &'a Path,
    /// What that leads to through links.
    pub(super) target: &'a Path,
}

impl Spot<'_> {
    /// Reads the file. `understand` gets what it says (nothing: no such file). What cannot be understood
    /// is read again, if somebody is just writing it.
    pub(super) fn read<T, E: From<FileError>>(
        self,
        understand: impl Fn(Option<&str>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tries = 1;
        loop {
            let old = self.look()?;
            match understand(old.as_ref().map(|old| old.text.as_str())) {
                Err(_) if tries < TRIES && self.is_unsettled(old.as_ref())? => tries += 1,
                result => return result,
            }
        }
    }

    /// The file as it is, once it is known not to be one that is about to be filled.
    pub(super) fn look(self) -> Result<Option<Snapshot>, FileError> {
        self.writer.before(Step::Read, self.target)?;
        let snapshot = Snapshot::take(self.target)?;
        if snapshot.as_ref().is_some_and(|snapshot| snapshot.text.is_empty()) {
            clock::pause(SETTLES, SETTLES);
            return Snapshot::take(self.target);
        }
        Ok(snapshot)
    }

    /// Whether somebody is just writing the file.
    pub(super) fn is_unsettled(self, old: Option<&Snapshot>) -> Result<bool, FileError> {
        clock::pause(SETTLES, SETTLES);
        self.is_overtaken(old)
    }

    /// Whether the file is another one than it was.
    pub(super) fn is_overtaken(self, old: Option<&Snapshot>) -> Result<bool, FileError> {
        if resolve::resolve(self.path)? != self.target {
            return Ok(true);
        }
        let now = Snapshot::take(self.target)?;
        Ok(now.map(|now| now.text) != old.map(|old| old.text.clone()))
    }
}
