//! Copies of a client's file, written to the state directory before the file is changed.
//!
//! The first version ever seen, which is the user's file from before Mainstay, is kept forever, and so are the newest
//! few. A version that is seen again becomes the newest instead of a second copy, so adding and removing an entry does
//! not displace the other versions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{FileError, OpenFile, Step, state_file};
use crate::clock;

/// How many versions of a file are kept besides the first.
const NEWEST: usize = 4;

/// The extension of a backup.
const KIND: &str = "bak";

/// Writes a backup to `backups/<client>/<unix ms>-<key of the file>.bak`.
pub(super) fn keep(file: &OpenFile, text: &str) -> Result<(), FileError> {
    let dir = file.writer.state.join("backups").join(file.client.id);
    let add = || add(&dir, clock::now().as_millisecond(), &file.key, text);
    file.writer.perform(Step::BackUp, &dir, add)
}

fn add(dir: &Path, now: i64, key: &str, text: &str) -> io::Result<()> {
    // Left by a writer that died.
    for half in list(dir, key, state_file::TEMPORARY)? {
        state_file::remove_if_exists(&half)?;
    }
    let mut kept = list(dir, key, KIND)?;
    // Names are ordered even if the clock is set back.
    let at = kept.last().map_or(now, |last| now.max(time_of(last).saturating_add(1)));
    let path = dir.join(format!("{at:013}-{key}.{KIND}"));
    match find(&kept, text)? {
        Some(0) => return Ok(()),
        Some(again) => fs::rename(kept.remove(again), &path)?,
        None => state_file::write_atomically(&path, text.as_bytes())?,
    }
    kept.push(path);
    let old = kept.len().saturating_sub(NEWEST);
    kept.iter().take(old).skip(1).try_for_each(|old| state_file::remove_if_exists(old))
}

/// The index of the backup with this text.
fn find(kept: &[PathBuf], text: &str) -> io::Result<Option<usize>> {
    for (at, path) in kept.iter().enumerate() {
        if fs::metadata(path)?.len() == text.len() as u64 && fs::read(path)? == text.as_bytes() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The time in the name of a backup.
fn time_of(path: &Path) -> i64 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('-').next().and_then(|time| time.parse().ok()).unwrap_or_default()
}

/// The backups of a file, oldest first.
fn list(dir: &Path, key: &str, kind: &str) -> io::Result<Vec<PathBuf>> {
    let ending = format!("-{key}.{kind}");
    let mut paths = Vec::new();
    for entry in state_file::if_exists(fs::read_dir(dir))?.into_iter().flatten() {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(&ending) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(dir: &Path, key: &str) -> Vec<String> {
        let paths = list(dir, key, KIND).unwrap();
        paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    #[test]
    fn the_first_state_and_the_last_ones_are_kept_once_each() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cursor");
        for at in 0..8 {
            add(&dir, at, "k", &format!("state {at}")).unwrap();
        }
        fs::write(dir.join("0000000000007-k.tmp"), "half").unwrap();
        add(&dir, 99, "other", "state").unwrap();
        assert_eq!(texts(&dir, "k"), ["state 0", "state 4", "state 5", "state 6", "state 7"]);
        assert_eq!(texts(&dir, "other"), ["state"]);
        add(&dir, 98, "k", "state 5").unwrap();
        assert_eq!(texts(&dir, "k"), ["state 0", "state 4", "state 6", "state 7", "state 5"]);
        add(&dir, 99, "k", "state 0").unwrap();
        assert_eq!(texts(&dir, "k"), ["state 0", "state 4", "state 6", "state 7", "state 5"]);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 6);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_change_the_order() {
        let dir = tempfile::tempdir().unwrap();
        for (at, now) in [500, 500, 3, 501].into_iter().enumerate() {
            add(dir.path(), now, "k", &format!("state {at}")).unwrap();
        }
        assert_eq!(texts(dir.path(), "k"), ["state 0", "state 1", "state 2", "state 3"]);
    }
}
