//! The report of a holder whose daemons keep failing: why the last one ended.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The name of the file in the run directory.
pub const FILE: &str = "last-words";

/// Writes the file anew, for our user only.
pub(super) fn leave(run_dir: &Path, words: &str) -> io::Result<()> {
    forget(run_dir);
    let path = run_dir.join(FILE);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(words.as_bytes())
}

/// Removes the file: a daemon serves again.
pub(super) fn forget(run_dir: &Path) {
    let _was_not_there = fs::remove_file(run_dir.join(FILE));
}
