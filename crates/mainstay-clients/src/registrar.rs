//! Adding, removing and putting back entries.
//!
//! Each operation holds our lock on the client's file from its first look to its last record, so two of
//! them never mix. What is intended is in the ledger before the file is touched; an operation that was
//! broken off is [unfinished](Registrar::unfinished), and doing it again completes it.

mod change;
mod error;
mod job;

use std::path::PathBuf;
use std::sync::Arc;

use mainstay_core::ServerName;

use crate::clock;
use crate::edit::{self, Value};
use crate::file::{Observer, Writer};
use crate::ledger::{self, Book, Record, Standing, State, Wish};
use crate::table::{Client, Located, Machine, Presence, Target};

pub use change::Change;
pub use error::ClientError;
use job::Job;

/// Keeps entries in clients' files.
pub struct Registrar {
    writer: Writer,
    book: Book,
    machine: Machine,
}

/// Why an entry is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The server is gone. What had to be created around the entry goes too.
    ForGood,
    /// The client shall notice. The entry will be put back as it was.
    Refresh,
}

/// How things stand with a client.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The client.
    pub client: &'static str,
    /// Where its file is, and whether it is installed.
    pub located: Located,
    /// The entries in its file, in the order of the file; then ours that are not in it.
    pub entries: Vec<EntryStatus>,
}

/// How things stand with one entry.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryStatus {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub standing: Standing,
    /// What it says, if it is there.
    pub says: Option<Value>,
}

/// Something that was begun and not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// The client's id.
    pub client: String,
    /// The server.
    pub server: String,
    /// What completes it.
    pub remedy: Remedy,
}

/// What completes something unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// [`Registrar::put_back`], or a new [`Registrar::add`].
    PutBack,
    /// [`Registrar::remove`], for good.
    Remove,
}

impl Registrar {
    /// A registrar that keeps its ledger, locks and backups in `state`.
    pub fn new(state: PathBuf, machine: Machine) -> Self {
        Self { book: Book::new(&state), writer: Writer::new(state), machine }
    }

    /// A registrar whose writer tells an observer what it is about to do, and heeds it.
    pub fn observed(state: PathBuf, machine: Machine, observer: Arc<dyn Observer>) -> Self {
        Self { book: Book::new(&state), writer: Writer::observed(state, observer), machine }
    }

    /// Adds an entry, or brings ours up to date. What a person changed in it or took out stays so.
    pub fn add(
        &self,
        client: &str,
        server: &ServerName,
        target: &Target,
    ) -> Result<Change, ClientError> {
        self.add_as(client, server, target, Wish::Keep)
    }

    /// Adds an entry because a person asks for it: one of ours that was changed or taken out is set
    /// right. Somebody else's stays.
    pub fn add_anew(
        &self,
        client: &str,
        server: &ServerName,
        target: &Target,
    ) -> Result<Change, ClientError> {
        self.add_as(client, server, target, Wish::Anew)
    }

    fn add_as(
        &self,
        client: &str,
        server: &ServerName,
        target: &Target,
        wish: Wish,
    ) -> Result<Change, ClientError> {
        let client = known(client)?;
        let located = self.locate(client);
        if located.presence == Presence::NotInstalled {
            return Err(ClientError::NotInstalled { product: client.product, file: located.file });
        }
        let entry = client.entry(target)?;
        self.job(client, located.file, server.as_str())?.add(&entry.fields, wish)
    }

    /// Takes our entry out of every file of the client that we wrote it to. Somebody else's, and one of
    /// ours that a person pointed elsewhere, stay.
    pub fn remove(
        &self,
        client: &str,
        server: &ServerName,
        purpose: Purpose,
    ) -> Result<Vec<Change>, ClientError> {
        let client = known(client)?;
        let files = self.files(client, server)?;
        if files.is_empty() {
            let file = self.locate(client).file;
            return Ok(vec![self.job(client, file, server.as_str())?.remove(purpose)?]);
        }
        files
            .into_iter()
            .map(|file| self.job(client, file, server.as_str())?.remove(purpose))
            .collect()
    }

    /// Puts an entry back that was removed for a refresh, as it was, with the user's own fields.
    pub fn put_back(&self, client: &str, server: &ServerName) -> Result<Vec<Change>, ClientError> {
        let client = known(client)?;
        let files = self.files(client, server)?;
        files.into_iter().map(|file| self.job(client, file, server.as_str())?.put_back()).collect()
    }

    /// How things stand with a client. Changes nothing.
    pub fn status(&self, client: &str) -> Result<Status, ClientError> {
        let client = known(client)?;
        let located = self.locate(client);
        let of_file = |record: &Record| record.client == client.id && record.file == located.file;
        let records: Vec<_> = self.book.records()?.into_iter().filter(of_file).collect();
        let file = self.writer.open(client, &located.file, false)?;
        let entries = file.read(|text| {
            let refused = |source| ClientError::Edit { file: located.file.clone(), source };
            entries(client, text.unwrap_or_default(), &records).map_err(refused)
        })?;
        Ok(Status { client: client.id, located, entries })
    }

    /// Everything that the ledger has.
    pub fn records(&self) -> Result<Vec<Record>, ClientError> {
        Ok(self.book.records()?)
    }

    /// What was begun and not done, by us or by those before us.
    pub fn unfinished(&self) -> Result<Vec<Unfinished>, ClientError> {
        let records = self.book.records()?.into_iter();
        Ok(records.filter_map(unfinished).collect())
    }

    /// Where a client's file is, and whether the client is installed.
    pub fn locate(&self, client: &Client) -> Located {
        self.machine.look(|around| client.locate(around))
    }

    /// The client's files that we have a record of this server in.
    fn files(&self, client: &Client, server: &ServerName) -> Result<Vec<PathBuf>, ClientError> {
        let ours = |record: &Record| record.client == client.id && record.server == server.as_str();
        let records = self.book.records()?.into_iter();
        Ok(records.filter(ours).map(|record| record.file).collect())
    }

    fn job<'a>(
        &'a self,
        client: &'static Client,
        path: PathBuf,
        server: &'a str,
    ) -> Result<Job<'a>, ClientError> {
        let installed = self.locate(client).presence != Presence::NotInstalled;
        let file = self.writer.open(client, &path, installed)?;
        // Read under the lock, so that it says what the last one left.
        let record = self.book.find(client.id, &path, server)?;
        Ok(Job { book: &self.book, client, path, file, server, record, now: clock::now() })
    }
}

fn known(id: &str) -> Result<&'static Client, ClientError> {
    Client::by_id(id).ok_or_else(|| ClientError::Unknown { id: id.to_owned() })
}

fn entries(
    client: &Client,
    text: &str,
    records: &[Record],
) -> Result<Vec<EntryStatus>, edit::EditError> {
    let place = client.place(text)?;
    let mut names = edit::names(text, &place)?;
    for record in records {
        if !names.contains(&record.server) {
            names.push(record.server.clone());
        }
    }
    let now = clock::now();
    let status = |name: String| {
        let says = edit::find(text, &place, &name)?;
        let record = records.iter().find(|record| record.server == name);
        let standing = ledger::standing(record, says.as_ref(), client.owned, now);
        Ok(EntryStatus { name, standing, says })
    };
    names.into_iter().map(status).collect()
}

fn unfinished(record: Record) -> Option<Unfinished> {
    let remedy = match record.state {
        State::Adding { .. } | State::Away { .. } => Remedy::PutBack,
        State::Leaving => Remedy::Remove,
        State::Present | State::Withdrawn => return None,
    };
    Some(Unfinished { client: record.client, server: record.server, remedy })
}
