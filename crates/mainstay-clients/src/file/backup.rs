//! The old bytes, kept in our state directory before a file is changed.
//!
//! A state that is kept already is not kept twice, so an entry that comes and goes does not push out
//! what the file was before.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{FileError, OpenFile, Step, own};
use crate::clock;

/// How many states of a file are kept.
const KEPT: usize = 5;

/// What the name of a backup ends with.
const KIND: &str = "bak";

/// Keeps what a file says, at `backups/<client>/<unix ms>-<key of the file>.bak`.
pub(super) fn keep(file: &OpenFile, text: &str) -> Result<(), FileError> {
    let dir = file.writer.state.join("backups").join(file.client.id);
    file.writer.before(Step::BackUp, &dir)?;
    let name = format!("{:013}-{}.{KIND}", clock::now().as_millisecond(), file.key);
    add(&dir, &name, &file.key, text).map_err(|error| FileError::write(Step::BackUp, &dir, error))
}

fn add(dir: &Path, name: &str, key: &str, text: &str) -> io::Result<()> {
    // One that was broken off, by a writer that died.
    for half in list(dir, key, own::TEMPORARY)? {
        own::drop_if_there(&half)?;
    }
    let mut kept = list(dir, key, KIND)?;
    for path in &kept {
        if fs::metadata(path)?.len() == text.len() as u64 && fs::read(path)? == text.as_bytes() {
            return Ok(());
        }
    }
    let path = dir.join(name);
    own::put(&path, text.as_bytes())?;
    kept.push(path);
    kept.dedup();
    kept.iter().rev().skip(KEPT).try_for_each(|old| own::drop_if_there(old))
}

/// The backups of a file, oldest first.
fn list(dir: &Path, key: &str, kind: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let ending = format!("-{key}.{kind}");
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .filter(|path: &io::Result<PathBuf>| {
            path.as_ref().map_or(true, |path| path.to_string_lossy().ends_with(&ending))
        })
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_states_are_kept_once_each() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cursor");
        for at in 0..7 {
            add(&dir, &format!("{at:013}-k.bak"), "k", &format!("state {at}")).unwrap();
        }
        fs::write(dir.join("0000000000007-k.tmp"), "half").unwrap();
        add(&dir, "0000000000099-other.bak", "other", "state").unwrap();
        add(&dir, "0000000000098-k.bak", "k", "state 3").unwrap();
        let texts = |key| {
            let paths = list(&dir, key, KIND).unwrap();
            paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(texts("k"), ["state 2", "state 3", "state 4", "state 5", "state 6"]);
        assert_eq!(texts("other"), ["state"]);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 6);
    }
}
