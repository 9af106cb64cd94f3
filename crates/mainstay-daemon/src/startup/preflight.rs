//! The preflight check of an update: opens a copy of the state, as a daemon of this program would at its start.
//!
//! An update runs it with the new program before anything is replaced. The copy is opened and migrated as the state
//! itself would be. The state is not changed, and nothing else is used: no engine, shim, listener, lock or client's file.
//! A daemon may run meanwhile: each database is copied in one transaction.
//!
//! An event log or a file of sessions that is already damaged passes the check: a daemon continues without it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mainstay_api::Instance;
use mainstay_clients::{ClientError, Machine, Registrar};

use crate::CLIENTS_DIR;
use crate::state::event_log::EventLog;
use crate::state::schemas::{EVENTS, INTENT, SESSIONS};
use crate::state::session_store::SessionStore;
use crate::state::store::schema::Schema;
use crate::state::store::{Store, StoreError};

/// The ledger of entries in clients' files.
const LEDGER: &str = "clients.json";

/// Why a daemon of this program could not use the state.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// A database cannot be read or migrated.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sessions of clients would be lost.
    #[error("the sessions in `{}` cannot be read", .0.display())]
    SessionStore(PathBuf),
    /// The ledger cannot be read.
    #[error("the ledger of entries in clients' files cannot be read")]
    Ledger(#[source] ClientError),
    /// Copying failed.
    #[error("`{}` could not be copied", path.display())]
    Copy {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl PreflightError {
    /// What the user can do about it.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.help(),
            Self::SessionStore(_) | Self::Ledger(_) | Self::Copy { .. } => None,
        }
    }
}

/// Opens the state of an instance as a daemon would, in a copy. `copy` is a directory that is private and empty.
pub fn preflight(instance: &Instance, copy: &Path) -> Result<(), PreflightError> {
    let state = &instance.state_dir;
    check_intent(state, copy)?;
    copy_unless_damaged(&EVENTS, state, copy)?;
    EventLog::open(&EVENTS.path_in(copy))?.close();
    copy_unless_damaged(&SESSIONS, state, copy)?;
    check_sessions(state, copy)?;
    check_ledger(&state.join(CLIENTS_DIR), &copy.join(CLIENTS_DIR))
}

fn check_intent(state: &Path, copy: &Path) -> Result<(), PreflightError> {
    INTENT.copy(&INTENT.path_in(state), &INTENT.path_in(copy))?;
    let store = Store::open(&INTENT.path_in(copy))?;
    store.instance()?;
    store.next_daemon(0)?;
    store.load()?;
    store.clients()?;
    Ok(())
}

