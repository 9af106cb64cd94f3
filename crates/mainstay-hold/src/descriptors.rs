//! Letting go of what a process inherited.

use std::fs;
use std::io;

/// Closes every descriptor but the three standard ones. A program that stays must not keep open what
/// whoever started it forgot to close: a pipe somebody reads to its end, a lock, a deleted file.
///
/// To be called before anything else is opened; later it would close what is in use.
#[expect(unsafe_code, reason = "descriptors that nobody in this process owns have only numbers")]
pub fn close_inherited() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    // The listing's own is among the numbers and closed already; to close it again is a bug that
    // rustix does not forgive.
    open.retain(|descriptor| fs::symlink_metadata(format!("/proc/self/fd/{descriptor}")).is_ok());
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > 2) {
        // SAFETY: nothing in this process has opened a descriptor yet, so no value owns this one.
        unsafe { rustix::io::close(descriptor) };
    }
    Ok(())
}
