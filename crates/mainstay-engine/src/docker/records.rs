//! Records of servers' containers on disk, for the next daemon.
//!
//! A container outlives many runs and many daemons, and its labels never change: only a record has the run
//! it is in. The engine's state is authoritative. If a record is lost, the next start creates a
//! new container; the old one is still known by its [creation](super::creations).

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mainstay_core::{RunId, ServerName};
use mainstay_hold::record::if_exists;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The container of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) address: String,
    /// The id of the engine at that address.
    pub(crate) engine: String,
    /// The id of the container.
    pub(crate) container: String,
    /// The digest of the spec from which it was created.
    pub(crate) digest: String,
    /// Its last run.
    pub(crate) run: RunId,
    /// When that run was started, as the engine writes it.
    pub(crate) started_at: String,
    /// Whether the end of that run has been reported.
    pub(crate) over: bool,
    /// Whether it speaks MCP on its standard streams.
    pub(crate) stdio: bool,
    /// Whether it stays stopped if someone else stops it.
    pub(crate) respect: bool,
}

const SUFFIX: &str = "json";

/// The directory of the records.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
    /// Held while a record is composed and written, so that no stale record is written after a removal.
    writing: Arc<Mutex<()>>,
}

impl Records {
    /// Opens the directory, and reads all records.
    pub(crate) fn open(dir: PathBuf) -> io::Result<(Self, Vec<(ServerName, Record)>)> {
        let all = read_all(&dir, SUFFIX)?.into_iter();
        let all = all.filter_map(|(name, record)| Some((name.parse().ok()?, record))).collect();
        Ok((Self { dir, writing: Arc::default() }, all))
    }

    /// Writes the record that `compose` returns, if any. If that fails, the next daemon takes a run for a new one.
    pub(crate) fn write(&self, server: &ServerName, compose: impl FnOnce() -> Option<Record>) {
        let _writing = mainstay_core::lock(&self.writing);
        let Some(record) = compose() else { return };
        let path = path(&self.dir, server.as_str(), SUFFIX);
        if let Err(error) = write(&path, &record, Durability::Process) {
            tracing::warn!(%server, %error, "the record of a container cannot be written");
        }
    }

    /// Removes a record, if there is one. Returns when that is on disk.
    pub(crate) fn remove(&self, server: &ServerName) -> io::Result<()> {
        let _writing = mainstay_core::lock(&self.writing);
        let removed = if_exists(fs::remove_file(path(&self.dir, server.as_str(), SUFFIX)))?;
        removed.map_or(Ok(()), |()| File::open(&self.dir)?.sync_all())
    }
}

/// The version of the file format. Files of other versions are skipped.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    record: T,
}

/// What a written file survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// The death of this process.
    Process,
    /// A loss of power.
    Power,
}

/// Reads all files `NAME.SUFFIX` in a directory, which is created if it does not exist. Unfinished files are removed,
/// and files that cannot be read are skipped.
pub(super) fn read_all<T: DeserializeOwned>(
    dir: &Path,
    suffix: &str,
) -> io::Result<Vec<(String, T)>> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let unfinished = unfinished(suffix);
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let part = |part: Option<&std::ffi::OsStr>| part?.to_str().map(str::to_owned);
        let (Some(name), Some(extension)) = (part(path.file_stem()), part(path.extension())) else {
            continue;
        };
        if extension == unfinished {
            fs::remove_file(&path).ok();
        }
        if extension != suffix {
            continue;
        }
        match fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)) {
            Ok(Versioned { version: VERSION, record }) => all.push((name, record)),
            Ok(Versioned { .. }) => {
                tracing::warn!(path = %path.display(), "skipping a record with an unknown version");
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "skipping a bad record");
            }
        }
    }
    Ok(all)
}

/// Replaces a file. A file that already has this content is not touched, so a full disk does not matter to it.
pub(super) fn write<T: Serialize>(
    path: &Path,
    record: &T,
    durability: Durability,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(&Versioned { version: VERSION, record })?;
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let suffix = path.extension().unwrap_or_default().to_string_lossy();
    let new = path.with_extension(unfinished(&suffix));
    let written = write_new(&new, &bytes, durability).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // It uses space on a disk that may be full.
        fs::remove_file(&new).ok();
    }
    written?;
    match (durability, path.parent()) {
        (Durability::Power, Some(dir)) => File::open(dir)?.sync_all(),
        (Durability::Power, None) | (Durability::Process, _) => Ok(()),
    }
}

fn write_new(path: &Path, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    match durability {
        Durability::Power => file.sync_all(),
        Durability::Process => Ok(()),
    }
}

pub(super) fn path(dir: &Path, name: &str, suffix: &str) -> PathBuf {
    dir.join(format!("{name}.{suffix}"))
}

/// The suffix of a file until it is complete.
fn unfinished(suffix: &str) -> String {
    format!("{suffix}-new")
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
    fn written_records_are_read_and_removed_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let containers = dir.path().join("containers");
        let (records, none) = Records::open(containers.clone()).unwrap();
        assert_eq!(none, []);
        let (time, web) = ("time".parse().unwrap(), "web".parse().unwrap());
        records.write(&time, || Some(record()));
        records.write(&time, || None);
        records.write(&web, || Some(Record { over: true, ..record() }));
        records.remove(&web).unwrap();
        records.remove(&web).unwrap();
        assert_eq!(Records::open(containers).unwrap().1, [(time, record())]);
    }

    #[test]
    fn unreadable_records_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.json"), r#"{"version":2,"address":"x"}"#).unwrap();
        fs::write(dir.path().join("b.json"), "{").unwrap();
        fs::write(dir.path().join("c.new"), "{}").unwrap();
        fs::create_dir(dir.path().join("d.json")).unwrap();
        assert_eq!(Records::open(dir.path().to_owned()).unwrap().1, []);
    }
}
