//! Adding and removing entries.
//!
//! Each operation holds our lock on the client's file from its first read to its last record, so operations on a file
//! do not overlap. The ledger records the intent before the file is changed. Repeating an interrupted operation
//! completes it: [`Registrar::add`] for an entry in [`State::Adding`] or [`State::Away`], [`Registrar::remove`] for one
//! in [`State::Leaving`]. A removed entry is remembered until no client can write it back.

mod change;
mod error;
mod job;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::ServerName;

use crate::clock;
use crate::edit::{Created, EditError, Fields, Value};
use crate::file::{self, Observer, Writer};
use crate::ledger::{self, AddMode, LedgerFile, Observed, Purpose, Record, Standing, State};
use crate::quarantine::Quarantine;
use crate::table::{Client, Located, Machine, Presence, Target};

pub use change::Change;
pub use error::ClientError;
use job::{Job, Operation};

/// A read without a lock is repeated this often, after this time, while an entry is being added, because the result is
/// more useful. An operation that takes longer may have been interrupted.
const RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_READS: u32 = 20;

/// Adds entries to clients' files, and removes them.
pub struct Registrar {
    writer: Writer,
    ledger_file: LedgerFile,
    machine: Machine,
    /// If set, quarantined files are not read.
    quarantine: Option<Quarantine>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The id in the client table.
    pub client: &'static str,
    pub located: Located,
    /// Why the file cannot be written, or why the client rejects it.
    pub problem: Option<String>,
    /// The entries of the file, in its order; then missing entries of ours.
    pub entries: Vec<EntryStatus>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EntryStatus {
    pub name: String,
    pub standing: Standing,
    /// Its content, if it is in the file.
    pub value: Option<Value>,
}

impl Registrar {
    /// Keeps ledger, locks and backups in `state`.
    pub fn new(state: PathBuf, machine: Machine) -> Self {
        Self::with_writer(Writer::new(state), machine)
    }

    /// Reports each step of a write to an observer.
    pub fn observed(state: PathBuf, machine: Machine, observer: Arc<dyn Observer>) -> Self {
        Self::with_writer(Writer::observed(state, observer), machine)
    }

    fn with_writer(writer: Writer, machine: Machine) -> Self {
        let ledger_file = LedgerFile::new(writer.state());
        Self { writer, ledger_file, machine, quarantine: None }
    }

    /// Catches panics that a file causes, and quarantines the file.
    #[must_use]
    pub fn with_quarantine(self) -> Self {
        let quarantine = Some(Quarantine::new(self.writer.state()));
        Self { quarantine, ..self }
    }

    fn guard<T>(
        &self,
        file: &Path,
        mode: AddMode,
        work: impl FnOnce() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        match &self.quarantine {
            Some(quarantine) => quarantine.guard(file, mode == AddMode::Force, work),
            None => work(),
        }
    }

    /// Adds an entry, puts it back, or updates it. Changes and removals by users stay. An entry that was written to
    /// another file of the client, which it no longer reads, is removed there.
    pub fn add(
        &self,
        client: &str,
        server: &ServerName,
        target: &Target,
    ) -> Result<Change, ClientError> {
        self.add_as(client, server, target, AddMode::Maintain)
    }

    /// Adds an entry because a user asked for it: changes and removals by users are undone. Entries of others stay.
    pub fn force_add(
        &self,
        client: &str,
        server: &ServerName,
        target: &Target,
    ) -> Result<Change, ClientError> {
        self.add_as(client, server, target, AddMode::Force)
    }

    fn add_as(
        &self,
        client: &str,
        server: &ServerName,
        target: &Target,
        mode: AddMode,
    ) -> Result<Change, ClientError> {
        let client = client_by_id(client)?;
        let located = self.locate(client);
        if located.presence == Presence::NotInstalled {
            return Err(ClientError::NotInstalled { product: client.product, file: located.file });
        }
        let fields = client.entry(target)?;
        let elsewhere = self.move_record(client, &located.file, server)?;
        let carried_over =
            elsewhere.iter().find_map(|old| self.all_fields(client, old)).unwrap_or_default();
        let operation = Operation::Add { fields: &fields, carried_over: &carried_over, mode };
        let change = self.run(client, located.file, server, operation)?;
        for old in elsewhere {
            // If this fails, the record stays, and the removal is tried again.
            self.run(client, old.file, server, Operation::Remove(Purpose::ForGood)).ok();
        }
        Ok(change)
    }

