//! The ledger on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Record, State};
use crate::file::{self, FileError};

const VERSION: u32 = 1;

/// The lock is held while one small file is written.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The ledger's file. Each call reads or replaces it as a whole, under a lock.
pub(crate) struct LedgerFile {
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("the ledger of client entries could not be locked")]
    Lock(#[source] FileError),
    #[error("{path} could not be read", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is damaged; without it, Mainstay does not recognize the entries it wrote", path = path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path} was written by a newer Mainstay (version {version})", path = path.display())]
    Newer { path: PathBuf, version: u32 },
    #[error("{path} could not be written", path = path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct FileContent {
    version: u32,
    records: Vec<Record>,
}

/// The part that every version has.
#[derive(Deserialize)]
struct FileVersion {
    version: u32,
}

impl LedgerFile {
    pub(crate) fn new(state: &Path) -> Self {
        Self { path: state.join("clients.json") }
    }

    pub(crate) fn records(&self) -> Result<Vec<Record>, LedgerError> {
        let unreadable = |source| LedgerError::Read { path: self.path.clone(), source };
        let bytes = file::if_exists(fs::read(&self.path)).map_err(unreadable)?;
        let Some(bytes) = bytes else { return Ok(Vec::new()) };
        let damaged = |source| LedgerError::Damaged { path: self.path.clone(), source };
        let FileVersion { version } = serde_json::from_slice(&bytes).map_err(damaged)?;
        if version > VERSION {
            return Err(LedgerError::Newer { path: self.path.clone(), version });
        }
        serde_json::from_slice::<FileContent>(&bytes)
            .map(|content| content.records)
            .map_err(damaged)
    }

    /// Sets or deletes the record of an entry.
    pub(crate) fn set(
        &self,
        client: &str,
        file: &Path,
        server: &str,
        record: Option<Record>,
    ) -> Result<(), LedgerError> {
        self.change(|records| {
            records.retain(|record| !is_of(record, client, file, server));
            records.extend(record);
        })
    }

    /// Records that an entry is removed permanently. What was created for it is assigned to the other entries of the
    /// file, so that removing the last one removes it.
    pub(crate) fn leave(&self, record: Record) -> Result<(), LedgerError> {
        self.change(|records| {
            records.retain(|other| !is_of(other, &record.client, &record.file, &record.server));
            transfer_ownership(&record, records);
            records.push(record);
        })
    }

    /// Deletes the record of an entry that is no longer managed. What was created for it is assigned to the other
    /// entries of the file.
    pub(crate) fn forget(
        &self,
        client: &str,
        file: &Path,
        server: &str,
    ) -> Result<(), LedgerError> {
        self.change(|records| {
            let gone = records.iter().position(|record| is_of(record, client, file, server));
            let Some(gone) = gone.map(|at| records.remove(at)) else { return };
            match gone.state {
                // This was done when the entry was removed.
                State::Leaving => {}
                State::Adding { .. } | State::Present | State::Away { .. } | State::Withdrawn => {
                    transfer_ownership(&gone, records);
                }
            }
        })
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Record>)) -> Result<(), LedgerError> {
        let lock = self.path.with_extension("lock");
        let _lock = file::lock_file(&lock, LOCK_TIMEOUT).map_err(LedgerError::Lock)?;
        let mut records = self.records()?;
        change(&mut records);
        let fail = |source| LedgerError::Write { path: self.path.clone(), source };
        let content = serde_json::to_vec_pretty(&FileContent { version: VERSION, records });
        file::write_atomically(&self.path, &content.map_err(|error| fail(error.into()))?)
            .map_err(fail)
    }
}

/// Assigns what was created for one entry to the others of its file.
fn transfer_ownership(gone: &Record, records: &mut [Record]) {
    let is_heir = |heir: &&mut Record| heir.client == gone.client && heir.file == gone.file;
    for heir in records.iter_mut().filter(is_heir) {
        heir.created = heir.created.clone().inherit(gone.created.clone());
        heir.created_file |= gone.created_file;
        heir.created_dir = heir.created_dir.take().or_else(|| gone.created_dir.clone());
    }
}

fn is_of(record: &Record, client: &str, file: &Path, server: &str) -> bool {
    record.client == client && record.file == file && record.server == server
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use jiff::Timestamp;

    use super::*;
    use crate::edit::{Created, Value};
    use crate::ledger::TextDiff;

    fn record(server: &str, state: State) -> Record {
        let text = |text: &str| Value::Text(text.to_owned());
        Record {
            client: "cursor".to_owned(),
            file: PathBuf::from("/home/ann/.cursor/mcp.json"),
            server: server.to_owned(),
            fields: vec![("url".to_owned(), text("http://x"))],
            former: Some(vec![("url".to_owned(), text("http://w"))]),
            created: Created::default(),
            created_file: true,
            created_dir: Some(PathBuf::from("/home/ann/.cursor")),
            at: Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
            state,
        }
    }

    #[test]
    fn records_are_read_in_the_order_written() {
        let dir = tempfile::tempdir().unwrap();
        let ledger_file = LedgerFile::new(&dir.path().join("state"));
        let map = Value::Map(vec![
            ("z".to_owned(), Value::Number(-1)),
            ("a".to_owned(), Value::List(vec![Value::Flag(true), Value::Other("null".to_owned())])),
        ]);
        let cut = TextDiff::between("{\"time\": 1}", "{}");
        let states = [
            State::Adding { former: None },
            State::Adding { former: Some(vec![("type".to_owned(), Value::Flag(false))]) },
            State::Present,
            State::Away { entry: vec![("headers".to_owned(), map)], cut, removed: None },
            State::Leaving,
            State::Withdrawn,
        ];
        let mut all = Vec::new();
        for (at, state) in states.into_iter().enumerate() {
            let record = record(&format!("s{at}"), state);
            ledger_file
                .set(&record.client, &record.file, &record.server, Some(record.clone()))
                .unwrap();
            all.push(record);
        }
        assert_eq!(ledger_file.records().unwrap(), all);
        let first = all.remove(0);
        ledger_file.set(&first.client, &first.file, &first.server, None).unwrap();
        assert_eq!(ledger_file.records().unwrap(), all);
        let mode = fs::metadata(&ledger_file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_unreadable_ledger_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let ledger_file = LedgerFile::new(dir.path());
        for text in ["{", r#"{"version": 2, "pages": []}"#] {
            fs::write(&ledger_file.path, text).unwrap();
            let record = record("time", State::Present);
            let result = ledger_file.set("cursor", &record.file.clone(), "time", Some(record));
            let error = result.unwrap_err();
            assert!(matches!(error, LedgerError::Damaged { .. } | LedgerError::Newer { .. }));
            assert_eq!(fs::read_to_string(&ledger_file.path).unwrap(), text);
        }
    }
}
