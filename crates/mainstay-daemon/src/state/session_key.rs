//! The key of session ids. It is created once and kept in a file and in the store, so that either may be lost.
//!
//! If the two differ, the store's key is used, because all other state is there; the file may be from another machine or
//! backup. Ids of the file's key are recognized too, and the file then has both keys, one per line.

use std::fs;
use std::path::Path;

use crate::random;
use crate::state::files::replace_private;
use crate::state::store::Store;

/// The file in the state directory.
const FILE: &str = "session.key";

pub(crate) type Key = [u8; 32];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The key of this instance.
    pub(crate) key: Key,
    /// Another key, whose ids are recognized.
    pub(crate) other: Option<Key>,
}

/// The keys of this instance. A disk that cannot be written does not prevent the start.
pub(crate) fn load(state_dir: &Path, store: &Store) -> Keys {
    let path = state_dir.join(FILE);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let in_file: Vec<Key> = text.lines().filter_map(decode).collect();
    let in_store = store.session_key().ok().flatten().and_then(|text| decode(&text));
    let key = in_store.or(in_file.first().copied()).unwrap_or_else(random::bytes);
    let other = in_file.iter().copied().find(|other| *other != key);
    if in_store != Some(key)
        && let Err(error) = store.set_session_key(&hex::encode(key))
    {
        tracing::warn!(%error, "the key of sessions is not in the store");
    }
    let keys: Vec<Key> = [Some(key), other].into_iter().flatten().collect();
    let lines: Vec<String> = keys.iter().map(hex::encode).collect();
    if in_file != keys
        && let Err(error) = replace_private(&path, &lines.join("\n"), true)
    {
        tracing::warn!(%error, "the key of sessions is only in the store");
    }
    Keys { key, other }
}

fn decode(text: &str) -> Option<Key> {
    let mut key = [0; 32];
    hex::decode_to_slice(text.trim(), &mut key).ok()?;
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn ids_of_another_key_in_the_file_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state.db");
        let load = || load(dir.path(), &Store::open(&state).unwrap());
        let key = load().key;
        let wrong = [7; 32];
        fs::write(dir.path().join(FILE), hex::encode(wrong)).unwrap();
        for _ in 0..2 {
            assert_eq!(load(), Keys { key, other: Some(wrong) });
        }
        fs::remove_file(&state).unwrap();
        assert_eq!(load(), Keys { key, other: Some(wrong) }, "the file has the store's key too");
    }

    #[test]
    fn the_key_survives_the_loss_of_the_file_or_of_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state.db");
        let load = || load(dir.path(), &Store::open(&state).unwrap());
        let key = load();
        assert_eq!(load(), key);
        let file = dir.path().join(FILE);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&file).unwrap();
        assert_eq!(load(), key);
        fs::remove_file(&state).unwrap();
        assert_eq!(load(), key);
        fs::write(&file, "garbage").unwrap();
        assert_eq!(load(), key);
        fs::remove_file(&file).unwrap();
        fs::remove_file(&state).unwrap();
        assert_ne!(load(), key);
    }
}
