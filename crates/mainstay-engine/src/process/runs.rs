//! The directories of runs: `RUNS/SERVER/GENERATION`.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mainstay_core::{Exit, RunId, ServerName};
use mainstay_hold::record::if_exists;
use mainstay_hold::tree::{self, Process};
use mainstay_hold::{cgroup, record, shim_search};

use crate::{EngineError, RunKey};

#[derive(Debug, Clone)]
pub(crate) struct RunDirs {
    root: PathBuf,
}

impl RunDirs {
    pub(crate) fn open(root: &Path) -> Result<Self, EngineError> {
        make_private(root).map_err(EngineError::io("creating the directory of runs"))?;
        Ok(Self { root: root.to_owned() })
    }

    pub(crate) fn path(&self, key: &RunKey) -> PathBuf {
        self.root.join(key.server.as_str()).join(key.run.to_string())
    }

    pub(crate) fn create(&self, key: &RunKey) -> io::Result<PathBuf> {
        let path = self.path(key);
        make_private(&path)?;
        Ok(path)
    }

    /// The runs on disk. Other names are ignored.
    pub(crate) fn list(&self) -> Result<Vec<RunKey>, EngineError> {
        let failed = || EngineError::io("listing the runs");
        let mut keys = Vec::new();
        for server in entries(&self.root).map_err(failed())? {
            let Ok(name) = server.parse::<ServerName>() else { continue };
            for run in entries(&self.root.join(&server)).map_err(failed())? {
                if let Ok(generation) = run.parse() {
                    keys.push(RunKey::new(name.clone(), RunId::new(generation)));
                }
            }
        }
        keys.sort();
        Ok(keys)
    }

    /// The runs of living shims, also those whose directory was removed.
    pub(crate) fn of_living_shims(&self) -> Vec<RunKey> {
        let key = |dir: PathBuf| {
            let mut names = dir
                .strip_prefix(&self.root)
                .ok()?
                .components()
                .map(|name| name.as_os_str().to_str().map(str::to_owned));
            let (server, run) = (names.next()??.parse().ok()?, names.next()??.parse().ok()?);
            names.next().is_none().then(|| RunKey::new(server, RunId::new(run)))
        };
        let dirs = shim_search::run_dirs_of_shims(&self.root).unwrap_or_else(|error| {
            tracing::warn!(%error, "shims cannot be looked for");
            Vec::new()
        });
        dirs.into_iter().filter_map(key).collect()
    }

    pub(crate) fn exists(&self, key: &RunKey) -> bool {
        self.path(key).exists()
    }

    /// Whether the shim of a run is alive. True if that cannot be determined.
    pub(crate) fn shim_alive(&self, key: &RunKey) -> bool {
        record::shim_alive(&self.path(key)).map_or(true, |shim| shim.is_some())
    }

    /// Kills the shim of a run, if it is alive, and returns its descendants.
    pub(crate) fn kill_shim(&self, key: &RunKey) -> io::Result<Vec<Process>> {
        let Some(shim) = record::shim_alive(&self.path(key))? else { return Ok(Vec::new()) };
        let below = tree::living_descendants(shim.pid)?;
        shim.kill()?;
        Ok(below)
    }

    /// The exit record of a run.
    fn exit(&self, key: &RunKey) -> Option<Exit> {
        let record = record::read(&self.path(key)).ok().flatten()?;
        Some(Exit { code: record.code, signal: record.signal, oom: record.oom })
    }

    /// Removes the directory of a run, and returns how the run ended. A directory with the record of a cgroup stays until a
    /// later listing has ended the cgroup.
    pub(crate) fn clear_away(&self, key: &RunKey) -> Exit {
        let exit = self.exit(key).unwrap_or(Exit::UNKNOWN);
        let path = self.path(key);
        if cgroup::is_recorded(&path) {
            tracing::warn!(path = %path.display(), "keeping the directory of a run whose cgroup is not gone");
            return exit;
        }
        if let Err(error) = if_exists(fs::remove_dir_all(&path)) {
            tracing::warn!(%error, path = %path.display(), "the directory of a run stays behind");
        }
        exit
    }

    /// Removes a server's directory once it has no runs.
    pub(crate) fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        use io::ErrorKind::{DirectoryNotEmpty, NotFound};
        match fs::remove_dir(self.root.join(server.as_str())) {
            Err(error) if !matches!(error.kind(), NotFound | DirectoryNotEmpty) => {
                Err(EngineError::io("removing the directory of runs")(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn entries(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in if_exists(fs::read_dir(path))?.into_iter().flatten() {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_and_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = RunDirs::open(&dir.path().join("runs")).unwrap();
        let key = RunKey::new("time".parse().unwrap(), RunId::new(3));
        dirs.create(&key).unwrap();
        fs::create_dir(dirs.root.join("Not-Ours")).unwrap();
        assert_eq!(dirs.list().unwrap(), std::slice::from_ref(&key));
        assert_eq!(dirs.clear_away(&key), Exit::UNKNOWN);
        assert_eq!(dirs.list().unwrap(), []);
        dirs.forget(&key.server).unwrap();
        dirs.forget(&key.server).unwrap();
    }

    #[test]
    fn a_run_whose_cgroup_is_recorded_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = RunDirs::open(dir.path()).unwrap();
        let key = RunKey::new("time".parse().unwrap(), RunId::new(3));
        let record = dirs.create(&key).unwrap().join(cgroup::CGROUP);
        fs::write(&record, "").unwrap();
        dirs.clear_away(&key);
        assert_eq!(dirs.list().unwrap(), std::slice::from_ref(&key));
        fs::remove_file(&record).unwrap();
        dirs.clear_away(&key);
        assert_eq!(dirs.list().unwrap(), []);
    }
}
