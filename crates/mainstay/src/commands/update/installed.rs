//! The installed program, and the two files beside it: the new program before the replacement (`mainstay.new`), and the
//! old one after it (`mainstay.previous`).
//!
//! If an update is interrupted at any point, the program's path has either the old or the new program, complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::{unreadable, unwritable};
use crate::error::CliError;

/// The program that an update replaces.
#[derive(Debug)]
pub(super) struct Installed {
    path: PathBuf,
    directory: PathBuf,
    /// The program when the update began. Its path may have another one by now.
    file: File,
}

impl Installed {
    /// The program at this path. A link to it is followed, and stays.
    pub(super) fn find(exe: &Path) -> Result<Self, CliError> {
        let path = exe.canonicalize().map_err(unreadable(exe))?;
        let file = File::open(&path).map_err(unreadable(exe))?;
        let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Self { path, directory, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Where the old program is kept.
    pub(super) fn previous(&self) -> PathBuf {
        self.sibling(".previous")
    }

    /// Removes the files of a killed update. The caller has the update lock.
    pub(super) fn clear_leftovers(&self) {
        for name in [".new", ".keep"] {
            // The next update tries again.
            let _read_only = remove(&self.sibling(name));
        }
    }

    /// Copies a program beside this one, with the same owner and mode, and syncs it to disk. The copy is removed when the
    /// result is dropped.
    pub(super) fn copy_in(&self, mut new: &File) -> Result<TempPath, CliError> {
        let path = self.sibling(".new");
        self.copy_to(&path, &mut new).map_err(unwritable(&path))
    }

    /// Replaces this program by the new one, and keeps it as [`Self::previous`].
    pub(super) fn replace(&self, new: TempPath) -> Result<(), CliError> {
        self.keep_previous().map_err(unwritable(&self.previous()))?;
        new.persist(&self.path).map_err(|error| unwritable(&self.path)(error.error))?;
        self.sync_directory().map_err(unwritable(&self.directory))
    }

    /// Restores the old program, unless it is installed already.
    pub(super) fn restore(&self) -> io::Result<()> {
        if self.is_at(&self.path)? {
            return Ok(());
        }
        if !self.is_at(&self.previous())? {
            return Err(io::Error::other("the kept file is another program"));
        }
        fs::rename(self.previous(), &self.path)?;
        self.sync_directory()
    }

    pub(super) fn has_same_content(&self, other: &File) -> io::Result<bool> {
        let (a, b) = (self.file.metadata()?, other.metadata()?);
        if a.len() != b.len() {
            return Ok(false);
        }
        let is_same_file = (a.dev(), a.ino()) == (b.dev(), b.ino());
        if is_same_file { Ok(true) } else { same_bytes(&self.file, other, a.len()) }
    }

    /// The other program that a process runs. None if it runs this one or one that had its path before, or if that is
    /// unknown.
    pub(super) fn other_program_of(&self, pid: u32) -> Option<PathBuf> {
        if self.is_run_by(pid) {
            return None;
        }
        let program = without_deleted_suffix(fs::read_link(program_of(pid)).ok()?);
        (program != self.path).then_some(program)
    }

    /// Whether a process runs the file that is at the program's path now.
    pub(super) fn is_run_by(&self, pid: u32) -> bool {
        let identity =
            |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let program = identity(&program_of(pid));
        program.is_some() && program == identity(&self.path)
    }

    /// Whether a process runs the old program; true if that is unknown.
    pub(super) fn was_run_by(&self, pid: u32) -> bool {
        File::open(program_of(pid))
            .and_then(|program| self.has_same_content(&program))
            .unwrap_or(true)
    }

    fn is_at(&self, path: &Path) -> io::Result<bool> {
        self.has_same_content(&File::open(path)?)
    }

    /// Keeps the old program as [`Self::previous`]: a hard link, or a copy if the file system has no links.
    fn keep_previous(&self) -> io::Result<()> {
        let path = self.sibling(".keep");
        remove(&path)?;
        let kept = if fs::hard_link(&self.path, &path).is_ok() {
            TempPath::try_from_path(&path)?
        } else {
            self.copy_to(&path, &mut File::open(&self.path)?)?
        };
        // Renaming one link of a file to another does nothing; then the guard removes the first link.
        fs::rename(&kept, self.previous())
    }

    /// Copies a file, with the owner and mode of the program.
    fn copy_to(&self, path: &Path, from: &mut impl Read) -> io::Result<TempPath> {
        remove(path)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        let guard = TempPath::try_from_path(path)?;
        let old = self.file.metadata()?;
        let new = file.metadata()?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            // Only root can change the owner. Otherwise the new file belongs to the user of this program.
            let _refused = std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()));
        }
        file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o777 | 0o100))?;
        io::copy(from, &mut file)?;
        file.sync_all()?;
        Ok(guard)
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn sibling(&self, suffix: &str) -> PathBuf {
        let mut name = OsString::from(self.path.file_name().unwrap_or_default());
        name.push(suffix);
        self.directory.join(name)
    }
}

