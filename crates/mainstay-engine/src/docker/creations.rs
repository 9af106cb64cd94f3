//! The containers that this instance has created, on disk.
//!
//! A creation is written before the engine is asked for the container, with a random nonce that the
//! container carries as a label. The id is added when the engine has answered ("bound"), and before the
//! container is started. The file stays until the container is gone. A daemon may die at any point: the
//! next one knows the id, or finds the container by a nonce that has no id yet.
//!
//! Each creation has a file of its own, `NONCE.creation`, beside the records of runs. Version 0.1.0 wrote
//! only those records: the ids in them become creations when they are read.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use mainstay_core::ServerName;
use mainstay_hold::record::if_exists;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::records::{self, Durability, read_all};
use crate::tasks::blocking;

const SUFFIX: &str = "creation";

/// A container that an engine was asked to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Creation {
    pub(crate) server: ServerName,
    /// Where the engine was reached.
    pub(crate) address: String,
    /// Which engine that was.
    pub(crate) engine: String,
    /// 128 random bits in hexadecimal digits.
    pub(crate) nonce: String,
    /// The id of the container, once it is known.
    pub(crate) container: Option<String>,
}

/// A creation, with what only this daemon knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) creation: Creation,
    /// Whether this daemon is waiting for the engine's answer.
    pub(crate) in_flight: bool,
    /// Since when complete lists of the engine lack a container with the nonce.
    pub(crate) missing_since: Option<Instant>,
}

impl Entry {
    fn is_bound_to(&self, container: &str) -> bool {
        self.creation.container.as_deref() == Some(container)
    }
}

/// All creations whose containers may exist.
#[derive(Debug)]
pub(crate) struct Creations {
    dir: PathBuf,
    /// By nonce.
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Held while files are changed, so that they follow each other like the changes in memory.
    writing: tokio::sync::Mutex<()>,
}

impl Creations {
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        let all = read_all::<Creation>(&dir, SUFFIX)?.into_iter();
        let entries = all.map(|(_, creation)| (creation.nonce.clone(), Entry::from(creation)));
        let entries = Mutex::new(entries.collect());
        Ok(Self { dir, entries, writing: tokio::sync::Mutex::default() })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn all(&self) -> Vec<Entry> {
        self.entries().values().cloned().collect()
    }

    /// Whether anything was created for a server that may still exist.
    pub(crate) fn has_any_of(&self, server: &ServerName) -> bool {
        self.entries().values().any(|entry| entry.creation.server == *server)
    }

    /// Whether a container with this id was created for that server.
    pub(crate) fn is_of(&self, server: &ServerName, container: &str) -> bool {
        let entries = self.entries();
        let mut ours = entries.values().filter(|entry| entry.creation.server == *server);
        ours.any(|entry| entry.is_bound_to(container))
    }

    /// Imports a container id from a run record of version 0.1.0. Returns when that is on disk.
    pub(crate) fn import(
        &self,
        server: &ServerName,
        address: &str,
        engine: &str,
        container: &str,
    ) -> io::Result<()> {
        if self.is_of(server, container) {
            return Ok(());
        }
        let creation = Creation {
            server: server.clone(),
            address: address.to_owned(),
            engine: engine.to_owned(),
            nonce: new_nonce()?,
            container: Some(container.to_owned()),
        };
        self.entries().insert(creation.nonce.clone(), Entry::from(creation.clone()));
        write(&self.dir, &creation)
    }

