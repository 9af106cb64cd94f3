//! Restores a store that was lost or is damaged from a copy (`mainstay doctor --restore`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use mainstay_api::Instance;

use super::backup::{copies, sync_names, write_out};
use super::schema::open_to_read;
use super::{Store, StoreError, loss};
use crate::state::files::{beside, quarantined, remove};
use crate::state::schemas::INTENT;
use crate::{CONTAINERS, clock};

/// The result of [`restore`].
#[derive(Debug, PartialEq, Eq)]
pub enum Restored {
    /// It is intact, and nothing was changed.
    Intact,
    /// It was restored from a copy.
    FromCopy {
        /// The copy, which stays.
        copy: PathBuf,
        /// When the copy was made.
        made_at: Option<Timestamp>,
        /// The servers in it.
        servers: Vec<String>,
    },
    /// There is a new one without servers.
    Empty {
        /// The servers that run as local processes. The next daemon ends them.
        running: Vec<String>,
        /// The servers that had containers, which may be running.
        containers: Vec<String>,
        /// The copies from which it could have been restored, after they were renamed.
        copies: Vec<PathBuf>,
    },
}

/// Restores the store of an instance if it was lost or is damaged; with `empty`, makes one without servers, and
/// moves copies of the old one aside. What is left of the old one is kept as `state.db.damaged`.
pub fn restore(instance: &Instance, empty: bool) -> Result<Restored, StoreError> {
    let path = INTENT.path_in(&instance.state_dir);
    let problem = match loss::refuse(instance).and_then(|()| Store::inspect(&path)) {
        Ok(()) => return Ok(Restored::Intact),
        Err(error @ (StoreError::Lost { .. } | StoreError::Damaged { .. })) => error,
        Err(error) => return Err(error),
    };
    let new = beside(&path, ".restored");
    match usable_copy(&path) {
        None if !empty => Err(problem),
        Some(copy) if !empty => {
            write_out(&open_to_read(&copy)?, &new)?;
            let servers = Store::of(&new, open_to_read(&new)?)?.load()?;
            exchange(&path, &new).map_err(|source| StoreError::backup(&path, source))?;
            let made_at = fs::metadata(&copy).and_then(|found| found.modified()).ok();
            Ok(Restored::FromCopy {
                copy,
                made_at: made_at.and_then(|at| Timestamp::try_from(at).ok()),
                servers: servers.into_iter().map(|server| server.spec.name.to_string()).collect(),
            })
        }
        _ => {
            let failed = |source| StoreError::backup(&path, source);
            let without_servers = INTENT.in_memory()?;
            write_out(&without_servers, &new)?;
            let copies = move_copies(&path, clock::wall()).map_err(failed)?;
            exchange(&path, &new).map_err(failed)?;
            let containers = with_containers(&instance.state_dir.join(CONTAINERS));
            Ok(Restored::Empty { running: loss::running(instance), containers, copies })
        }
    }
}

/// The newest copy that can be read whole.
pub(super) fn usable_copy(path: &Path) -> Option<PathBuf> {
    copies(path).into_iter().find(|copy| Store::inspect(copy).is_ok())
}

/// Renames the copies that can be read, so that the next copy does not replace them.
fn move_copies(path: &Path, now: Timestamp) -> io::Result<Vec<PathBuf>> {
    let usable = copies(path).into_iter().filter(|copy| Store::inspect(copy).is_ok());
    let stamp = now.strftime(".%Y%m%dT%H%M%SZ").to_string();
    let moved = usable.map(|copy| {
        let aside = beside(&copy, &stamp);
        fs::rename(&copy, &aside).map(|()| aside)
    });
    moved.collect()
}

