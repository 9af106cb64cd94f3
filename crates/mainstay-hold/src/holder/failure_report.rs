//! The report of a holder whose daemons keep failing: why the last one ended.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The name of the file in the run directory.
pub const FILE: &str = "last-words";

/// Where it is written before it is renamed.
const UNFINISHED: &str = "last-words.new";

/// Replaces the file, readable by our user only. A reader sees the previous report or this one.
pub(super) fn write(run_dir: &Path, report: &str) -> io::Result<()> {
    let unfinished = run_dir.join(UNFINISHED);
    let _was_not_there = fs::remove_file(&unfinished);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    file.write_all(report.as_bytes())?;
    fs::rename(unfinished, run_dir.join(FILE))
}

/// Removes the file: a daemon serves again.
pub(super) fn remove(run_dir: &Path) {
    let _was_not_there = fs::remove_file(run_dir.join(FILE));
}