    /// Records that an engine is about to be asked for a container. It may be asked when this returns,
    /// and not at all if this fails.
    pub(crate) async fn begin(
        &self,
        server: &ServerName,
        address: &str,
        engine: &str,
    ) -> io::Result<InFlight<'_>> {
        let nonce = new_nonce()?;
        let creation = Creation {
            server: server.clone(),
            address: address.to_owned(),
            engine: engine.to_owned(),
            nonce: nonce.clone(),
            container: None,
        };
        let entry = Entry { in_flight: true, ..Entry::from(creation) };
        self.entries().insert(nonce.clone(), entry);
        let in_flight = InFlight { creations: self, nonce };
        if let Err(error) = self.save(&in_flight.nonce).await {
            in_flight.cancel().await;
            return Err(error);
        }
        Ok(in_flight)
    }

    /// Binds a nonce to the id of its container, and returns whether it is bound to that id: one that is
    /// bound keeps its id. One whose id cannot be written stays unbound.
    pub(crate) async fn bind(&self, nonce: &str, container: &str) -> io::Result<bool> {
        let _writing = self.writing.lock().await;
        let known = self.entries().get(nonce).cloned();
        let Some(known) = known else { return Ok(false) };
        if known.creation.container.is_some() {
            return Ok(known.is_bound_to(container));
        }
        let (dir, container) = (self.dir.clone(), Some(container.to_owned()));
        let bound = Creation { container: container.clone(), ..known.creation };
        blocking(move || write(&dir, &bound)).await?;
        if let Some(entry) = self.entries().get_mut(nonce) {
            entry.creation.container = container;
        }
        Ok(true)
    }

    /// Forgets a container that is gone.
    pub(crate) async fn forget_container(&self, container: &str) {
        for entry in self.all().iter().filter(|entry| entry.is_bound_to(container)) {
            self.forget(&entry.creation.nonce).await;
        }
    }

    /// Forgets a creation that has no container.
    pub(crate) async fn forget(&self, nonce: &str) {
        let _writing = self.writing.lock().await;
        if self.entries().remove(nonce).is_none() {
            return;
        }
        let path = path(&self.dir, nonce);
        let removed = blocking(move || if_exists(fs::remove_file(path))).await;
        if let Err(error) = removed {
            tracing::warn!(%error, "the record of a container that is gone cannot be removed");
        }
    }

    /// Records whether a complete list of an engine has a container for a nonce without an id.
    pub(crate) fn note_missing(&self, nonce: &str, missing: bool, now: Instant) {
        if let Some(entry) = self.entries().get_mut(nonce) {
            entry.missing_since = missing.then(|| entry.missing_since.unwrap_or(now));
        }
    }

    /// Returns when all creations of a server are on disk.
    pub(crate) async fn save_all_of(&self, server: &ServerName) -> io::Result<()> {
        for entry in self.all().iter().filter(|entry| entry.creation.server == *server) {
            self.save(&entry.creation.nonce).await?;
        }
        Ok(())
    }

    async fn save(&self, nonce: &str) -> io::Result<()> {
        let _writing = self.writing.lock().await;
        let creation = self.entries().get(nonce).map(|entry| entry.creation.clone());
        let Some(creation) = creation else { return Ok(()) };
        let dir = self.dir.clone();
        blocking(move || write(&dir, &creation)).await
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        mainstay_core::lock(&self.entries)
    }
}

impl From<Creation> for Entry {
    fn from(creation: Creation) -> Self {
        Self { creation, in_flight: false, missing_since: None }
    }
}

/// A creation that is recorded and whose answer is awaited. If it is dropped before the answer came,
/// the container may or may not exist: it is looked for by its nonce.
#[derive(Debug)]
pub(crate) struct InFlight<'a> {
    creations: &'a Creations,
    nonce: String,
}

impl InFlight<'_> {
    /// What the container has to carry as a label.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// The engine has created this container.
    pub(crate) async fn bind(self, container: &str) -> io::Result<()> {
        if self.creations.bind(&self.nonce, container).await? {
            return Ok(());
        }
        Err(io::Error::other("another container has its nonce"))
    }

    /// The engine has refused, or was not asked.
    pub(crate) async fn cancel(self) {
        self.creations.forget(&self.nonce).await;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.creations.entries().get_mut(&self.nonce) {
            entry.in_flight = false;
        }
    }
}

fn new_nonce() -> io::Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(io::Error::other)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bits)))
}

fn path(dir: &Path, nonce: &str) -> PathBuf {
    records::path(dir, nonce, SUFFIX)
}