fn copy_unless_damaged(schema: &Schema, state: &Path, copy: &Path) -> Result<(), PreflightError> {
    match schema.copy(&schema.path_in(state), &schema.path_in(copy)) {
        Ok(()) | Err(StoreError::Damaged { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn check_sessions(state: &Path, copy: &Path) -> Result<(), PreflightError> {
    // Streams belong to processes that run, so they are not copied.
    let (sessions, recovered) =
        SessionStore::open(&SESSIONS.path_in(copy), &copy.join("streams"), 0);
    sessions.close();
    if recovered.lost {
        return Err(PreflightError::SessionStore(SESSIONS.path_in(state)));
    }
    Ok(())
}

fn check_ledger(from: &Path, to: &Path) -> Result<(), PreflightError> {
    let ledger = from.join(LEDGER);
    let copied = fs::create_dir_all(to).and_then(|()| match fs::copy(&ledger, to.join(LEDGER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        other => other,
    });
    copied.map_err(|source| PreflightError::Copy { path: ledger, source })?;
    // Only the ledger is read, so the home directory does not matter.
    let nowhere = Machine { home: to.to_owned(), env: std::iter::empty().collect() };
    let records = Registrar::new(to.to_owned(), nowhere).records();
    records.map(drop).map_err(PreflightError::Ledger)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rusqlite::Connection;
    use tempfile::TempDir;

    use super::*;

    const STATE_V1: &str = include_str!("../../tests/fixtures/state-v1.sql");
    const EVENTS_V1: &str = include_str!("../../tests/fixtures/events-v1.sql");
    const SESSIONS_V1: &str = include_str!("../../tests/fixtures/sessions-v1.sql");

    struct Scene {
        dir: TempDir,
        instance: Instance,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (state_dir, run_dir) = (dir.path().join("state"), dir.path().join("run"));
            fs::create_dir(&state_dir).unwrap();
            Self { dir, instance: Instance { state_dir, run_dir, config_file: None } }
        }

        /// An instance that an earlier version has left.
        fn old() -> Self {
            let scene = Self::new();
            scene.load(INTENT.file, STATE_V1);
            scene.load(EVENTS.file, EVENTS_V1);
            scene.load(SESSIONS.file, SESSIONS_V1);
            fs::create_dir(scene.state(CLIENTS_DIR)).unwrap();
            fs::write(scene.ledger(), r#"{"version":1,"records":[]}"#).unwrap();
            scene
        }

        fn load(&self, name: &str, dump: &str) {
            let connection = Connection::open(self.state(name)).unwrap();
            connection.pragma_update(None, "journal_mode", "wal").unwrap();
            connection.execute_batch(dump).unwrap();
        }

        fn state(&self, name: &str) -> PathBuf {
            self.instance.state_dir.join(name)
        }

        fn ledger(&self) -> PathBuf {
            self.state(CLIENTS_DIR).join(LEDGER)
        }

        fn preflight(&self) -> Result<(), PreflightError> {
            let copy = tempfile::tempdir_in(self.dir.path()).unwrap();
            preflight(&self.instance, copy.path())
        }

        /// The check fails with this text, and changes nothing.
        #[track_caller]
        fn fails(&self, text: &str) {
            let before = self.files();
            let error = self.preflight().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
            assert!(self.files() == before, "something was changed");
        }

        /// All files, except empty ones beside a database that is being read.
        fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
            let entries = fs::read_dir(&self.instance.state_dir).unwrap();
            let files = entries.map(|entry| entry.unwrap().path()).filter(|path| {
                let name = path.to_str().unwrap();
                let empty = name.ends_with("-wal") && fs::metadata(path).unwrap().len() == 0;
                path.is_file() && !empty && !name.ends_with("-shm")
            });
            files.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
        }
    }

    #[test]
    fn the_state_of_an_earlier_version_is_opened_in_a_copy_only() {
        let scene = Scene::old();
        let before = scene.files();
        scene.preflight().unwrap();
        assert_eq!(scene.files().keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        assert!(scene.files() == before, "something was changed");
        assert!(!scene.instance.run_dir.exists());
    }

    #[test]
    fn the_state_of_a_running_daemon_is_opened() {
        let scene = Scene::old();
        let store = Store::open(&scene.state(INTENT.file)).unwrap();
        let daemon = store.next_daemon(0).unwrap();
        scene.preflight().unwrap();
        assert_eq!(store.instance().unwrap(), "93246ff845138454", "it is not fenced");
        assert_eq!(store.next_daemon(0).unwrap(), daemon + 1, "no number is used up");
    }

    #[test]
    fn a_new_instance_passes() {
        Scene::new().preflight().unwrap();
    }

    #[test]
    fn the_error_about_a_newer_file_names_it() {
        for (name, known) in [(INTENT.file, 2), (EVENTS.file, 2), (SESSIONS.file, 4)] {
            let scene = Scene::old();
            scene.load(name, "PRAGMA user_version=9");
            let refusal = "has schema 9, this version of Mainstay knows";
            scene.fails(&format!("/state/{name}` {refusal} {known}"));
        }
    }

    #[test]
    fn an_invalid_state_is_refused() {
        let scene = Scene::old();
        scene.load(INTENT.file, "UPDATE servers SET spec = '{}' WHERE name = 'off'");
        scene.fails("server `off`");
        let scene = Scene::old();
        fs::write(scene.ledger(), "{}").unwrap();
        scene.fails("the ledger of entries in clients' files cannot be read");
        let scene = Scene::old();
        scene.load(SESSIONS.file, "UPDATE sessions SET subscriptions = 'x'");
        scene.fails("/state/sessions.db` cannot be read");
    }

    #[test]
    fn damage_that_a_daemon_tolerates_passes() {
        for name in [EVENTS.file, SESSIONS.file] {
            let scene = Scene::old();
            fs::write(scene.state(name), "not a database".repeat(500)).unwrap();
            scene.preflight().unwrap();
        }
    }
}
