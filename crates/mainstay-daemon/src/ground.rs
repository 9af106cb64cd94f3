//! What a daemon stands on: its directories, its lock and its socket.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mainstay_api::Instance;
use mainstay_engine::EngineError;
use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixListener;

use crate::StoreError;

/// Why a daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is one already.
    #[error("a daemon is running already{} for `{}`", pid_text(*pid), state_dir.display())]
    AlreadyRunning {
        /// Its process, if it left its number.
        pid: Option<u32>,
        /// What it holds.
        state_dir: PathBuf,
    },
    /// A directory cannot be used.
    #[error("the directory `{}` cannot be used: {}", path.display(), plain(source))]
    Directory {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory belongs to somebody else.
    #[error("the directory `{}` belongs to another user", .0.display())]
    ForeignDirectory(PathBuf),
    /// The store of intent.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine.
    #[error("the process engine cannot be opened: {0}")]
    Engine(#[source] EngineError),
    /// The socket.
    #[error("the socket `{}` cannot be opened: {}", path.display(), plain(source))]
    Socket {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The log.
    #[error("the log cannot be set up: {0}")]
    Log(#[source] io::Error),
    /// The runtime.
    #[error("the runtime cannot be set up: {0}")]
    Runtime(#[source] io::Error),
}

impl RunError {
    /// What the user can do about it.
    pub fn help(&self) -> Option<String> {
        let elsewhere = "or set MAINSTAY_HOME to a directory you can write to";
        match self {
            Self::AlreadyRunning { .. } => Some(
                "`mainstay daemon status` tells about it, `mainstay daemon stop` ends it".into(),
            ),
            Self::Directory { path, source } if source.kind() == io::ErrorKind::StorageFull => {
                Some(format!("free some space on the disk of `{}`", path.display()))
            }
            Self::Directory { path, .. } => {
                Some(format!("make `{}` writable, {elsewhere}", path.display()))
            }
            Self::ForeignDirectory(path) => {
                Some(format!("`chown` it to yourself (`{}`), {elsewhere}", path.display()))
            }
            Self::Store(error) => error.help(),
            Self::Engine(_) | Self::Socket { .. } | Self::Log(_) | Self::Runtime(_) => None,
        }
    }

    pub(crate) fn directory(path: &Path, source: io::Error) -> Self {
        Self::Directory { path: path.to_owned(), source }
    }
}

/// The directories, held by a lock for as long as this lives.
#[derive(Debug)]
pub(crate) struct Ground {
    instance: Instance,
    _lock: File,
}

impl Ground {
    /// Makes the directories, private ones, and locks them.
    pub(crate) fn take(instance: &Instance) -> Result<Self, RunError> {
        for dir in instance.directories() {
            make_private(dir)?;
        }
        make_private(&instance.logs_dir())?;
        let lock = lock(&instance.state_dir)?;
        Ok(Self { instance: instance.clone(), _lock: lock })
    }

    /// Opens the control socket. A leftover of a daemon that died is replaced: the lock is ours.
    pub(crate) fn listen(&self) -> Result<UnixListener, RunError> {
        let path = self.instance.socket();
        let open = || {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = mainstay_hold::socket::bind(&self.instance.run_dir, Instance::SOCKET)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        open().map_err(|source| RunError::Socket { path: path.clone(), source })
    }

    /// Removes the socket, so that a late client finds none rather than one nobody serves.
    pub(crate) fn give_up_socket(&self) {
        if let Err(error) = fs::remove_file(self.instance.socket()) {
            tracing::warn!(%error, "the socket stays behind");
        }
    }
}

fn make_private(dir: &Path) -> Result<(), RunError> {
    let failed = |source| RunError::directory(dir, source);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let found = fs::metadata(dir).map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(RunError::ForeignDirectory(dir.to_owned()));
    }
    if found.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

/// Makes a database that only its user can read, because the one who opens it would make one that
/// others can read too. The files that are kept beside it get the same mode. If this fails, so does
/// the opening, which says why.
pub(crate) fn make_private_database(path: &Path) {
    File::options().create(true).append(true).mode(0o600).open(path).ok();
}

fn lock(state_dir: &Path) -> Result<File, RunError> {
    let failed = |source| RunError::directory(state_dir, source);
    let mut file = File::options()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .open(state_dir.join("lock"))
        .map_err(failed)?;
    let mut holder = String::new();
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        file.read_to_string(&mut holder).map_err(failed)?;
        let pid = holder.trim().parse().ok();
        return Err(RunError::AlreadyRunning { pid, state_dir: state_dir.to_owned() });
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// An IO error without the number that std appends.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(dir: &Path) -> Instance {
        Instance { state_dir: dir.join("state"), run_dir: dir.join("run"), config_file: None }
    }

    #[test]
    fn directories_are_private_and_held_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance(dir.path());
        let ground = Ground::take(&instance).unwrap();
        let mode = fs::metadata(&instance.state_dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let error = Ground::take(&instance).unwrap_err();
        assert!(
            matches!(error, RunError::AlreadyRunning { pid: Some(pid), .. } if pid == std::process::id()),
            "{error}"
        );
        drop(ground);
        Ground::take(&instance).unwrap();
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state"), "").unwrap();
        let error = Ground::take(&instance(dir.path())).unwrap_err();
        assert!(error.to_string().contains("/state` cannot be used"), "{error}");
        assert!(error.help().unwrap().contains("MAINSTAY_HOME"));
    }
}