/// What an engine is asked for must outlive a loss of power.
fn write(dir: &Path, creation: &Creation) -> io::Result<()> {
    records::write(&path(dir, &creation.nonce), creation, Durability::Power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> ServerName {
        "time".parse().unwrap()
    }

    fn open(dir: &Path) -> Creations {
        Creations::open(dir.to_owned()).unwrap()
    }

    fn ids(creations: &Creations) -> Vec<Option<String>> {
        creations.all().into_iter().map(|entry| entry.creation.container).collect()
    }

    #[tokio::test]
    async fn a_creation_is_on_disk_before_and_after_its_id_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(dir.path());
        let in_flight = creations.begin(&time(), "unix:///x", "E").await.unwrap();
        let nonce = in_flight.nonce().to_owned();
        assert_eq!(nonce.len(), 32);
        assert!(creations.all()[0].in_flight);

        let next = open(dir.path()).all();
        let expected = Creation {
            server: time(),
            address: "unix:///x".to_owned(),
            engine: "E".to_owned(),
            nonce: nonce.clone(),
            container: None,
        };
        assert_eq!(next, [Entry::from(expected.clone())], "as a daemon finds it after a crash");

        in_flight.bind("C").await.unwrap();
        let bound = Entry::from(Creation { container: Some("C".to_owned()), ..expected });
        assert_eq!(creations.all(), std::slice::from_ref(&bound));
        assert_eq!(open(dir.path()).all(), [bound]);
    }

    #[tokio::test]
    async fn a_bound_nonce_keeps_its_first_id() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(dir.path());
        let in_flight = creations.begin(&time(), "unix:///x", "E").await.unwrap();
        let nonce = in_flight.nonce().to_owned();
        in_flight.bind("C").await.unwrap();
        assert!(!creations.bind(&nonce, "copy").await.unwrap());
        assert!(creations.bind(&nonce, "C").await.unwrap(), "the same id again");
        assert!(!creations.bind("unknown", "C").await.unwrap());
        assert_eq!(ids(&open(dir.path())), [Some("C".to_owned())]);
    }

    #[tokio::test]
    async fn every_creation_has_its_own_nonce() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(dir.path());
        let one = creations.begin(&time(), "unix:///x", "E").await.unwrap();
        let two = creations.begin(&time(), "unix:///x", "E").await.unwrap();
        assert_ne!(one.nonce(), two.nonce());
    }

    #[tokio::test]
    async fn a_creation_is_forgotten_when_it_is_cancelled_or_its_container_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(dir.path());
        let in_flight = creations.begin(&time(), "unix:///x", "E").await.unwrap();
        in_flight.cancel().await;
        let in_flight = creations.begin(&time(), "unix:///x", "E").await.unwrap();
        in_flight.bind("C").await.unwrap();
        assert!(creations.is_of(&time(), "C"));
        creations.forget_container("C").await;
        assert_eq!(creations.all(), []);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_creation_whose_answer_never_came_stays_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(dir.path());
        drop(creations.begin(&time(), "unix:///x", "E").await.unwrap());
        assert!(!creations.all()[0].in_flight);
        assert_eq!(ids(&open(dir.path())), [None]);
    }

    #[tokio::test]
    async fn nothing_begins_that_cannot_be_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(&dir.path().join("containers"));
        fs::remove_dir(dir.path().join("containers")).unwrap();
        assert!(creations.begin(&time(), "unix:///x", "E").await.is_err());
        assert_eq!(creations.all(), []);
    }

    #[tokio::test]
    async fn an_id_that_cannot_be_recorded_is_not_bound() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(&dir.path().join("containers"));
        let in_flight = creations.begin(&time(), "unix:///x", "E").await.unwrap();
        fs::remove_dir_all(dir.path().join("containers")).unwrap();
        assert!(in_flight.bind("C").await.is_err());
        assert_eq!(ids(&creations), [None]);
    }

    #[test]
    fn an_id_of_an_older_record_is_imported_once() {
        let dir = tempfile::tempdir().unwrap();
        let creations = open(dir.path());
        creations.import(&time(), "unix:///x", "E", "C").unwrap();
        creations.import(&time(), "unix:///x", "E", "C").unwrap();
        assert_eq!(ids(&creations), [Some("C".to_owned())]);
        assert_eq!(creations.all(), open(dir.path()).all());
    }

    #[test]
    fn unreadable_files_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.creation"), r#"{"version":2}"#).unwrap();
        fs::write(dir.path().join("b.creation"), "{").unwrap();
        fs::write(dir.path().join("c.creation-new"), "{}").unwrap();
        fs::write(dir.path().join("time.json"), "{}").unwrap();
        fs::create_dir(dir.path().join("d.creation")).unwrap();
        fs::create_dir(dir.path().join("e.creation-new")).unwrap();
        assert_eq!(open(dir.path()).all(), []);
        assert!(!dir.path().join("c.creation-new").exists(), "an unfinished file is removed");
    }

    #[test]
    fn a_file_that_cannot_be_finished_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let creation = Creation {
            server: time(),
            address: "unix:///x".to_owned(),
            engine: "E".to_owned(),
            nonce: "n".to_owned(),
            container: None,
        };
        fs::create_dir(path(dir.path(), "n")).unwrap();
        assert!(write(dir.path(), &creation).is_err());
        assert!(!dir.path().join("n.creation-new").exists());
    }
}
