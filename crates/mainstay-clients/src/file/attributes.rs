//! What a file has beside its content: mode, owner, extended attributes (with access control lists).

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};

/// Gives a new file what the old one has. An owner that cannot be given is an error; an attribute that
/// the system keeps to itself is not, because it gives the new file its own.
pub(super) fn copy(old: &File, metadata: &Metadata, new: &File) -> io::Result<()> {
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
