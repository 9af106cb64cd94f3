//! The client's own lock, in the client's own way.
//!
//! It is held for the milliseconds of one try. A lock left behind by a program that died is taken over
//! when it is as old as the client itself lets it become, which is waited for; one left behind by us at once: what
//! we take we note in our own lock, which the system frees when we die. What is no lock and has been there for
//! as long is left alone, and the file is written without: the client cannot take its lock then either.

use std::fs::{self, DirBuilder, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use super::state_file::{FileLock, LOCK_POLL, if_exists, rename_no_replace};
use super::{FileError, OpenFile, Step};
use crate::clock;
use crate::table::LockProtocol;

/// A client's lock, given back when this is dropped.
pub(super) struct ClientLock<'a> {
    dir: PathBuf,
    note: Note,
    ours: &'a FileLock,
}

/// Takes the client's lock, if it has one. The wait is bounded.
pub(super) fn acquire(file: &OpenFile) -> Result<Option<ClientLock<'_>>, FileError> {
    let (kind, stale) = match file.client.lock {
        LockProtocol::None => return Ok(None),
        LockProtocol::EmptyDirectory { stale } => (Kind::Empty, stale),
        LockProtocol::OwnedDirectory { stale } => (Kind::Owned, stale),
    };
    // The clients put it beside the name they use, not beside what that leads to.
    let dir = with_ending(&file.path, ".lock");
    file.writer.perform(Step::Lock, &dir, || sweep(&dir, &file.lock))?;
    let failed = |source| FileError::Write { path: dir.clone(), step: Step::Lock, source };
    // A holder that died a moment ago keeps nobody out for longer than its client would wait.
    let lock_timeout = file.writer.lock_timeout.max(time_to_stale(&dir, stale).map_err(failed)?);
    let mut waited = Duration::ZERO;
    while waited <= lock_timeout {
        match remove_if_abandoned(&dir, stale, &file.lock).map_err(failed)? {
            Found::Nothing => {
                if let Some(theirs) = try_acquire(&dir, kind, &file.lock).map_err(failed)? {
                    return Ok(Some(theirs));
                }
            }
            Found::NotALock => return Ok(None),
            Found::Held => {}
        }
        waited += clock::pause(LOCK_POLL / 2, LOCK_POLL + LOCK_POLL / 2);
    }
    Err(FileError::Locked { lock: dir, waited: lock_timeout })
}

/// A client that lets its locks become older than this is not waited for until then.
const LONGEST_WAIT: Duration = Duration::from_secs(12);

/// How long until a lock that nobody touches any more has been left behind.
fn time_to_stale(dir: &Path, stale: Duration) -> io::Result<Duration> {
    let Some(found) = if_exists(fs::symlink_metadata(dir))? else { return Ok(Duration::ZERO) };
    let left = stale_at(&found, stale).duration_since(clock::now());
    let left = Duration::try_from(left).unwrap_or_default() + LOCK_POLL * 4;
    Ok(if left <= LONGEST_WAIT { left } else { Duration::ZERO })
}

/// What is where a client's lock would be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Held,
    /// Something else, which has been there for long. The client cannot take its lock there, and writes without it.
    NotALock,
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
    fn save(&self, ours: &FileLock) -> io::Result<()> {
        ours.write_note(&format!("{} {}", self.token, self.identity))
    }

    /// Frees a lock: it is moved aside whole, so that of two who do this only one does, and so that a
    /// death in between leaves no lock behind, only something to sweep.
    fn release(&mut self, dir: &Path, ours: &FileLock) -> io::Result<()> {
        let aside = staged(dir, &self.token);
        fs::rename(dir, &aside)?;
        self.discard(&aside, ours)
    }

    /// Removes what is aside. First it is made sure that a lock of somebody else's is not taken for it:
    /// what tells directories apart may be the same for two that follow each other within a tick of
    /// the clock.
    fn discard(&mut self, aside: &Path, ours: &FileLock) -> io::Result<()> {
        self.identity.clear();
        self.save(ours)?;
        fs::remove_dir_all(aside)
    }

    fn load(ours: &FileLock) -> io::Result<Self> {
        let note = ours.read_note()?;
        let (token, identity) = note.split_once(' ').unwrap_or_default();
        Ok(Self { token: token.to_owned(), identity: identity.to_owned() })
    }
}

/// Removes what one of us who died had made aside and not moved into place.
fn sweep(dir: &Path, ours: &FileLock) -> io::Result<()> {
    let note = Note::load(ours)?;
    if note.token.is_empty() {
        return Ok(());
    }
    if_exists(fs::remove_dir_all(staged(dir, &note.token))).map(drop)
}

/// Takes the lock unless somebody else has it. It is made aside and moved into place whole, so that
/// it is noted before it is there.
fn try_acquire<'a>(
    dir: &Path,
    kind: Kind,
    ours: &'a FileLock,
) -> io::Result<Option<ClientLock<'a>>> {
    let mut note = Note { token: token(), identity: String::new() };
    note.save(ours)?;
    let staged = staged(dir, &note.token);
    DirBuilder::new().mode(0o700).create(&staged)?;
    let marker = format!("owner.{}", note.token);
    let moved = (|| {
        if kind == Kind::Owned {
            fs::write(staged.join(&marker), &note.token)?;
        }
        note.identity = identity(&fs::symlink_metadata(&staged)?);
        note.save(ours)?;
        match kind {
            Kind::Empty => rename_no_replace(&staged, dir),
            // Fails while one with a marker is there; an empty one is nobody's.
            Kind::Owned => fs::rename(&staged, dir),
        }
    })();
    match moved {
        Ok(()) => Ok(Some(ClientLock { dir: dir.to_owned(), note, ours })),
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
    with_ending(dir, &format!(".tmp.{token}"))
}

/// Frees a lock whose holder is dead, and tells what is there now.
fn remove_if_abandoned(dir: &Path, stale: Duration, ours: &FileLock) -> io::Result<Found> {
    let Some(found) = if_exists(fs::symlink_metadata(dir))? else { return Ok(Found::Nothing) };
    let noted = Note::load(ours)?;
    let is_our_own = identity(&found) == noted.identity;
    if !is_our_own && clock::now() <= stale_at(&found, stale) {
        return Ok(Found::Held);
    }
    if !is_lock(dir, &found)? {
        return Ok(Found::NotALock);
    }
    let mut note = Note { token: token(), ..noted };
    note.save(ours)?;
    if_exists(note.release(dir, ours)).map(|_| Found::Nothing)
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

/// When a lock has been left behind, if its holder does not touch it again.
fn stale_at(found: &Metadata, stale: Duration) -> Timestamp {
    let nanoseconds = i32::try_from(found.mtime_nsec()).unwrap_or_default();
    let touched = Timestamp::new(found.mtime(), nanoseconds).unwrap_or(Timestamp::MIN);
    touched.saturating_add(stale).unwrap_or(Timestamp::MAX)
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

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

impl Drop for ClientLock<'_> {
    /// Gives the lock back, if it is still ours. One that stays is taken over as stale.
    fn drop(&mut self) {
        let is_ours = |found: Metadata| identity(&found) == self.note.identity;
        if fs::symlink_metadata(&self.dir).is_ok_and(is_ours) {
            self.note.release(&self.dir, self.ours).ok();
        }
    }
}
