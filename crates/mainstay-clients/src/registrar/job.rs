//! One operation on one entry of one file, under our lock.
//!
//! Reads the file, drafts the new text and record, records the intent, writes the file, and records the result. If
//! another program writes meanwhile, the draft is repeated.

mod draft;

use std::path::PathBuf;

use jiff::Timestamp;

use super::{Change, ClientError};
use crate::clock;
use crate::edit::{EditError, Fields, Removed};
use crate::file::{FileError, OpenFile};
use crate::ledger::{AddMode, LedgerFile, Purpose, Record, State};
use crate::table::Client;

use draft::Draft;

pub(super) struct Job<'a> {
    pub(super) ledger_file: &'a LedgerFile,
    pub(super) client: &'static Client,
    /// The path that the client uses.
    pub(super) path: PathBuf,
    pub(super) file: OpenFile,
    pub(super) server: &'a str,
    pub(super) record: Option<Record>,
    /// Other entries of this file that are removed temporarily.
    pub(super) absent: Vec<Removed>,
    pub(super) now: Timestamp,
}

#[derive(Clone, Copy)]
pub(super) enum Operation<'a> {
    /// Add the entry, or update its owned fields.
    Add {
        /// The owned fields.
        fields: &'a Fields,
        /// The fields of the entry in another file, which the client no longer reads.
        carried_over: &'a Fields,
        mode: AddMode,
    },
    Remove(Purpose),
}

impl Job<'_> {
    pub(super) fn run(self, operation: Operation<'_>) -> Result<Change, ClientError> {
        let draft =
            |text: Option<&str>| self.draft(text, operation).map_err(|error| self.refused(error));
        let mut drafted = self.file.read(draft)?;
        if drafted.is_change() {
            self.begin(&drafted)?;
            let written = self.file.edit(self.server, |text| {
                if text != drafted.from.as_deref() {
                    drafted = draft(text)?;
                    self.begin(&drafted)?;
                }
                Ok(drafted.text.clone())
            });
            if let Err(error) = written {
                self.after_failure(drafted)?;
                return Err(error);
            }
            self.finish(drafted.record.map(written_now))?;
        } else if drafted.record != self.record {
            self.finish(drafted.record)?;
        }
        let is_rejected = drafted.text.as_ref().is_some_and(|text| self.client.rejects(text))
            && matches!(operation, Operation::Add { .. });
        if let (Operation::Remove(Purpose::ForGood), None) = (operation, drafted.text) {
            self.remove_directories();
        }
        let Draft { done, own_fields, .. } = drafted;
        let (file, server) = (self.path, self.server.to_owned());
        Ok(Change { client: self.client, file, server, done, own_fields, is_rejected })
    }

    /// Records the state after a failed edit: the former one, unless the edit failed after the file was replaced.
    fn after_failure(&self, drafted: Draft) -> Result<(), ClientError> {
        if self.file.is_interrupted() {
            // The next operation on the file completes it.
            return Ok(());
        }
        let is_written = |text: Option<&str>| Ok::<_, FileError>(text == drafted.text.as_deref());
        match self.file.read(is_written) {
            Ok(true) => self.finish(drafted.record.map(written_now)),
            Ok(false) => self.set(self.record.clone()),
            // The intent stays recorded, so the operation can be completed.
            Err(_) => Ok(()),
        }
    }

    /// Removes directories that were created for a file that is gone, because they would make the client look
    /// installed.
    fn remove_directories(&self) {
        if let Some(Record { created_dir: Some(top), .. }) = &self.record {
            self.file.remove_directories(top);
        }
    }

    /// Records the intent. An entry to be removed is recorded as removed; if it is still in the file afterwards, that
    /// is visible.
    fn begin(&self, drafted: &Draft) -> Result<(), ClientError> {
        let begun = |record: &Record| {
            let state = match &record.state {
                State::Present => State::Adding { former: self.former(drafted) },
                State::Adding { .. } | State::Away { .. } | State::Leaving | State::Withdrawn => {
                    record.state.clone()
                }
            };
            Record { state, ..record.clone() }
        };
        self.set(drafted.record.as_ref().map(begun))
    }

    /// The owned fields, if the entry is in the file. Nothing for an entry that a client overwrote: if the change takes
    /// long or is interrupted, its absence must not be taken for a removal by a user.
    fn former(&self, drafted: &Draft) -> Option<Fields> {
        let record = self.record.as_ref().filter(|_| drafted.found)?;
        match &record.state {
            State::Present => Some(record.fields.clone()),
            State::Adding { former } => former.clone(),
            State::Away { .. } | State::Leaving | State::Withdrawn => None,
        }
    }

    /// Records the result.
    fn finish(&self, record: Option<Record>) -> Result<(), ClientError> {
        match record {
            Some(record) if record.state == State::Leaving => Ok(self.ledger_file.leave(record)?),
            Some(record) => self.set(Some(record)),
            None => Ok(self.ledger_file.forget(self.client.id, &self.path, self.server)?),
        }
    }

    fn set(&self, record: Option<Record>) -> Result<(), ClientError> {
        Ok(self.ledger_file.set(self.client.id, &self.path, self.server, record)?)
    }

    fn refused(&self, source: EditError) -> ClientError {
        ClientError::Edit { file: self.path.clone(), source }
    }
}

/// Sets the time of the record to now. An edit may take long, and whether a client overwrote an entry is decided by the
/// time since it was written.
fn written_now(record: Record) -> Record {
    Record { at: clock::now(), ..record }
}
