//! Replaces the content of a file.
//!
//! By rename where possible, so that no reader sees half a file. In place otherwise: for hard links, a mount of its
//! own, a directory without write permission, or an owner that we may not set.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::snapshot::Snapshot;
use super::temporary::Temporary;
use super::{FileError, OpenFile, Step, in_place, state_file};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The file has the new content.
    Done,
    /// Another program wrote meanwhile. Nothing was changed.
    Changed,
}

/// Replaces or removes a file, unless it has changed since it was read.
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

/// Writes and flushes the temporary file.
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

/// Whether the file can only be written in place, if at all.
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

/// Whether a rename failed because another program was faster: it created the file, or, on another machine that shares
/// the directory, removed our temporary file as abandoned.
fn is_interference(error: &FileError) -> bool {
    let FileError::Write { source, .. } = error else { return false };
    matches!(source.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound)
}

pub(super) fn open_for_overwrite(path: &Path) -> Result<File, FileError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            FileError::ReadOnly(path.to_owned())
        }
        _ => FileError::Write { path: path.to_owned(), step: Step::Overwrite, source: error },
    })
}

/// Copies owner, mode and extended attributes. Failing to set the owner is an error. Attributes that only the system
/// can set are skipped: it sets its own on the new file.
fn copy_attributes(old: &File, metadata: &Metadata, new: &File) -> io::Result<()> {
    let present = new.metadata()?;
    if (present.uid(), present.gid()) != (metadata.uid(), metadata.gid()) {
        fchown(new, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    // After the owner, because a change of owner clears bits.
    new.set_permissions(Permissions::from_mode(metadata.mode() & 0o7777))?;
    copy_extended(old, new);
    Ok(())
}

fn copy_extended(old: &File, new: &File) {
    // An inherited one could admit users whom the old file excluded.
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