    /// Creates a record for the file that the client reads now, if there is one for another file. Returns the records
    /// of files that it no longer reads.
    fn move_record(
        &self,
        client: &'static Client,
        file: &Path,
        server: &ServerName,
    ) -> Result<Vec<Record>, ClientError> {
        let (mut here, mut elsewhere): (Vec<_>, Vec<_>) =
            self.records_of(client, server)?.into_iter().partition(|record| record.file == file);
        // Another path of the same file.
        for old in elsewhere.extract_if(.., |old| file::is_same(&old.file, file)) {
            if here.is_empty() {
                let new = Record { file: file.to_owned(), ..old.clone() };
                self.ledger_file.set(client.id, file, server.as_str(), Some(new.clone()))?;
                here.push(new);
            }
            self.ledger_file.set(client.id, &old.file, server.as_str(), None)?;
        }
        if let ([], [old, ..]) = (here.as_slice(), elsewhere.as_slice()) {
            self.ledger_file.set(client.id, file, server.as_str(), Some(moved(old, file)))?;
        }
        Ok(elsewhere)
    }

    /// All fields of our entry, including the user's own; of a temporarily removed one, those it had.
    fn all_fields(&self, client: &'static Client, record: &Record) -> Option<Fields> {
        let parse = |text: Option<&str>| {
            let refused = |source| ClientError::Edit { file: record.file.clone(), source };
            let (_, parsed) = client.read(text.unwrap_or_default()).map_err(refused)?;
            parsed.find(&record.server).map_err(refused)
        };
        let read = || self.writer.read(&record.file, parse);
        let Some(found) = self.guard(&record.file, AddMode::Maintain, read).ok()? else {
            return match &record.state {
                State::Away { entry, .. } => Some(entry.clone()),
                State::Adding { .. } | State::Present | State::Leaving | State::Withdrawn => None,
            };
        };
        let observed = Observed::There(&found);
        let standing = ledger::standing(Some(record), observed, client.owned, clock::now());
        if let (Value::Map(fields), true) = (found, standing != Standing::Foreign) {
            Some(fields)
        } else {
            None
        }
    }

    /// Removes our entry from every file of the client that has it, with one result per file. Entries of others, and
    /// entries whose owned fields a user changed, stay.
    ///
    /// A client may write a permanently removed entry back from memory. Its record therefore stays for a while
    /// ([`State::Leaving`]), and the caller has to repeat this until the record is gone.
    pub fn remove(
        &self,
        client: &str,
        server: &ServerName,
        purpose: Purpose,
    ) -> Vec<Result<Change, ClientError>> {
        match self.files_of(client, server) {
            Ok((client, files)) => {
                let remove = |file| self.run(client, file, server, Operation::Remove(purpose));
                files.into_iter().map(remove).collect()
            }
            Err(error) => vec![Err(error)],
        }
    }

    /// The files that have our entry, or would have it.
    fn files_of(
        &self,
        client: &str,
        server: &ServerName,
    ) -> Result<(&'static Client, Vec<PathBuf>), ClientError> {
        let client = client_by_id(client)?;
        let records = self.records_of(client, server)?;
        let mut files: Vec<_> = records.into_iter().map(|record| record.file).collect();
        if files.is_empty() {
            files.push(self.locate(client).file);
        }
        Ok((client, files))
    }

    /// The state of a client. Takes no lock and changes nothing.
    pub fn status(&self, client: &str) -> Result<Status, ClientError> {
        let client = client_by_id(client)?;
        let located = self.locate(client);
        let mut records = self.records_in(client, &located.file)?;
        let mut reads = 1;
        loop {
            let parse = |text: Option<&str>| {
                let refused = |source| ClientError::Edit { file: located.file.clone(), source };
                let is_rejected = text.is_some_and(|text| client.rejects(text));
                Ok((entries(client, text, &records).map_err(refused)?, is_rejected))
            };
            let (entries, is_rejected) = self.guard(&located.file, AddMode::Maintain, || {
                self.writer.read(&located.file, parse)
            })?;
            // Without a lock, ledger and file are consistent only if the ledger is the same before and after. A read
            // takes less time than a change, so this ends.
            let after = self.records_in(client, &located.file)?;
            if after != records {
                records = after;
            } else if reads < MAX_READS && records.iter().any(is_being_added) {
                reads += 1;
                clock::pause(RETRY_DELAY, RETRY_DELAY * 2);
            } else {
                let rejected = || is_rejected.then(|| rejection(client, &located.file));
                let problem = file::why_unwritable(&located.file).or_else(rejected);
                return Ok(Status { client: client.id, located, problem, entries });
            }
        }
    }