/// The program that a process runs.
fn program_of(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/exe"))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn same_bytes(one: &File, other: &File, len: u64) -> io::Result<bool> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let read = |file: &File| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    };
    Ok(read(one)? == read(other)?)
}

/// A program's path without the kernel's mark of a deleted or replaced file.
fn without_deleted_suffix(link: PathBuf) -> PathBuf {
    let text = link.as_os_str().as_encoded_bytes();
    match text.strip_suffix(b" (deleted)") {
        Some(path) => OsString::from_vec(path.to_vec()).into(),
        None => link,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A program in a directory of its own.
    fn scene() -> (tempfile::TempDir, Installed) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mainstay");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let installed = Installed::find(&path).unwrap();
        (dir, installed)
    }

    fn copy(installed: &Installed, text: &str) -> TempPath {
        let new = installed.directory().join("download");
        fs::write(&new, text).unwrap();
        let copy = installed.copy_in(&File::open(&new).unwrap()).unwrap();
        fs::remove_file(new).unwrap();
        copy
    }

    #[track_caller]
    fn check(installed: &Installed, program: &str, previous: Option<&str>) {
        assert_eq!(fs::read_to_string(installed.path()).unwrap(), program);
        assert_eq!(fs::read_to_string(installed.previous()).ok().as_deref(), previous);
        let files = fs::read_dir(installed.directory()).unwrap().count();
        assert_eq!(files, 1 + usize::from(previous.is_some()), "nothing else is left");
    }

    #[test]
    fn the_replaced_program_is_kept_and_can_be_restored() {
        let (_dir, installed) = scene();
        installed.replace(copy(&installed, "new")).unwrap();
        check(&installed, "new", Some("old"));
        let mode = fs::metadata(installed.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        for _already in 0..2 {
            installed.restore().unwrap();
            check(&installed, "old", None);
        }
    }

    #[test]
    fn leftovers_of_an_interrupted_update_are_overwritten() {
        let (_dir, installed) = scene();
        installed.keep_previous().unwrap();
        for name in [".new", ".keep"] {
            fs::write(installed.sibling(name), "half").unwrap();
        }
        installed.replace(copy(&installed, "new")).unwrap();
        check(&installed, "new", Some("old"));
    }

    #[test]
    fn leftovers_of_a_killed_update_are_removed() {
        let (_dir, installed) = scene();
        for name in [".new", ".keep"] {
            fs::write(installed.sibling(name), "half").unwrap();
        }
        installed.clear_leftovers();
        check(&installed, "old", None);
    }

    #[test]
    fn an_unused_copy_is_removed() {
        let (_dir, installed) = scene();
        drop(copy(&installed, "new"));
        check(&installed, "old", None);
    }

    #[test]
    fn a_different_program_is_not_restored() {
        let (_dir, installed) = scene();
        installed.replace(copy(&installed, "new")).unwrap();
        fs::remove_file(installed.previous()).unwrap();
        assert!(installed.restore().is_err());
        fs::write(installed.previous(), "odd").unwrap();
        assert!(installed.restore().is_err());
        check(&installed, "new", Some("odd"));
    }

    #[test]
    fn a_process_of_another_program_is_identified_by_its_path() {
        let (dir, installed) = scene();
        let other = installed.other_program_of(std::process::id());
        assert_eq!(other, Some(std::env::current_exe().unwrap()));

        let cat = fs::canonicalize("/bin/cat").unwrap();
        fs::copy(cat, installed.path()).unwrap();
        let mut child =
            Command::new(installed.path()).stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(installed.is_run_by(child.id()));
        assert_eq!(installed.other_program_of(child.id()), None);
        let newer = dir.path().join("newer");
        fs::write(&newer, "new").unwrap();
        fs::rename(newer, installed.path()).unwrap();
        assert!(!installed.is_run_by(child.id()));
        assert_eq!(
            installed.other_program_of(child.id()),
            None,
            "it runs what had the name before"
        );
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn the_deleted_suffix_is_removed_from_a_path() {
        let check = |link: &str, path: &str| {
            assert_eq!(without_deleted_suffix(link.into()), Path::new(path));
        };
        check("/some where/mainstay (deleted)", "/some where/mainstay");
        check("/some where/mainstay", "/some where/mainstay");
    }
}
