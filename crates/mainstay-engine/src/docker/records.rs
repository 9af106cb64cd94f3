//! What is written down about the containers of servers, for the next daemon.
//!
//! A container outlives many runs and many daemons, and its labels never change: which run it is in can only
//! be told from a record. The engine's state is authoritative. If a record is lost, the next start makes a
//! new container; the old one is still known by its [creation](super::creations).

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use mainstay_core::{RunId, ServerName};
use serde::{Deserialize, Serialize};

/// What is known of a server's container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Where its engine is reached.
    pub(crate) address: String,
    /// Which engine that was.
    pub(crate) engine: String,
    /// The container.
    pub(crate) container: String,
    /// What it was made from.
    pub(crate) digest: String,
    /// Its last run.
    pub(crate) run: RunId,
    /// When that was started, in the engine's words.
    pub(crate) started_at: String,
    /// Whether the end of that run has been told.
    pub(crate) over: bool,
    /// Whether it speaks MCP on its standard streams.
    pub(crate) stdio: bool,
    /// Whether it is left alone when somebody stops it.
    pub(crate) respect: bool,
}

/// The form of records. One in another form is not read.
const VERSION: u32 = 1;

/// A record as it is written.
#[derive(Serialize, Deserialize)]
struct Versioned {
    version: u32,
    #[serde(flatten)]
    record: Record,
}

/// Where records are kept.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
    /// Held while a record is made and written, so that no stale record is written after a removal.
    writing: Arc<Mutex<()>>,
}

impl Records {
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir, writing: Arc::default() })
    }

    /// All records that can be read.
    pub(crate) fn all(&self) -> io::Result<Vec<(ServerName, Record)>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let server = name.and_then(|name| name.strip_suffix(".json"));
            let Some(server) = server.and_then(|name| name.parse().ok()) else { continue };
            let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
            match read {
                Ok(Versioned { version: VERSION, record }) => all.push((server, record)),
                Ok(Versioned { .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "skipping a bad record");
                }
            }
        }
        Ok(all)
    }

    /// Writes the record that is made, if any. If that fails, the next daemon takes a run for a new one.
    pub(crate) fn write(&self, server: &ServerName, make: impl FnOnce() -> Option<Record>) {
        let _writing = self.lock();
        let Some(record) = make() else { return };
        if let Err(error) = self.try_write(server, &record) {
            tracing::warn!(%server, %error, "the record of a container cannot be written");
        }
    }

    /// Removes a record, if there is one. Returns when that is on disk.
    pub(crate) fn remove(&self, server: &ServerName) -> io::Result<()> {
        let _writing = self.lock();
        match fs::remove_file(self.path(server)) {
            Ok(()) => File::open(&self.dir)?.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        mainstay_core::lock(&self.writing)
    }

    fn try_write(&self, server: &ServerName, record: &Record) -> io::Result<()> {
        let version = VERSION;
        let path = self.path(server);
        let new = path.with_extension("new");
        let mut options = File::options();
        let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(&Versioned { version, record: record.clone() })?)?;
        fs::rename(&new, path)
    }

    fn path(&self, server: &ServerName) -> PathBuf {
        self.dir.join(format!("{server}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            address: "unix:///x".to_owned(),
            engine: "E".to_owned(),
            container: "C".to_owned(),
            digest: "D".to_owned(),
            run: RunId::new(3),
            started_at: "2026-01-01T00:00:00Z".to_owned(),
            over: false,
            stdio: true,
            respect: false,
        }
    }

    #[test]
    fn what_was_written_is_read_and_what_was_removed_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path().join("containers")).unwrap();
        let (time, web) = ("time".parse().unwrap(), "web".parse().unwrap());
        records.write(&time, || Some(record()));
        records.write(&time, || None);
        records.write(&web, || Some(Record { over: true, ..record() }));
        records.remove(&web).unwrap();
        records.remove(&web).unwrap();
        assert_eq!(records.all().unwrap(), [(time, record())]);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path().to_owned()).unwrap();
        fs::write(dir.path().join("a.json"), r#"{"version":2,"address":"x"}"#).unwrap();
        fs::write(dir.path().join("b.json"), "{").unwrap();
        fs::write(dir.path().join("c.new"), "{}").unwrap();
        fs::create_dir(dir.path().join("d.json")).unwrap();
        assert_eq!(records.all().unwrap(), []);
    }
}
