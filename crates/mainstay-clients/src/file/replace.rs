//! Puts a new text in a file's place.
//!
//! By rename wherever that is possible, because then nobody ever sees half a file. In place where it is
//! not: a file with other names (hard links), a mount of its own, a directory we may not write, an owner
//! we may not give.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::snapshot::Snapshot;
use super::temporary::Temporary;
use super::{FileError, OpenFile, Step, in_place, state_file};

/// How replacing a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The file is as it shall be.
    Done,
    /// Somebody else wrote meanwhile. Nothing was changed.
    Changed,
}

/// Puts a text in the place of what was read, or removes the file, unless it is another one by now.
pub(super) fn replace(
    file: &OpenFile,
    old: Option<&Snapshot>,
    new: Option<&str>,
) -> Result<Outcome, FileError> {
    match (old, new) {
        (None, None) => Ok(Outcome::Done),
        (Some(old), None) => remove(file, old),
        (Some(old), Some(new)) if old.metadata.nlink() > 1 => in_place::write(file, old, new),
        (old, Some(new)) => match (by_rename(file, old, new), old) {
            (Err(error), Some(old)) if forbids_rename(&error) => in_place::write(file, old, new),
            (result, _) => result,
        },
    }
}

fn by_rename(file: &OpenFile, old: Option<&Snapshot>, new: &str) -> Result<Outcome, FileError> {
    let temporary = Temporary::beside(&file.target);
    prepare(file, &temporary.path, old, new)?;
    if file.has_changed(old)? {
        return Ok(Outcome::Changed);
    }
    let moved = file.writer.perform(Step::Rename, &file.target, || match old {
        Some(_) => fs::rename(&temporary.path, &file.target),
        None => state_file::rename_no_replace(&temporary.path, &file.target),
    });
    match moved {
        Ok(()) => temporary.persist(),
        Err(error) if is_interference(&error) => return Ok(Outcome::Changed),
        Err(error) => return Err(error),
    }
    sync_directory(file)?;
    Ok(Outcome::Done)
}

/// Writes the temporary file and brings it to disk.
fn prepare(
    file: &OpenFile,
    path: &Path,
    old: Option<&Snapshot>,
    new: &str,
) -> Result<(), FileError> {
    let (writer, target) = (&file.writer, &file.target);
    let mut temporary = writer.perform(Step::Create, target, || {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    })?;
    writer.perform(Step::Fill, target, || temporary.write_all(new.as_bytes()))?;
    if let Some(old) = old {
        let copy = || copy_attributes(&old.file, &old.metadata, &temporary);
        writer.perform(Step::CopyAttributes, target, copy)?;
    }
    writer.perform(Step::Sync, target, || temporary.sync_all())
}

fn remove(file: &OpenFile, old: &Snapshot) -> Result<Outcome, FileError> {
    if file.has_changed(Some(old))? {
        return Ok(Outcome::Changed);
    }
    file.writer.perform(Step::Remove, &file.target, || fs::remove_file(&file.target))?;
    sync_directory(file)?;
    Ok(Outcome::Done)
}

fn sync_directory(file: &OpenFile) -> Result<(), FileError> {
    file.writer.perform(Step::SyncDirectory, &file.target, || state_file::sync_parent(&file.target))
}

/// Whether this error means that the file can be written, if at all, only in place.
fn forbids_rename(error: &FileError) -> bool {
    let FileError::Write { step, source, .. } = error else { return false };
    let errno = source.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        (step, errno),
        (Step::Create, Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
            | (Step::CopyAttributes, Some(Errno::PERM))
            | (Step::Rename, Some(Errno::BUSY | Errno::XDEV | Errno::ACCESS | Errno::PERM))
    )
}

/// Whether a move failed because somebody else was there first: with the file itself, or, as another
/// machine does that shares the directory, with a sweep that took ours for a dead writer's.
fn is_interference(error: &FileError) -> bool {
    let FileError::Write { source, .. } = error else { return false };
    matches!(source.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound)
}

/// Opens a file for writing in place.
pub(super) fn open_for_overwrite(path: &Path) -> Result<File, FileError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            FileError::ReadOnly(path.to_owned())
        }
        _ => FileError::Write { path: path.to_owned(), step: Step::Overwrite, source: error },
    })
}

/// Gives a new file what the old one has. An owner that cannot be given is an error; an attribute that
/// the system keeps to itself is not, because it gives the new file its own.
fn copy_attributes(old: &File, metadata: &Metadata, new: &File) -> io::Result<()> {
    let present = new.metadata()?;
    if (present.uid(), present.gid()) != (metadata.uid(), metadata.gid()) {
        fchown(new, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    // After the owner, because a change of owner takes bits away.
    new.set_permissions(Permissions::from_mode(metadata.mode() & 0o7777))?;
    copy_extended(old, new);
    Ok(())
}

fn copy_extended(old: &File, new: &File) {
    // One that the new file has from its directory would let others in whom the old one kept out.
    fremovexattr(new, "system.posix_acl_access").ok();
    let mut names = Vec::with_capacity(64 * 1024);
    if flistxattr(old, rustix::buffer::spare_capacity(&mut names)).is_err() {
        return;
    }
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(64 * 1024);
        if fgetxattr(old, name, rustix::buffer::spare_capacity(&mut value)).is_ok() {
            fsetxattr(new, name, &value, XattrFlags::empty()).ok();
        }
    }
}
