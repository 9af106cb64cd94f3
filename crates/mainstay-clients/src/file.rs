//! Brings an edited text to a client's file.
//!
//! Guarantees, whatever happens in between (a crash, `kill -9`, a full disk, a client that writes too):
//!
//! - The file is at every moment whole: as it was, or as it was with our entry changed. Where only
//!   writing in place is possible this holds from the next [`Writer::open`] on, which completes what was
//!   broken off.
//! - What others wrote before our last look at the file is never lost. That look comes right before the
//!   rename; between the two lies no more than one system call, and a client that takes its own lock
//!   cannot come in between at all.
//! - Nothing is written unless it is proven by parsing that only our entry differs.
//! - Links, mode, owner and extended attributes stay. The old bytes are in our state directory first.
//!
//! Our lock is in our state directory, so a second one, on the client's directory itself, keeps out other
//! Mainstays of the same user. Where a directory cannot be locked, the look before the rename has to do.
//!
//! Order of an edit: our locks, their lock, read, edit, verify, backup, temporary file beside the target,
//! fsync, read again and compare, rename, fsync of the directory. If somebody wrote meanwhile, it begins
//! again with their lock.

mod backup;
mod error;
mod in_place;
mod lock;
mod replace;
mod snapshot;
mod state_file;
mod step;
mod target;
mod temporary;
mod verify;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::clock;
use crate::table::Client;

pub use error::FileError;
use replace::Outcome;
use snapshot::Snapshot;
use state_file::FileLock;
pub(crate) use state_file::{if_exists, lock_file, write_atomically};
pub use step::{Observer, Step};
use target::{TargetFile, resolve};
pub use verify::{VerifyError, only_entry_differs};

/// How often an edit is tried when others keep writing.
const MAX_TRIES: u32 = 5;

/// Writes clients' files, and keeps its locks and backups in our state directory.
#[derive(Clone)]
pub struct Writer {
    state: PathBuf,
    observer: Arc<dyn Observer>,
    lock_timeout: Duration,
}

/// A client's file, with our lock on it for as long as this lives.
pub struct OpenFile {
    writer: Writer,
    client: &'static Client,
    /// The path the client uses.
    path: PathBuf,
    /// What that leads to through links.
    target: PathBuf,
    key: String,
    lock: FileLock,
    /// Keeps out other Mainstays of the same user, which have their own state directory.
    _shared: Option<FileLock>,
    /// Whether the directory may be made.
    installed: bool,
    /// The topmost directory that is missing.
    missing: Option<PathBuf>,
}

/// What an edit did to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// What it said before; nothing if there was no file.
    pub before: Option<String>,
    /// What it says now; nothing if there is no file.
    pub after: Option<String>,
}

impl Written {
    /// Whether the file is another one now.
    pub fn changed(&self) -> bool {
        self.before != self.after
    }
}

impl Writer {
    /// A writer that keeps what it needs below this directory.
    pub fn new(state: PathBuf) -> Self {
        Self::observed(state, Arc::new(step::NoObserver))
    }

    /// A writer that tells an observer what it is about to do, and heeds it.
    pub fn observed(state: PathBuf, observer: Arc<dyn Observer>) -> Self {
        Self { state, observer, lock_timeout: Duration::from_secs(5) }
    }

    /// How long locks of others are waited for, if not 5 s.
    #[must_use]
    pub fn with_lock_timeout(self, lock_timeout: Duration) -> Self {
        Self { lock_timeout, ..self }
    }

    /// Takes our lock on a client's file, and completes what a writer that died may have left undone.
    /// The directory of a client that is not installed is never made.
    pub fn open(
        &self,
        client: &'static Client,
        path: &Path,
        installed: bool,
    ) -> Result<OpenFile, FileError> {
        let target = resolve(path)?;
        let key = key(&target);
        let missing = target.ancestors().skip(1).take_while(|dir| !dir.exists()).last();
        let missing = missing.map(Path::to_owned);
        let lock = lock_file(&self.state.join("locks").join(&key), self.lock_timeout)?;
        let shared =
            target.parent().and_then(|dir| state_file::lock_directory(dir, self.lock_timeout));
        let file = OpenFile {
            writer: self.clone(),
            client,
            path: path.to_owned(),
            target,
            key,
            lock,
            _shared: shared,
            installed,
            missing,
        };
        temporary::sweep(&file.target);
        in_place::repair(&file)?;
        Ok(file)
    }

    /// Reads a file as it is, without a lock, and changes nothing. Otherwise as [`OpenFile::read`].
    pub fn read<T, E: From<FileError>>(
        &self,
        path: &Path,
        parse: impl Fn(Option<&str>) -> Result<T, E>,
    ) -> Result<T, E> {
        let target = resolve(path)?;
        TargetFile { writer: self, path, target: &target }.read(parse)
    }

