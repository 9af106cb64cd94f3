//! The directories of a daemon, and why it cannot run.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mainstay_api::{Instance, Location, Machine};
use mainstay_engine::EngineError;

use crate::StoreError;

/// The maximum number of bytes that a daemon writes at its start, mostly to write-ahead logs.
const START_BYTES: usize = 512 * 1024;

/// Why a daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the directory `{}` cannot be used: {}", path.display(), plain(source))]
    Directory { path: PathBuf, source: io::Error },
    #[error("the directory `{}` belongs to another user", .0.display())]
    ForeignDirectory(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the process engine cannot be opened: {0}")]
    Engine(#[from] EngineError),
    #[error("the holder of the listeners cannot be reached: {}", plain(.0))]
    Holder(#[source] io::Error),
    #[error("a later daemon has opened the state directory")]
    Superseded,
    #[error("the socket `{}` cannot be opened: {}", path.display(), plain(source))]
    Socket { path: PathBuf, source: io::Error },
    #[error("{addr} cannot be used to listen for MCP clients: {}", plain(source))]
    Listen { addr: SocketAddr, source: io::Error },
    #[error("the log cannot be set up: {0}")]
    Log(#[source] io::Error),
    #[error("the runtime cannot be set up: {0}")]
    Runtime(#[source] io::Error),
}

impl RunError {
    /// What the user can do about it.
    pub fn help(&self) -> Option<String> {
        let elsewhere = "or set MAINSTAY_HOME to a directory you can write to";
        match self {
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
            Self::Listen { .. } => {
                Some("stop the program that uses it, or set `listen` in the config file".to_owned())
            }
            Self::Engine(_)
            | Self::Holder(_)
            | Self::Superseded
            | Self::Socket { .. }
            | Self::Log(_)
            | Self::Runtime(_) => None,
        }
    }

    pub(crate) fn directory(path: &Path, source: io::Error) -> Self {
        Self::Directory { path: path.to_owned(), source }
    }
}

/// Creates the directories of an instance, private to its user.
pub fn prepare(instance: &Instance) -> Result<(), RunError> {
    for dir in instance.directories() {
        make_private(dir)?;
    }
    make_private(&instance.logs_dir())
}

/// Records which run directory the daemon of an instance uses, so that every program finds it.
pub fn record(instance: &Instance, service: bool) {
    let Instance { state_dir, run_dir, .. } = instance.clone();
    let location = Location { machine: Machine::current(), state_dir, run_dir, service };
    // On a full disk the daemon serves without it: most programs look in the right place anyway.
    if Location::read(&instance.state_dir).as_ref() != Some(&location)
        && let Err(error) = location.write(&instance.state_dir)
    {
        tracing::warn!(%error, "the location of the run directory cannot be recorded");
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

/// Checks that there is enough free space for a start. Leaves no file.
pub(crate) fn check_free_space(instance: &Instance) -> Result<(), RunError> {
    for dir in instance.directories() {
        let file = dir.join(format!("trial-{}", std::process::id()));
        let written = fs::write(&file, vec![1; START_BYTES]);
        fs::remove_file(&file).ok();
        written.map_err(|source| RunError::directory(dir, source))?;
    }
    Ok(())
}

/// Creates a database file that only its user can read: `SQLite` would create one that others can read, too. The files
/// beside it get the same mode. If this fails, opening it fails with a better error.
pub(crate) fn make_private_database(path: &Path) {
    File::options().create(true).append(true).mode(0o600).open(path).ok();
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
    fn directories_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance(dir.path());
        fs::create_dir(&instance.state_dir).unwrap();
        fs::set_permissions(&instance.state_dir, fs::Permissions::from_mode(0o755)).unwrap();
        prepare(&instance).unwrap();
        for dir in [&instance.state_dir, &instance.run_dir] {
            assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn a_check_for_free_space_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let instance = instance(dir.path());
        assert!(check_free_space(&instance).is_err(), "there are no directories");
        prepare(&instance).unwrap();
        check_free_space(&instance).unwrap();
        assert_eq!(fs::read_dir(&instance.run_dir).unwrap().count(), 0);
    }

    #[test]
    fn an_error_names_a_file_in_place_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state"), "").unwrap();
        let error = prepare(&instance(dir.path())).unwrap_err();
        assert!(error.to_string().contains("/state` cannot be used"), "{error}");
        assert!(error.help().unwrap().contains("MAINSTAY_HOME"));
    }
}
