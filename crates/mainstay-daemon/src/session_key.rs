//! The key of the ids of sessions: in a file of its own and in the store, so that the loss of one of the two costs
//! nothing. It is made once.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::aside::beside;
use crate::random;
use crate::store::Store;

/// The file in the state directory.
const FILE: &str = "session.key";

pub(crate) type Key = [u8; 32];

/// The key of this instance. A disk that cannot be written is no reason not to start.
pub(crate) fn load(state_dir: &Path, store: &Store) -> Key {
    let path = state_dir.join(FILE);
    let in_file = fs::read_to_string(&path).ok().and_then(|text| decode(&text));
    let in_store = store.session_key().ok().flatten().and_then(|text| decode(&text));
    let key = in_file.or(in_store).unwrap_or_else(random::bytes);
    if in_store != Some(key)
        && let Err(error) = store.set_session_key(&encode(&key))
    {
        tracing::warn!(%error, "the key of sessions is not in the store");
    }
    if in_file != Some(key)
        && let Err(error) = write(&path, &encode(&key))
    {
        tracing::warn!(%error, "the key of sessions is only in the store");
    }
    key
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = beside(path, ".new");
    let mut options = fs::File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

fn encode(key: &Key) -> String {
    random::to_hex(key)
}

fn decode(text: &str) -> Option<Key> {
    let text = text.trim();
    let mut key = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

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
