//! One operation on one entry of one file, under our lock.
//!
//! Looks, drafts what the file and the record shall say, writes down what is intended, does it, and writes
//! down what was done. Somebody may write to the file meanwhile, so it is drafted anew each time the file
//! is found to be another one.

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

/// An entry, its file and its record.
pub(super) struct Job<'a> {
    pub(super) ledger_file: &'a LedgerFile,
    pub(super) client: &'static Client,
    /// The name the client uses for its file.
    pub(super) path: PathBuf,
    pub(super) file: OpenFile,
    pub(super) server: &'a str,
    pub(super) record: Option<Record>,
    /// Our other entries of this file that are out, to be put back.
    pub(super) absent: Vec<Removed>,
    pub(super) now: Timestamp,
}

/// What is to be done to an entry.
#[derive(Clone, Copy)]
pub(super) enum Operation<'a> {
    /// Add it, or bring our fields in it up to date.
    Add {
        /// Our fields.
        fields: &'a Fields,
        /// What it said in another file that the client has left.
        carried_over: &'a Fields,
        /// How much it is wanted.
        mode: AddMode,
    },
    /// Take it out.
    Remove(Purpose),
}

impl Job<'_> {
    /// Does it.
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

    /// Writes down how things stand after an edit that failed: as before, unless it failed after the
    /// file had been replaced.
    fn after_failure(&self, drafted: Draft) -> Result<(), ClientError> {
        if self.file.is_interrupted() {
            // The next one to open the file completes it.
            return Ok(());
        }
        let is_written = |text: Option<&str>| Ok::<_, FileError>(text == drafted.text.as_deref());
        match self.file.read(is_written) {
            Ok(true) => self.finish(drafted.record.map(written_now)),
            Ok(false) => self.set(self.record.clone()),
            // Then what was intended stays written down, and can be completed.
            Err(_) => Ok(()),
        }
    }

    /// Directories that were made for a file which is gone go too, lest they make the client look
    /// installed.
    fn remove_directories(&self) {
        if let Some(Record { created_dir: Some(top), .. }) = &self.record {
            self.file.remove_directories(top);
        }
    }

    /// Writes down what is intended, before it is done. An entry that is taken out is noted as out
    /// beforehand: if it then still is in the file, it is seen to be.
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

    /// What our fields say, if the entry is in the file. One that a client wrote over is not: should the
    /// change take long or be broken off, nobody must take its absence for a removal by a person.
    fn former(&self, drafted: &Draft) -> Option<Fields> {
        let record = self.record.as_ref().filter(|_| drafted.found)?;
        match &record.state {
            State::Present => Some(record.fields.clone()),
            State::Adding { former } => former.clone(),
            State::Away { .. } | State::Leaving | State::Withdrawn => None,
        }
    }

    /// Writes down what was done.
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

/// A record of what has just been written. A change may take long, and what others write over it within
/// seconds is judged by when it was done.
fn written_now(record: Record) -> Record {
    Record { at: clock::now(), ..record }
}
