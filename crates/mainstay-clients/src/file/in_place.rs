//! Writing a file in place, where a rename is impossible.
//!
//! This is not atomic, so the old and the new text are recorded in the state directory first. If the writer dies
//! meanwhile, the next one that opens the file finds this note. It completes the write if the file is exactly the
//! mixture that an interrupted write leaves; otherwise another program has written since, and its file stays.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::replace::{Outcome, open_for_overwrite};
use super::snapshot::{MAX_BYTES, Snapshot};
use super::{FileError, OpenFile, Step, state_file};

/// The texts of a write in progress.
#[derive(Serialize, Deserialize)]
struct Note {
    version: u32,
    old: String,
    new: String,
}

const VERSION: u32 = 1;

/// Overwrites a file, unless it has changed since it was read.
pub(super) fn write(file: &OpenFile, old: &Snapshot, new: &str) -> Result<Outcome, FileError> {
    let writable = open_for_overwrite(&file.target)?;
    let note = Note { version: VERSION, old: old.text.clone(), new: new.to_owned() };
    write_note(file, &note)?;
    if file.has_changed(Some(old))? {
        remove_note(file)?;
        return Ok(Outcome::Changed);
    }
    if let Err(error) = overwrite(file, &writable, new) {
        // A full disk still has space for the old text.
        if roll_back(&writable, &old.text).is_ok() {
            // If the note stays, the next writer finds nothing to repair.
            remove_note(file).ok();
        }
        return Err(error);
    }
    remove_note(file)?;
    Ok(Outcome::Done)
}

/// Completes an interrupted write.
pub(super) fn repair(file: &OpenFile) -> Result<(), FileError> {
    let Some(note) = read_note(file)? else { return Ok(()) };
    if note.explains(file) {
        overwrite(file, &open_for_overwrite(&file.target)?, &note.new)?;
    }
    remove_note(file)
}

/// Whether an interrupted write can be completed.
pub(super) fn is_interrupted(file: &OpenFile) -> bool {
    read_note(file).is_ok_and(|note| note.is_some_and(|note| note.explains(file)))
}

impl Note {
    /// Whether the file is what the write of this note leaves when it is interrupted.
    fn explains(&self, file: &OpenFile) -> bool {
        // A torn write may not be valid UTF-8, so this reads bytes.
        let now = File::open(&file.target).and_then(|now| {
            let mut bytes = Vec::new();
            now.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        now.is_ok_and(|now| is_torn(self.old.as_bytes(), self.new.as_bytes(), &now))
    }
}

/// Whether these bytes are what is left when overwriting `old` with `new` is interrupted, or when writing back `old`
/// after that is: a prefix of the old text, then of the new one, then the rest of the old one, each possibly empty; or
/// the old text up to some point and then the new one, already truncated.
fn is_torn(old: &[u8], new: &[u8], now: &[u8]) -> bool {
    if now == old || now == new || now.len() > old.len().max(new.len()) {
        return false;
    }
    // Which of the three parts the last byte may belong to.
    let (mut back, mut forth, mut rest) = (true, true, true);
    for (at, byte) in now.iter().enumerate() {
        let (is_old, is_new) = (old.get(at) == Some(byte), new.get(at) == Some(byte));
        (back, forth, rest) =
            (back && is_old, (back || forth) && is_new, (back || forth || rest) && is_old);
    }
    let is_cut = now.len() >= new.len() && (back || forth);
    is_cut || (now.len() >= old.len() && (back || forth || rest))
}

fn overwrite(file: &OpenFile, target: &File, new: &str) -> Result<(), FileError> {
    let (writer, path) = (&file.writer, &file.target);
    writer.perform(Step::Overwrite, path, || target.write_all_at(new.as_bytes(), 0))?;
    writer.perform(Step::Truncate, path, || target.set_len(new.len() as u64))?;
    writer.perform(Step::Sync, path, || target.sync_all())
}

fn roll_back(target: &File, old: &str) -> io::Result<()> {
    target.write_all_at(old.as_bytes(), 0)?;
    target.set_len(old.len() as u64)?;
    target.sync_all()
}

fn write_note(file: &OpenFile, note: &Note) -> Result<(), FileError> {
    let path = note_path(file);
    let bytes = serde_json::to_vec(note).expect("texts can be written as JSON");
    file.writer.perform(Step::Note, &path, || state_file::write_atomically(&path, &bytes))
}

/// The note, if there is one. Notes of newer builds are ignored.
fn read_note(file: &OpenFile) -> Result<Option<Note>, FileError> {
    let path = note_path(file);
    let bytes =
        state_file::if_exists(fs::read(&path)).map_err(|error| FileError::read(&path, error))?;
    let note = bytes.and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
    Ok(note.filter(|note| note.version == VERSION))
}

fn remove_note(file: &OpenFile) -> Result<(), FileError> {
    let path = note_path(file);
    state_file::remove_if_exists(&path).map_err(|source| FileError::Write {
        path,
        step: Step::Note,
        source,
    })
}

fn note_path(file: &OpenFile) -> PathBuf {
    file.writer.state.join("in-place").join(format!("{}.json", file.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [(&str, &str); 5] = [
        ("{\"a\": 1}\n", "{\"a\": 1, \"b\": 2}\n"),
        ("{\"a\": 1, \"b\": 2}\n", "{\"a\": 1}\n"),
        ("aaaa", "aaaaaaa"),
        ("abab", "ab"),
        ("abcd", "efgh"),
    ];

    /// A file whose beginning was overwritten.
    fn overwritten(now: &[u8], by: &[u8]) -> Vec<u8> {
        [by, now.get(by.len()..).unwrap_or_default()].concat()
    }

    #[track_caller]
    fn check(old: &[u8], new: &[u8], now: &[u8]) {
        let shown = String::from_utf8_lossy(now);
        assert_eq!(is_torn(old, new, now), now != old && now != new, "{shown}");
    }

    #[test]
    fn every_interrupted_write_is_recognized() {
        for (old, new) in TEXTS.map(|(old, new)| (old.as_bytes(), new.as_bytes())) {
            for at in 0..=new.len() {
                check(old, new, &overwritten(old, &new[..at]));
            }
        }
    }

    #[test]
    fn every_interrupted_rollback_is_recognized() {
        for (old, new) in TEXTS.map(|(old, new)| (old.as_bytes(), new.as_bytes())) {
            for back in 0..=old.len() {
                for at in 0..=new.len() {
                    check(old, new, &overwritten(&overwritten(old, &new[..at]), &old[..back]));
                }
                // The rest of the old had been cut off already.
                check(old, new, &overwritten(new, &old[..back]));
            }
        }
    }

    #[test]
    fn a_write_of_another_program_is_not_an_interrupted_write() {
        let (old, new) = (b"{\"a\": 1}", b"{\"a\": 1, \"b\": 2}");
        for foreign in [&b""[..], b"{}", b"{\"c\": 1}", b"{\"a\": 1}\n", b"{\"a\": 1, \"b\": 3}"] {
            assert!(!is_torn(old, new, foreign), "{foreign:?}");
            assert!(!is_torn(new, old, foreign), "{foreign:?}");
        }
    }
}