    /// The directory of its state.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Reports a step to the observer, and performs it.
    fn perform<T>(
        &self,
        step: Step,
        path: &Path,
        action: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, FileError> {
        let result = self.observer.before(step).and_then(|()| action());
        result.map_err(|source| FileError::Write { path: path.to_owned(), step, source })
    }
}

impl OpenFile {
    /// Reads the file. `parse` gets what it says (nothing: no such file). What cannot be understood
    /// is read again, if somebody is just writing it.
    pub fn read<T, E: From<FileError>>(
        &self,
        parse: impl Fn(Option<&str>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.target_file().read(parse)
    }

    /// Edits the file. `change` gets what it says and answers with what it shall say (nothing: no such
    /// file). It is asked again if somebody else wrote meanwhile, so it must depend on the text alone.
    /// Only the entry `name` may differ afterwards.
    pub fn edit<E: From<FileError>>(
        &self,
        name: &str,
        mut change: impl FnMut(Option<&str>) -> Result<Option<String>, E>,
    ) -> Result<Written, E> {
        let Some(top) = &self.missing else { return self.try_to_edit(name, &mut change) };
        if change(None)?.is_none() {
            return Ok(Written { before: None, after: None });
        }
        self.make_directory()?;
        let written = self.try_to_edit(name, &mut change);
        if written.is_err() {
            self.remove_directories(top);
        }
        written
    }

    fn try_to_edit<E: From<FileError>>(
        &self,
        name: &str,
        change: &mut impl FnMut(Option<&str>) -> Result<Option<String>, E>,
    ) -> Result<Written, E> {
        for attempt in 1..=MAX_TRIES {
            if let Some(written) = self.attempt(name, change)? {
                return Ok(written);
            }
            clock::pause(Duration::ZERO, Duration::from_millis(20) * attempt);
        }
        Err(FileError::KeepsChanging { path: self.path.clone(), tries: MAX_TRIES }.into())
    }

    /// One try. Nothing if somebody else wrote meanwhile.
    fn attempt<E: From<FileError>>(
        &self,
        name: &str,
        change: &mut impl FnMut(Option<&str>) -> Result<Option<String>, E>,
    ) -> Result<Option<Written>, E> {
        let _theirs = lock::acquire(self)?;
        let old = self.target_file().look()?;
        let before = old.as_ref().map(|old| old.text.as_str());
        let after = match change(before) {
            Ok(after) => after,
            // Half a file of one that is being written cannot be understood, and is no reason to fail.
            Err(_) if self.target_file().is_being_written(old.as_ref())? => return Ok(None),
            Err(error) => return Err(error),
        };
        if before == after.as_deref() {
            return Ok(Some(Written { before: after.clone(), after }));
        }
        self.verify(before, after.as_deref(), name)?;
        if let Some(old) = &old {
            old.check_writable(&self.target)?;
            backup::keep(self, &old.text)?;
        } else {
            snapshot::check_directory(&self.target)?;
        }
        match replace::replace(self, old.as_ref(), after.as_deref())? {
            Outcome::Done => {
                self.writer.perform(Step::Release, &self.path, || Ok(()))?;
                Ok(Some(Written { before: old.map(|old| old.text), after }))
            }
            Outcome::Changed => Ok(None),
        }
    }

    /// Whether the file is another one than it was.
    fn has_changed(&self, old: Option<&Snapshot>) -> Result<bool, FileError> {
        self.writer.perform(Step::Compare, &self.target, || Ok(()))?;
        self.target_file().has_changed(old)
    }

    fn target_file(&self) -> TargetFile<'_> {
        TargetFile { writer: &self.writer, path: &self.path, target: &self.target }
    }

    fn verify(
        &self,
        before: Option<&str>,
        after: Option<&str>,
        name: &str,
    ) -> Result<(), FileError> {
        let harmful = |harm| FileError::VerifyFailed {
            path: self.path.clone(),
            name: name.to_owned(),
            source: harm,
        };
        let before = before.unwrap_or_default();
        let place =
            self.client.place(before).map_err(|error| harmful(VerifyError::Place(error)))?;
        verify::only_entry_differs(before, after.unwrap_or_default(), &place, name).map_err(harmful)
    }

    fn directory(&self) -> &Path {
        self.target.parent().expect("the path of a file has a parent")
    }

    /// The topmost directory that has to be made for the file, if there is one.
    pub fn missing_directory(&self) -> Option<&Path> {
        self.missing.as_deref()
    }

    /// Removes the directories of the file up to this one, as far as they are empty.
    pub(crate) fn remove_directories(&self, top: &Path) {
        // A directory may have been made before its name could be resolved.
        let canonical = |dir: &Path| fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        let (dir, top) = (canonical(self.directory()), canonical(top));
        for dir in dir.ancestors().take_while(|dir| dir.starts_with(&top)) {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => return,
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Whether a write in place was broken off, which the next [`Writer::open`] completes.
    pub(crate) fn is_interrupted(&self) -> bool {
        in_place::is_interrupted(self)
    }

    fn make_directory(&self) -> Result<(), FileError> {
        let dir = self.directory();
        if fs::symlink_metadata(&self.path).is_ok() {
            return Err(FileError::DanglingLink { path: self.path.clone(), dir: dir.to_owned() });
        }
        if !self.installed {
            return Err(FileError::NoDirectory(dir.to_owned()));
        }
        self.writer.perform(Step::MakeDirectory, dir, || state_file::make_directory(dir))
    }
}

/// Why an existing file would not be written, if so.
pub(crate) fn why_unwritable(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let refused = snapshot::refusal(&metadata, path);
    let refused = refused.or_else(|| snapshot::check_directory(path).err());
    refused.map(|error| error.to_string())
}

/// Whether two paths lead to one file.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    matches!((resolve(one), resolve(other)), (Ok(one), Ok(other)) if one == other)
}

/// A short name for a path, for use in our own file names.
fn key(path: &Path) -> String {
    digest(path.as_os_str().as_encoded_bytes())
}

/// A short name for bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let start = digest.iter().take(12).fold(0, |start, byte| start << 8 | u128::from(*byte));
    format!("{start:024x}")
}