    pub fn records(&self) -> Result<Vec<Record>, ClientError> {
        Ok(self.ledger_file.records()?)
    }

    pub fn locate(&self, client: &Client) -> Located {
        client.locate(&self.machine)
    }

    fn records_in(&self, client: &Client, file: &Path) -> Result<Vec<Record>, ClientError> {
        let ours = |record: &Record| record.client == client.id && record.file == file;
        Ok(self.ledger_file.records()?.into_iter().filter(ours).collect())
    }

    fn records_of(&self, client: &Client, server: &ServerName) -> Result<Vec<Record>, ClientError> {
        let ours = |record: &Record| record.client == client.id && record.server == server.as_str();
        Ok(self.ledger_file.records()?.into_iter().filter(ours).collect())
    }

    /// Runs an operation on an entry, unless its file is quarantined.
    fn run(
        &self,
        client: &'static Client,
        file: PathBuf,
        server: &ServerName,
        operation: Operation<'_>,
    ) -> Result<Change, ClientError> {
        let mode = match operation {
            Operation::Add { mode, .. } => mode,
            Operation::Remove(_) => AddMode::Maintain,
        };
        self.guard(&file.clone(), mode, || self.job(client, file, server.as_str())?.run(operation))
    }

    fn job<'a>(
        &'a self,
        client: &'static Client,
        path: PathBuf,
        server: &'a str,
    ) -> Result<Job<'a>, ClientError> {
        let installed = self.locate(client).presence != Presence::NotInstalled;
        let file = self.writer.open(client, &path, installed)?;
        // Read under the lock, so that it is current.
        let mut records = self.records_in(client, &path)?;
        let record = records.extract_if(.., |record| record.server == server).next();
        let absent = records.into_iter().filter_map(|record| match record.state {
            State::Away { removed, .. } => removed.map(|removed| *removed),
            State::Adding { .. } | State::Present | State::Leaving | State::Withdrawn => None,
        });
        let (absent, now) = (absent.collect(), clock::now());
        Ok(Job { ledger_file: &self.ledger_file, client, path, file, server, record, absent, now })
    }
}

fn rejection(client: &Client, file: &Path) -> String {
    format!(
        "{} begins with a byte order mark, which {} rejects with all servers; save it without",
        file.display(),
        client.product
    )
}

/// Whether an entry is being added, or its addition was interrupted.
fn is_being_added(record: &Record) -> bool {
    match record.state {
        State::Adding { .. } => true,
        State::Present | State::Away { .. } | State::Leaving | State::Withdrawn => false,
    }
}

fn client_by_id(id: &str) -> Result<&'static Client, ClientError> {
    Client::by_id(id).ok_or_else(|| ClientError::Unknown { id: id.to_owned() })
}

/// The record of an entry that the client may have copied to another file.
fn moved(old: &Record, file: &Path) -> Record {
    let state = match old.state {
        State::Adding { .. } | State::Present | State::Away { .. } | State::Leaving => {
            State::Adding { former: None }
        }
        State::Withdrawn => State::Withdrawn,
    };
    let (file, created) = (file.to_owned(), Created::default());
    Record { file, created, created_file: false, created_dir: None, state, ..old.clone() }
}

/// The entries of a text, and missing entries of ours.
fn entries(
    client: &Client,
    text: Option<&str>,
    records: &[Record],
) -> Result<Vec<EntryStatus>, EditError> {
    let now = clock::now();
    let (_, parsed) = client.read(text.unwrap_or_default())?;
    let there = parsed.entries()?;
    let record_of = |name: &str| records.iter().find(|record| record.server == name);
    let missing: Vec<_> = records
        .iter()
        .filter(|record| record.state != State::Leaving)
        .filter(|record| there.iter().all(|(name, _)| *name != record.server))
        .map(|record| {
            let observed = if text.is_some() { Observed::Missing } else { Observed::NoFile };
            let standing = ledger::standing(Some(record), observed, client.owned, now);
            EntryStatus { name: record.server.clone(), standing, value: None }
        })
        .collect();
    let there = there.into_iter().map(|(name, value)| {
        let observed = Observed::There(&value);
        let standing = ledger::standing(record_of(&name), observed, client.owned, now);
        EntryStatus { name, standing, value: Some(value) }
    });
    Ok(there.chain(missing).collect())
}
