//! What a path leads to through links.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::FileError;

/// As many links as the kernel follows.
const LIMIT: usize = 40;

/// Follows links to the file itself, which need not exist yet. The directory it is in is canonical, if
/// it exists, so that one file has one name.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, FileError> {
    let mut at = path.to_owned();
    for _ in 0..LIMIT {
        at = canonical_directory(&at)?;
        match fs::read_link(&at) {
            Ok(next) => at = at.parent().unwrap_or(Path::new("/")).join(next),
            Err(error) => match error.kind() {
                ErrorKind::InvalidInput | ErrorKind::NotFound => return Ok(at),
                _ => return Err(FileError::read(&at, error)),
            },
        }
    }
    Err(FileError::Circle { path: path.to_owned() })
}

fn canonical_directory(path: &Path) -> Result<PathBuf, FileError> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(FileError::NotAFile { path: path.to_owned() });
    };
    match fs::canonicalize(dir) {
        Ok(dir) => Ok(dir.join(name)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(FileError::read(path, error)),
    }
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
    fn a_circle_of_links_is_told() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        let error = resolve(&dir.path().join("a")).unwrap_err();
        assert!(matches!(error, FileError::Circle { .. }), "{error}");
    }
}
