//! One update at a time: of an instance, and of a program that several instances may share.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::error::UpdateError;

/// Both locks, held as long as this lives; the system lets go of them with a process that dies.
#[derive(Debug)]
pub(super) struct Locked {
    _instance: File,
    /// None where directories cannot be locked, as on some network file systems.
    _program: Option<File>,
}

impl Locked {
    /// Takes both locks, or none.
    pub(super) fn take(state_dir: &Path, program_dir: &Path) -> Result<Self, UpdateError> {
        let path = state_dir.join("update.lock");
        let failed = |source| UpdateError::Lock { path: path.clone(), source };
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let instance = file.map_err(failed)?;
        match instance.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(UpdateError::Busy),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let program = match File::open(program_dir).map(|dir| (dir.try_lock(), dir)) {
            Ok((Ok(()), dir)) => Some(dir),
            Ok((Err(TryLockError::WouldBlock), _)) => return Err(UpdateError::Busy),
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
            matches!(Locked::take(state, bin).unwrap_err(), UpdateError::Busy)
        };
        let first = Locked::take(one.path(), bin.path()).unwrap();
        assert!(busy(one.path(), elsewhere.path()), "of an instance");
        assert!(busy(other.path(), bin.path()), "of a program");
        drop(first);
        Locked::take(other.path(), bin.path()).unwrap();
    }
}
