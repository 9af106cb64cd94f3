//! One update at a time: of an instance, and of a program that several instances may share.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::error::CliError;

/// Both locks, held until this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct UpdateLock {
    _instance: File,
    /// None where directories cannot be locked, as on some network file systems.
    _program: Option<File>,
}

impl UpdateLock {
    pub(super) fn take(state_dir: &Path, program_dir: &Path) -> Result<Self, CliError> {
        let busy = || {
            let help = "wait until it has finished, at most a minute";
            CliError::failed("another update is running", help)
        };
        let path = state_dir.join("update.lock");
        let failed = |error| {
            let message = format!("the lock `{}` cannot be taken: {error}", path.display());
            CliError::failed(message, "`mainstay doctor` checks the directories")
        };
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let instance = file.map_err(failed)?;
        match instance.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy()),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let program = match File::open(program_dir).map(|dir| (dir.try_lock(), dir)) {
            Ok((Ok(()), dir)) => Some(dir),
            Ok((Err(TryLockError::WouldBlock), _)) => return Err(busy()),
            Ok((Err(TryLockError::Error(_)), _)) | Err(_) => None,
        };
        Ok(Self { _instance: instance, _program: program })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_update_at_a_time() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bin = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let busy = |state: &Path, bin: &Path| {
            UpdateLock::take(state, bin).unwrap_err().to_string() == "another update is running"
        };
        let first = UpdateLock::take(one.path(), bin.path()).unwrap();
        assert!(busy(one.path(), elsewhere.path()), "of an instance");
        assert!(busy(other.path(), bin.path()), "of a program");
        drop(first);
        UpdateLock::take(other.path(), bin.path()).unwrap();
    }
}
