//! Reading a client's file, which another program may be writing.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::snapshot::Snapshot;
use super::state_file::if_exists;
use super::{FileError, MAX_TRIES, Step, Writer};
use crate::clock;

/// A client that writes in place shows an empty or incomplete file for a moment. Such a file is trusted if it is
/// unchanged after this time.
const SETTLE_TIME: Duration = Duration::from_millis(250);

#[derive(Clone, Copy)]
pub(super) struct TargetFile<'a> {
    pub(super) writer: &'a Writer,
    /// The path that the client uses.
    pub(super) path: &'a Path,
    /// The path after following links.
    pub(super) target: &'a Path,
}

impl TargetFile<'_> {
    /// Reads and parses the file; `parse` gets `None` if there is none. If parsing fails and another program is writing
    /// the file, this is repeated.
    pub(super) fn read<T, E: From<FileError>>(
        self,
        parse: impl Fn(Option<&str>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tries = 1;
        loop {
            let old = self.look()?;
            match parse(old.as_ref().map(|old| old.text.as_str())) {
                Err(_) if tries < MAX_TRIES && self.is_being_written(old.as_ref())? => tries += 1,
                result => return result,
            }
        }
    }

    /// Reads the file. An empty file is read again, because a client may be about to write it.
    pub(super) fn look(self) -> Result<Option<Snapshot>, FileError> {
        self.writer.perform(Step::Read, self.target, || Ok(()))?;
        let snapshot = Snapshot::take(self.target)?;
        if snapshot.as_ref().is_some_and(|snapshot| snapshot.text.is_empty()) {
            clock::pause(SETTLE_TIME, SETTLE_TIME);
            return Snapshot::take(self.target);
        }
        Ok(snapshot)
    }

    /// Whether another program is writing the file.
    pub(super) fn is_being_written(self, old: Option<&Snapshot>) -> Result<bool, FileError> {
        clock::pause(SETTLE_TIME, SETTLE_TIME);
        self.has_changed(old)
    }

    /// Whether the file differs from what was read.
    pub(super) fn has_changed(self, old: Option<&Snapshot>) -> Result<bool, FileError> {
        if resolve(self.path)? != self.target {
            return Ok(true);
        }
        let now = Snapshot::take(self.target)?;
        Ok(now.map(|now| now.text) != old.map(|old| old.text.clone()))
    }
}

/// The limit of the Linux kernel.
const MAX_LINKS: usize = 40;

/// Follows links to the file itself, which need not exist. Its directory is canonical, if it exists, so that a file has
/// only one name.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, FileError> {
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        at = canonical_directory(&at)?;
        match fs::read_link(&at) {
            Ok(next) => at = at.parent().unwrap_or(Path::new("/")).join(next),
            Err(error) => match error.kind() {
                ErrorKind::InvalidInput | ErrorKind::NotFound => return Ok(at),
                _ => return Err(FileError::read(&at, error)),
            },
        }
    }
    Err(FileError::LinkLoop(path.to_owned()))
}

fn canonical_directory(path: &Path) -> Result<PathBuf, FileError> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(FileError::NotAFile(path.to_owned()));
    };
    let dir = if_exists(fs::canonicalize(dir)).map_err(|error| FileError::read(path, error))?;
    Ok(dir.map_or_else(|| path.to_owned(), |dir| dir.join(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_to_a_file_that_need_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("dotfiles/deep")).unwrap();
        symlink("dotfiles/mcp.json", root.join("mcp.json")).unwrap();
        symlink("deep/real.json", root.join("dotfiles/mcp.json")).unwrap();
        symlink(root.join("dotfiles"), root.join("linked")).unwrap();
        let real = root.join("dotfiles/deep/real.json");
        assert_eq!(resolve(&root.join("mcp.json")).unwrap(), real);
        assert_eq!(resolve(&root.join("linked/mcp.json")).unwrap(), real);
        fs::write(&real, "{}").unwrap();
        assert_eq!(resolve(&root.join("mcp.json")).unwrap(), real);
        let missing = root.join("no/such/dir/file");
        assert_eq!(resolve(&missing).unwrap(), missing);
    }

    #[test]
    fn a_link_loop_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        let error = resolve(&dir.path().join("a")).unwrap_err();
        assert!(matches!(error, FileError::LinkLoop { .. }), "{error}");
    }
}
