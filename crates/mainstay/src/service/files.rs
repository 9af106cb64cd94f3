//! The unit on disk.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::ServiceError;

/// A unit is no secret, and others may have to read it.
const MODE: u32 = 0o644;

/// A unit's file, and what is beside it.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    path: &'a Path,
}

impl<'a> Files<'a> {
    pub(crate) fn new(path: &'a Path) -> Self {
        Self { path }
    }

    /// The unit that is there, if any. What is no text was not written by us.
    pub(crate) fn read(&self) -> Result<Option<String>, ServiceError> {
        match fs::read(self.path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            // A link that leads nowhere is a person's, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(fs::symlink_metadata(self.path).is_ok().then(String::new))
            }
            Err(source) => Err(self.error("read", source)),
        }
    }

    /// Writes the unit: whatever happens in between, the old one is there or the new one.
    pub(crate) fn write(&self, text: &str) -> Result<(), ServiceError> {
        let write = || {
            let dir = self.path.parent().ok_or(io::ErrorKind::InvalidInput)?;
            DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            let mut new = tempfile::Builder::new().prefix(".mainstay").tempfile_in(dir)?;
            new.write_all(text.as_bytes())?;
            new.as_file().set_permissions(Permissions::from_mode(MODE))?;
            new.as_file().sync_all()?;
            new.persist(self.path)?;
            File::open(dir)?.sync_all()
        };
        write().map_err(|source| self.error("written", source))
    }

    /// Where a unit is kept that a person changed. No manager reads a file of that name.
    pub(crate) fn aside(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".old");
        name.into()
    }

    /// Puts the unit aside.
    pub(crate) fn keep(&self) -> Result<(), ServiceError> {
        fs::rename(self.path, self.aside()).map_err(|source| self.error("put aside", source))
    }

    /// Removes the unit.
    pub(crate) fn remove(&self) -> Result<(), ServiceError> {
        match fs::remove_file(self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.error("removed", error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn error(&self, action: &'static str, source: io::Error) -> ServiceError {
        ServiceError::File { path: self.path.to_owned(), action, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_comes_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("systemd/user/mainstay.service");
        let files = Files::new(&path);
        assert_eq!(files.read().unwrap(), None);
        files.write("one").unwrap();
        files.write("two").unwrap();
        assert_eq!(files.read().unwrap().as_deref(), Some("two"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        files.keep().unwrap();
        assert_eq!(files.read().unwrap(), None);
        assert_eq!(fs::read_to_string(files.aside()).unwrap(), "two");
        files.remove().unwrap();
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mainstay.service");
        std::os::unix::fs::symlink(dir.path().join("mine"), &path).unwrap();
        let files = Files::new(&path);
        assert_eq!(files.read().unwrap().as_deref(), Some(""), "there is something");
        files.write("ours").unwrap();
        assert!(!dir.path().join("mine").exists());
        assert_eq!(files.read().unwrap().as_deref(), Some("ours"));
    }

    #[test]
    fn a_place_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("systemd"), "").unwrap();
        let path = dir.path().join("systemd/user/mainstay.service");
        let error = Files::new(&path).write("x").unwrap_err();
        assert!(error.to_string().ends_with("mainstay.service` cannot be written"), "{error}");
    }
}