/// Moves the old store aside, and the new one in its place. In between there is none, which
/// daemons refuse.
fn exchange(path: &Path, new: &Path) -> io::Result<()> {
    let aside = quarantined(path);
    for part in ["-wal", "-shm", ""] {
        let (from, to) = (beside(path, part), beside(&aside, part));
        remove(&to)?;
        match fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    fs::rename(new, path)?;
    sync_names(path)
}

/// The servers of which there are records of containers.
fn with_containers(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let name = |path: PathBuf| {
        (path.extension()? == "json").then(|| path.file_stem()?.to_str().map(str::to_owned))?
    };
    let mut names: Vec<String> = files.filter_map(|file| name(file.path())).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::super::tests::{instance_in, stored};
    use super::*;

    async fn store_with(instance: &Instance, names: &[&str]) -> Store {
        let store = Store::open(&INTENT.path_in(&instance.state_dir)).unwrap();
        store.put(names.iter().map(|name| stored(name)).collect()).await.unwrap();
        store
    }

    fn names(instance: &Instance) -> Vec<String> {
        let store = Store::open(&INTENT.path_in(&instance.state_dir)).unwrap();
        store.load().unwrap().iter().map(|server| server.spec.name.to_string()).collect()
    }

    #[tokio::test]
    async fn a_deleted_or_damaged_store_is_restored_and_the_damaged_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance_in(dir.path());
        let path = INTENT.path_in(&instance.state_dir);
        drop(store_with(&instance, &["a", "b"]).await);
        assert_eq!(restore(&instance, false).unwrap(), Restored::Intact);
        assert_eq!(restore(&instance, true).unwrap(), Restored::Intact);

        for garbage in [None, Some(""), Some("not a database, but as long as one")] {
            fs::remove_file(&path).unwrap();
            if let Some(garbage) = garbage {
                fs::write(&path, garbage.repeat(30)).unwrap();
            }
            let copy = instance.state_dir.join("state.db.backup");
            let restored = restore(&instance, false).unwrap();
            let Restored::FromCopy { copy: from, made_at, servers } = restored else {
                panic!("{restored:?}")
            };
            assert_eq!((from, servers), (copy, vec!["a".to_owned(), "b".to_owned()]));
            assert!(made_at.is_some());
            assert_eq!(names(&instance), ["a", "b"], "{garbage:?}");
        }
        let kept = fs::read_to_string(instance.state_dir.join("state.db.damaged")).unwrap();
        assert!(kept.starts_with("not a database"), "{kept}");
    }

    #[tokio::test]
    async fn without_a_copy_an_empty_store_is_created_only_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance_in(dir.path());
        let path = INTENT.path_in(&instance.state_dir);
        drop(store_with(&instance, &["a"]).await);
        fs::write(&path, "not a database, but as long as one".repeat(30)).unwrap();
        fs::write(beside(&path, ".backup"), "not a database either").unwrap();
        fs::create_dir(instance.state_dir.join(CONTAINERS)).unwrap();
        for file in ["box.json", "0123.creation"] {
            fs::write(instance.state_dir.join(CONTAINERS).join(file), "").unwrap();
        }
        let error = restore(&instance, false).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.help().unwrap().contains("`mainstay doctor --restore --empty`"));
        let containers = vec!["box".to_owned()];
        let expected = Restored::Empty { running: vec![], containers, copies: vec![] };
        assert_eq!(restore(&instance, true).unwrap(), expected);
        assert_eq!(names(&instance), Vec::<String>::new());
    }

    #[tokio::test]
    async fn copies_are_moved_aside_for_an_empty_store() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance_in(dir.path());
        let path = INTENT.path_in(&instance.state_dir);
        drop(store_with(&instance, &["a"]).await);
        fs::copy(beside(&path, ".backup"), beside(&path, ".schema-1.bak")).unwrap();
        fs::remove_file(&path).unwrap();
        let restored = restore(&instance, true).unwrap();
        let Restored::Empty { copies, .. } = restored else { panic!("{restored:?}") };
        assert_eq!(copies.len(), 2);
        assert_eq!(names(&instance), Vec::<String>::new());
        for copy in copies {
            let text = copy.to_str().unwrap();
            assert!(text.ends_with('Z') && text.contains("state.db."), "{text}");
            Store::inspect(&copy).unwrap();
        }
    }

    #[tokio::test]
    async fn a_backup_of_an_older_schema_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance_in(dir.path());
        let path = INTENT.path_in(&instance.state_dir);
        drop(store_with(&instance, &["a"]).await);
        fs::rename(beside(&path, ".backup"), beside(&path, ".schema-1.bak")).unwrap();
        fs::remove_file(&path).unwrap();
        let error = loss::refuse(&instance).unwrap_err();
        let help = error.help().unwrap();
        assert!(help.starts_with("`mainstay doctor --restore`"), "{help}");
        let restored = restore(&instance, false).unwrap();
        assert!(matches!(restored, Restored::FromCopy { .. }), "{restored:?}");
        assert_eq!(names(&instance), ["a"]);
    }
}
