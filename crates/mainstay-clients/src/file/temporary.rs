//! Temporary files beside a client's file: `.NAME.mainstay-PID-RANDOM.tmp`.
//!
//! A writer removes those that killed writers left. Other Mainstays of the same user may be writing the same file, so a
//! recent one of a living process stays.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::clock;

/// A writer needs one for milliseconds. An older one is removed even if its process is alive, because the pid may have
/// been reused.
const ABANDONED: SignedDuration = SignedDuration::from_mins(1);

const END: &str = ".tmp";

/// A temporary file, removed on drop.
pub(super) struct Temporary {
    pub(super) path: PathBuf,
}

impl Temporary {
    /// A new name beside this file.
    pub(super) fn beside(target: &Path) -> Self {
        let (process, random) = (std::process::id(), clock::random());
        let name = format!("{}{process}-{random:016x}{END}", prefix(target));
        Self { path: target.with_file_name(name) }
    }

    /// Keeps the file, which has been renamed.
    pub(super) fn persist(self) {
        std::mem::forget(self);
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It may not exist. If it cannot be removed, the next writer tries again.
        fs::remove_file(&self.path).ok();
    }
}

/// Removes temporary files of dead writers.
pub(super) fn sweep(target: &Path) {
    let (Some(dir), prefix, now) = (target.parent(), prefix(target), clock::now()) else { return };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let Some(made) = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(END)) else {
            continue;
        };
        if is_abandoned(maker(made), age(&entry, now), is_alive) {
            // The next writer tries again.
            fs::remove_file(entry.path()).ok();
        }
    }
}

fn prefix(target: &Path) -> String {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.mainstay-")
}

/// The pid in the name of a temporary file.
fn maker(made: &str) -> Option<Pid> {
    let (process, _) = made.split_once('-')?;
    Pid::from_raw(process.parse().ok()?)
}

fn age(entry: &DirEntry, now: Timestamp) -> Option<SignedDuration> {
    let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok()?;
    Some(now.duration_since(Timestamp::try_from(modified).ok()?))
}

/// Whether a temporary file is no longer needed, by its creator and its age.
fn is_abandoned(
    maker: Option<Pid>,
    age: Option<SignedDuration>,
    is_alive: impl Fn(Pid) -> bool,
) -> bool {
    age.is_some_and(|age| age >= ABANDONED) || maker.is_some_and(|maker| !is_alive(maker))
}

fn is_alive(process: Pid) -> bool {
    test_kill_process(process) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_are_abandoned_by_age_or_dead_creator() {
        let pid = maker("77-0123456789abcdef");
        assert_eq!(pid, Pid::from_raw(77));
        let check = |maker, age: Option<i64>, alive: bool| {
            is_abandoned(maker, age.map(SignedDuration::from_secs), |_| alive)
        };
        assert!(check(pid, Some(0), false));
        assert!(!check(pid, Some(59), true));
        assert!(check(pid, Some(60), true));
        // The clock was set back, or the file has just gone.
        assert!(!check(pid, Some(-100), true));
        assert!(!check(pid, None, true));
        let nobody = maker("0123456789abcdef");
        assert!(!check(nobody, Some(0), false));
        assert!(check(nobody, Some(60), false));
    }

    #[test]
    fn a_living_process_is_recognized() {
        let me = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        assert!(is_alive(me));
    }
}
