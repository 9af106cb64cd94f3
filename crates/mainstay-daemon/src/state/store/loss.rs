//! Detects the loss of the store: it does not exist, but other files show that there was one.
//!
//! A daemon that continued without its store would forget all servers, although their processes, sessions and entries in
//! clients' files still exist.

use std::fs;
use std::path::Path;

use mainstay_api::Instance;
use mainstay_hold::shim_search::run_dirs_of_shims;

use super::schema::open_to_read;
use super::{StoreError, backup};
use crate::state::schemas::{EVENTS, INTENT, SESSIONS};
use crate::{CLIENTS_DIR, CONTAINERS};

/// What exists in the place of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A file, perhaps a damaged one.
    File,
    Nothing,
    /// A file without tables.
    Empty,
}

/// A description of files, and whether they exist.
type Trace = (&'static str, fn(&Instance) -> bool);

/// Files that exist only if there was a store.
const TRACES: [Trace; 7] = [
    ("running servers", |instance| !running(instance).is_empty()),
    ("records of runs", |instance| has_entries(&instance.runs_dir())),
    ("a copy of it", |instance| !backup::copies(&INTENT.path_in(&instance.state_dir)).is_empty()),
    ("an event log", |instance| EVENTS.path_in(&instance.state_dir).exists()),
    ("sessions of clients", |instance| SESSIONS.path_in(&instance.state_dir).exists()),
    ("records of containers", |instance| has_entries(&instance.state_dir.join(CONTAINERS))),
    ("records of clients' files", |instance| has_entries(&instance.state_dir.join(CLIENTS_DIR))),
];

/// Fails if the store of an instance was lost.
pub(crate) fn refuse(instance: &Instance) -> Result<(), StoreError> {
    let path = INTENT.path_in(&instance.state_dir);
    let found = find(&path);
    if found == Found::File {
        return Ok(());
    }
    let traces = TRACES.iter().filter(|(_, exists)| exists(instance));
    let leftovers: Vec<&str> = traces.map(|(what, _)| *what).collect();
    match problem(found, &leftovers) {
        Some(what) => Err(StoreError::Lost { path, what }),
        None => Ok(()),
    }
}

/// The names of the servers that run as local processes, as far as can be seen without a store.
pub(super) fn running(instance: &Instance) -> Vec<String> {
    let dirs = run_dirs_of_shims(&instance.runs_dir()).unwrap_or_default();
    let name = |dir: &Path| Some(dir.parent()?.file_name()?.to_str()?.to_owned());
    let mut names: Vec<String> = dirs.iter().filter_map(|dir| name(dir)).collect();
    names.dedup();
    names
}

/// The problem, if the store was lost.
fn problem(found: Found, leftovers: &[&str]) -> Option<String> {
    let what = match found {
        Found::File => return None,
        Found::Nothing => "is missing",
        Found::Empty => "is empty",
    };
    if leftovers.is_empty() {
        return None;
    }
    Some(format!("{what}, although Mainstay was used here (found: {})", leftovers.join(", ")))
}

fn find(path: &Path) -> Found {
    match fs::metadata(path) {
        Err(_) => return Found::Nothing,
        Ok(found) if found.len() == 0 => return Found::Empty,
        Ok(_) => {}
    }
    let tables = open_to_read(path).ok().and_then(|connection| {
        let count = "SELECT count(*) FROM sqlite_master WHERE name = 'servers'";
        connection.query_row(count, [], |row| row.get::<_, i64>(0)).ok()
    });
    if tables == Some(0) { Found::Empty } else { Found::File }
}

fn has_entries(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::super::tests::instance_in;
    use super::super::{Store, backup};
    use super::*;

    #[test]
    fn a_new_instance_has_lost_nothing() {
        assert_eq!(problem(Found::Nothing, &[]), None);
        assert_eq!(problem(Found::Empty, &[]), None);
        for (trace, _) in TRACES {
            assert_eq!(problem(Found::File, &[trace]), None);
            let what = problem(Found::Empty, &[trace]).unwrap();
            assert_eq!(what, format!("is empty, although Mainstay was used here (found: {trace})"));
        }
        let what = problem(Found::Nothing, &["running servers", "a copy of it"]).unwrap();
        assert!(what.starts_with("is missing"), "{what}");
        assert!(what.ends_with("(found: running servers, a copy of it)"), "{what}");
    }

    #[test]
    fn every_file_that_a_daemon_leaves_is_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance_in(dir.path());
        let state = |name: &str| instance.state_dir.join(name);
        refuse(&instance).unwrap();
        let leftovers = [
            ("state.db.backup", ""),
            ("state.db.schema-1.bak", ""),
            ("events.db", ""),
            ("sessions.db", ""),
            ("containers", "time.json"),
            ("clients", "clients.json"),
        ];
        for (name, inside) in leftovers {
            let path = state(name);
            let made = if inside.is_empty() {
                fs::write(&path, "")
            } else {
                fs::create_dir(&path).and_then(|()| fs::write(path.join(inside), ""))
            };
            made.unwrap();
            for empty in [false, true] {
                if empty {
                    fs::write(state(INTENT.file), "").unwrap();
                }
                let error = refuse(&instance).unwrap_err();
                assert!(matches!(error, StoreError::Lost { .. }), "{name}: {error}");
            }
            fs::remove_file(state(INTENT.file)).unwrap();
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
            refuse(&instance).unwrap();
        }
        fs::create_dir_all(instance.runs_dir().join("time/1")).unwrap();
        refuse(&instance).unwrap_err();
    }

    #[test]
    fn a_store_without_tables_is_lost_and_one_without_servers_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance_in(dir.path());
        let path = INTENT.path_in(&instance.state_dir);
        fs::write(backup::copy_of(&path), "").unwrap();
        let bare = rusqlite::Connection::open(&path).unwrap();
        bare.pragma_update(None, "journal_mode", "wal").unwrap();
        drop(bare);
        assert!(fs::metadata(&path).unwrap().len() > 0);
        refuse(&instance).unwrap_err();
        fs::remove_file(&path).unwrap();
        drop(Store::open(&path).unwrap());
        refuse(&instance).unwrap();
    }
}
