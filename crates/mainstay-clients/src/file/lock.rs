//! The client's own lock, taken as the client takes it.
//!
//! It is held for the milliseconds of one try. A lock of a program that died is taken over when it is as old as the
//! client itself lets it become, and is waited for until then. A lock that a dead Mainstay left is taken over at once:
//! it is recorded in our own lock, which the kernel releases when a process dies. If something else has been in its
//! place for that long, the file is written without the lock, because the client cannot take it either.

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

/// A client's lock, released on drop.
pub(super) struct ClientLock<'a> {
    dir: PathBuf,
    note: Note,
    our_lock: &'a FileLock,
}

/// Takes the client's lock, if it uses one. The wait is bounded.
pub(super) fn acquire(file: &OpenFile) -> Result<Option<ClientLock<'_>>, FileError> {
    let Some(LockProtocol { has_marker, stale }) = file.client.lock else { return Ok(None) };
    // Clients put it beside the path that they use, not beside the target of a link.
    let dir = with_ending(&file.path, ".lock");
    file.writer.perform(Step::Lock, &dir, || sweep(&dir, &file.lock))?;
    let failed = |source| FileError::Write { path: dir.clone(), step: Step::Lock, source };
    // A lock whose holder just died is waited for as long as its client would.
    let lock_timeout = file.writer.lock_timeout.max(time_to_stale(&dir, stale).map_err(failed)?);
    let mut waited = Duration::ZERO;
    while waited <= lock_timeout {
        match remove_if_abandoned(&dir, stale, &file.lock).map_err(failed)? {
            Found::Nothing => {
                if let Some(theirs) = try_acquire(&dir, has_marker, &file.lock).map_err(failed)? {
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

/// Locks that become stale later than this are not waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(12);

/// How long until a lock becomes stale.
fn time_to_stale(dir: &Path, stale: Duration) -> io::Result<Duration> {
    let Some(found) = if_exists(fs::symlink_metadata(dir))? else { return Ok(Duration::ZERO) };
    let left = stale_at(&found, stale).duration_since(clock::now());
    let left = Duration::try_from(left).unwrap_or_default() + LOCK_POLL * 4;
    Ok(if left <= LONGEST_WAIT { left } else { Duration::ZERO })
}

/// What is at the path of a client's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Held,
    /// Something old that is not a lock. The client cannot take its lock either, and writes without it.
    NotALock,
}

/// What we record about a lock that we take: the token in its temporary name, and the identity of its directory.
struct Note {
    token: String,
    identity: String,
}

impl Note {
    fn save(&self, our_lock: &FileLock) -> io::Result<()> {
        our_lock.write_note(&format!("{} {}", self.token, self.identity))
    }

    /// Releases a lock by renaming it first, so that only one of two processes succeeds, and so that a death in between
    /// leaves only a temporary directory, which `sweep` removes.
    fn release(&mut self, dir: &Path, our_lock: &FileLock) -> io::Result<()> {
        let aside = staged(dir, &self.token);
        fs::rename(dir, &aside)?;
        self.discard(&aside, our_lock)
    }

    /// Removes a renamed lock. The recorded identity is cleared first: two directories that are created within one tick
    /// of the clock may have the same one, and a lock of another program must not be mistaken for our own.
    fn discard(&mut self, aside: &Path, our_lock: &FileLock) -> io::Result<()> {
        self.identity.clear();
        self.save(our_lock)?;
        fs::remove_dir_all(aside)
    }

    fn load(our_lock: &FileLock) -> io::Result<Self> {
        let note = our_lock.read_note()?;
        let (token, identity) = note.split_once(' ').unwrap_or_default();
        Ok(Self { token: token.to_owned(), identity: identity.to_owned() })
    }
}

/// Removes the temporary directory of a Mainstay that died.
fn sweep(dir: &Path, our_lock: &FileLock) -> io::Result<()> {
    let note = Note::load(our_lock)?;
    if note.token.is_empty() {
        return Ok(());
    }
    if_exists(fs::remove_dir_all(staged(dir, &note.token))).map(drop)
}

/// Takes the lock unless another program has it. It is created under a temporary name and renamed, so that it is
/// recorded before it exists.
fn try_acquire<'a>(
    dir: &Path,
    has_marker: bool,
    our_lock: &'a FileLock,
) -> io::Result<Option<ClientLock<'a>>> {
    let mut note = Note { token: token(), identity: String::new() };
    note.save(our_lock)?;
    let staged = staged(dir, &note.token);
    DirBuilder::new().mode(0o700).create(&staged)?;
    let marker = format!("owner.{}", note.token);
    let moved = (|| {
        if has_marker {
            fs::write(staged.join(&marker), &note.token)?;
        }
        note.identity = identity(&fs::symlink_metadata(&staged)?);
        note.save(our_lock)?;
        // Fails if one with a marker exists; an empty one has no owner.
        if has_marker { fs::rename(&staged, dir) } else { rename_no_replace(&staged, dir) }
    })();
    match moved {
        Ok(()) => Ok(Some(ClientLock { dir: dir.to_owned(), note, our_lock })),
        Err(error) => {
            note.discard(&staged, our_lock)?;
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

/// Removes a lock whose holder is dead. Returns what was found.
fn remove_if_abandoned(dir: &Path, stale: Duration, our_lock: &FileLock) -> io::Result<Found> {
    let Some(found) = if_exists(fs::symlink_metadata(dir))? else { return Ok(Found::Nothing) };
    let recorded = Note::load(our_lock)?;
    let is_our_own = identity(&found) == recorded.identity;
    if !is_our_own && clock::now() <= stale_at(&found, stale) {
        return Ok(Found::Held);
    }
    if !is_lock(dir, &found)? {
        return Ok(Found::NotALock);
    }
    let mut note = Note { token: token(), ..recorded };
    note.save(our_lock)?;
    if_exists(note.release(dir, our_lock)).map(|_| Found::Nothing)
}

/// Whether this is a directory that contains only markers.
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

/// When a lock becomes stale, unless its holder touches it.
fn stale_at(found: &Metadata, stale: Duration) -> Timestamp {
    let nanoseconds = i32::try_from(found.mtime_nsec()).unwrap_or_default();
    let touched = Timestamp::new(found.mtime(), nanoseconds).unwrap_or(Timestamp::MIN);
    touched.saturating_add(stale).unwrap_or(Timestamp::MAX)
}

/// Distinguishes a directory from one that replaced it.
fn identity(found: &Metadata) -> String {
    let (seconds, nanoseconds) = (found.mtime(), found.mtime_nsec());
    format!("{}:{}:{seconds}.{nanoseconds:09}", found.dev(), found.ino())
}

/// In Cline's format: process, time, and a random part.
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
    /// Releases the lock if this process still holds it. Otherwise it becomes stale.
    fn drop(&mut self) {
        let is_ours = |found: Metadata| identity(&found) == self.note.identity;
        if fs::symlink_metadata(&self.dir).is_ok_and(is_ours) {
            self.note.release(&self.dir, self.our_lock).ok();
        }
    }
}
