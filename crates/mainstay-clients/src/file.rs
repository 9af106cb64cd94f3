//! Writes an edited text to a client's file.
//!
//! Guarantees, also in case of a crash, `kill -9`, a full disk, or a client that writes at the same time:
//!
//! - The file is always complete: either unchanged, or with only our entry changed. Where only writing in place is
//!   possible, this holds after the next [`Writer::open`], which completes interrupted writes.
//! - What others wrote before our last read of the file is never lost. That read is directly before the rename, and a
//!   client that takes its own lock cannot write in between.
//! - Nothing is written unless a check by parsing shows that only our entry differs.
//! - Links, mode, owner and extended attributes stay. A backup is written first.
//!
//! Our lock is in the state directory. A second one, on the client's directory, excludes other Mainstays of the same
//! user. Where a directory cannot be locked, the read before the rename must suffice.
//!
//! Order of an edit: our locks, the client's lock, read, edit, verify, backup, temporary file beside the target, fsync,
//! read again and compare, rename, fsync of the directory. If another program wrote meanwhile, the edit is repeated from
//! the client's lock on.

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
    observer: Option<Arc<dyn Observer>>,
    lock_timeout: Duration,
}

/// A client's file, locked until this is dropped.
pub struct OpenFile {
    writer: Writer,
    client: &'static Client,
    /// The path that the client uses.
    path: PathBuf,
    /// The path after following links.
    target: PathBuf,
    key: String,
    lock: FileLock,
    /// Excludes other Mainstays of the same user, which have their own state directories.
    _shared: Option<FileLock>,
    /// Whether the client is installed. If not, its directory is not created.
    installed: bool,
    /// The topmost directory that is missing.
    missing: Option<PathBuf>,
}

impl Writer {
    pub fn new(state: PathBuf) -> Self {
        Self { state, observer: None, lock_timeout: Duration::from_secs(5) }
    }

    pub fn observed(state: PathBuf, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..Self::new(state) }
    }

    /// How long to wait for locks of others, if not 5 s.
    #[must_use]
    pub fn with_lock_timeout(self, lock_timeout: Duration) -> Self {
        Self { lock_timeout, ..self }
    }

    /// Locks a client's file, and completes an interrupted write.
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

    /// As [`OpenFile::read`], without a lock. Changes nothing.
    pub fn read<T, E: From<FileError>>(
        &self,
        path: &Path,
        parse: impl Fn(Option<&str>) -> Result<T, E>,
    ) -> Result<T, E> {
        let target = resolve(path)?;
        TargetFile { writer: self, path, target: &target }.read(parse)
    }

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
        let allowed = self.observer.as_ref().map_or(Ok(()), |observer| observer.before(step));
        let result = allowed.and_then(|()| action());
        result.map_err(|source| FileError::Write { path: path.to_owned(), step, source })
    }
}

impl OpenFile {
    /// Reads and parses the file; `parse` gets `None` if there is none. If parsing fails and another program is writing
    /// the file, this is repeated.
    pub fn read<T, E: From<FileError>>(
        &self,
        parse: impl Fn(Option<&str>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.target_file().read(parse)
    }

    /// Edits the file. `change` gets the old text and returns the new one (`None`: no file). It is called again if another
    /// program wrote meanwhile, so it must depend on the text only. Only the entry `name` may differ afterwards. Returns
    /// whether the file was written.
    pub fn edit<E: From<FileError>>(
        &self,
        name: &str,
        mut change: impl FnMut(Option<&str>) -> Result<Option<String>, E>,
    ) -> Result<bool, E> {
        let Some(top) = &self.missing else { return self.try_to_edit(name, &mut change) };
        if change(None)?.is_none() {
            return Ok(false);
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
    ) -> Result<bool, E> {
        for attempt in 1..=MAX_TRIES {
            if let Some(written) = self.attempt(name, change)? {
                return Ok(written);
            }
            clock::pause(Duration::ZERO, Duration::from_millis(20) * attempt);
        }
        Err(FileError::KeepsChanging { path: self.path.clone(), tries: MAX_TRIES }.into())
    }

    /// One try. Nothing if another program wrote meanwhile.
    fn attempt<E: From<FileError>>(
        &self,
        name: &str,
        change: &mut impl FnMut(Option<&str>) -> Result<Option<String>, E>,
    ) -> Result<Option<bool>, E> {
        let _client_lock = lock::acquire(self)?;
        let old = self.target_file().look()?;
        let before = old.as_ref().map(|old| old.text.as_str());
        let after = match change(before) {
            Ok(after) => after,
            // A file that is being written may be incomplete.
            Err(_) if self.target_file().is_being_written(old.as_ref())? => return Ok(None),
            Err(error) => return Err(error),
        };
        if before == after.as_deref() {
            return Ok(Some(false));
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
                Ok(Some(true))
            }
            Outcome::Changed => Ok(None),
        }
    }

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
        let failed = |source| FileError::VerifyFailed {
            path: self.path.clone(),
            name: name.to_owned(),
            source,
        };
        let before = before.unwrap_or_default();
        let place = self.client.place(before).map_err(|error| failed(VerifyError::Place(error)))?;
        verify::only_entry_differs(before, after.unwrap_or_default(), &place, name).map_err(failed)
    }

    fn directory(&self) -> &Path {
        self.target.parent().expect("the path of a file has a parent")
    }

    /// The topmost directory that has to be created for the file, if any.
    pub fn missing_directory(&self) -> Option<&Path> {
        self.missing.as_deref()
    }

    /// Removes the directories of the file up to this one, as far as they are empty.
    pub(crate) fn remove_directories(&self, top: &Path) {
        // The path may have been resolved before the directory was created.
        let canonical = |dir: &Path| fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        let (dir, top) = (canonical(self.directory()), canonical(top));
        for dir in dir.ancestors().take_while(|dir| dir.starts_with(&top)) {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => return,
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Whether a write in place was interrupted. The next [`Writer::open`] completes it.
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

/// Why an existing file cannot be written, if so.
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
