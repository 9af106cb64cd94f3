//! The client's own lock, in the client's own way.
//!
//! It is held for the milliseconds of one try. A lock left behind by a program that died is taken over
//! when it is as old as the client itself lets it become; one left behind by us at once: what we take we
//! note in our own lock, which the system frees when we die.

use std::fs::{self, DirBuilder, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use super::own::{Held, POLL, rename_unless_there};
use super::{FileError, OpenFile, Step};
use crate::clock;
use crate::table::Protocol;

/// A client's lock, given back when this is dropped.
pub(super) struct Theirs<'a> {
    dir: PathBuf,
    note: Note,
    ours: &'a Held,
}

/// Takes the client's lock, if it has one. The wait is bounded.
pub(super) fn take(file: &OpenFile) -> Result<Option<Theirs<'_>>, FileError> {
    let (kind, stale) = match file.client.lock {
        Protocol::None => return Ok(None),
        Protocol::EmptyDirectory { stale } => (Kind::Empty, stale),
        Protocol::OwnedDirectory { stale } => (Kind::Owned, stale),
    };
    // The clients put it beside the name they use, not beside what that leads to.
    let dir = lock_path(&file.path);
    file.writer.before(Step::Lock, &dir)?;
    let failed = |error| FileError::write(Step::Lock, &dir, error);
    sweep(&dir, &file.lock).map_err(failed)?;
    let patience = file.writer.patience;
    for _ in 0..=patience.as_millis() / POLL.as_millis() {
        if free_if_left_behind(&dir, stale, &file.lock).map_err(failed)?
            && let Some(theirs) = try_take(&dir, kind, &file.lock).map_err(failed)?
        {
            return Ok(Some(theirs));
        }
        clock::pause(POLL / 2, POLL + POLL / 2);
    }
    Err(FileError::Locked { lock: dir, waited: patience })
}

/// What a client's lock looks like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Empty,
    Owned,
}

/// What we note of a lock that we take: the name it is made under, and what tells it from others.
struct Note {
    token: String,
    identity: String,
}

impl Note {
    fn leave(&self, ours: &Held) -> io::Result<()> {
        ours.note(&format!("{} {}", self.token, self.identity))
    }

    /// Frees a lock: it is moved aside whole, so that of two who do this only one does, and so that a
    /// death in between leaves no lock behind, only something to sweep.
    fn put_away(&mut self, dir: &Path, ours: &Held) -> io::Result<()> {
        let aside = staged(dir, &self.token);
        fs::rename(dir, &aside)?;
        self.discard(&aside, ours)
    }

    /// Removes what is aside. First it is made sure that a lock of somebody else's is not taken for it:
    /// what tells directories apart may be the same for two that follow each other within a tick of
    /// the clock.
    fn discard(&mut self, aside: &Path, ours: &Held) -> io::Result<()> {
        self.identity.clear();
        self.leave(ours)?;
        fs::remove_dir_all(aside)
    }

    fn find(ours: &Held) -> io::Result<Self> {
        let note = ours.noted()?;
        let (token, identity) = note.split_once(' ').unwrap_or_default();
        Ok(Self { token: token.to_owned(), identity: identity.to_owned() })
    }
}

fn lock_path(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

/// Removes what one of us who died had made aside and not moved into place.
fn sweep(dir: &Path, ours: &Held) -> io::Result<()> {
    let note = Note::find(ours)?;
    if note.token.is_empty() {
        return Ok(());
    }
    match fs::remove_dir_all(staged(dir, &note.token)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Takes the lock unless somebody else has it. It is made aside and moved into place whole, so that
/// it is noted before it is there.
fn try_take<'a>(dir: &Path, kind: Kind, ours: &'a Held) -> io::Result<Option<Theirs<'a>>> {
    let mut note = Note { token: token(), identity: String::new() };
    note.leave(ours)?;
    let staged = staged(dir, &note.token);
    DirBuilder::new().mode(0o700).create(&staged)?;
    let marker = format!("owner.{}", note.token);
    let moved = (|| {
        if kind == Kind::Owned {
            fs::write(staged.join(&marker), &note.token)?;
        }
        note.identity = identity(&fs::symlink_metadata(&staged)?);
        note.leave(ours)?;
        match kind {
            Kind::Empty => rename_unless_there(&staged, dir),
            // Fails while one with a marker is there; an empty one is nobody's.
            Kind::Owned => fs::rename(&staged, dir),
        }
    })();
    match moved {
        Ok(()) => Ok(Some(Theirs { dir: dir.to_owned(), note, ours })),
        Err(error) => {
            note.discard(&staged, ours)?;
            let is_held = matches!(
                error.kind(),
                ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory
            );
            if is_held { Ok(None) } else { Err(error) }
        }
    }
}

fn staged(dir: &Path, token: &str) -> PathBuf {
    beside(dir, &format!("tmp.{token}"))
}

/// Frees a lock whose holder is dead. Whether there is none now.
fn free_if_left_behind(dir: &Path, stale: Duration, ours: &Held) -> io::Result<bool> {
    let found = match fs::symlink_metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let noted = Note::find(ours)?;
    let is_our_own = identity(&found) == noted.identity;
    if !(is_our_own || is_stale(&found, clock::now(), stale)) || !is_lock(dir, &found)? {
        return Ok(false);
    }
    let mut note = Note { token: token(), ..noted };
    note.leave(ours)?;
    match note.put_away(dir, ours) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(true),
    }
}

/// Whether this is a directory with nothing in it but markers. Anything else was not made as a lock.
fn is_lock(dir: &Path, found: &Metadata) -> io::Result<bool> {
    if !found.is_dir() {
        return Ok(false);
    }
    for entry in fs::read_dir(dir)? {
        if !entry?.file_name().to_string_lossy().starts_with("owner.") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_stale(found: &Metadata, now: Timestamp, stale: Duration) -> bool {
    let age = now.as_second() - found.mtime();
    u64::try_from(age).is_ok_and(|age| age > stale.as_secs())
}

/// What tells a directory from one that took its place.
fn identity(found: &Metadata) -> String {
    let (seconds, nanoseconds) = (found.mtime(), found.mtime_nsec());
    format!("{}:{}:{seconds}.{nanoseconds:09}", found.dev(), found.ino())
}

/// As Cline makes them: process, time, and something that nobody else has.
fn token() -> String {
    let (pid, now) = (std::process::id(), clock::now().as_millisecond());
    let chance = format!("{:016x}{:016x}", clock::random(), clock::random());
    let (time, rest) = chance.split_at(8);
    format!("{pid}.{now}.{time}-{}-4{}-a{}-{}", &rest[..4], &rest[5..8], &rest[9..12], &rest[12..])
}

fn beside(dir: &Path, ending: &str) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    path.push(".");
    path.push(ending);
    path.into()
}

impl Drop for Theirs<'_> {
    /// Gives the lock back, if it is still ours. One that stays is taken over as stale.
    fn drop(&mut self) {
        let is_ours = |found: Metadata| identity(&found) == self.note.identity;
        if fs::symlink_metadata(&self.dir).is_ok_and(is_ours) {
            self.note.put_away(&self.dir, self.ours).ok();
        }
    }
}
