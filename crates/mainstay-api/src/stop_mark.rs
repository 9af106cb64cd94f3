//! The mark of `mainstay daemon stop` in the state directory.
//!
//! While it is there, only commands that ask for servers start a daemon. It counts until the machine is rebooted, and
//! every daemon that starts removes it. A signal leaves no mark: service managers and `kill` end a daemon that is
//! wanted.

use std::fs;
use std::io;

use crate::location::{read_file, replace_file};
use crate::{Instance, Machine};

const FILE: &str = "stopped.json";

impl Instance {
    /// Whether the user stopped the daemon, and nothing has started one since.
    pub fn is_stopped_by_user(&self) -> bool {
        let content = read_file(&self.state_dir, FILE).unwrap_or_default();
        serde_json::from_slice::<Machine>(&content)
            .is_ok_and(|stopped_on| stopped_on.is_same_boot(&Machine::current()))
    }

    /// Leaves the mark, unless there is no state directory.
    pub fn mark_stopped(&self) -> io::Result<()> {
        if !self.state_dir.exists() {
            return Ok(());
        }
        replace_file(&self.state_dir, FILE, &Machine::current())
    }

    /// Removes the mark.
    pub fn clear_stopped(&self) -> io::Result<()> {
        match fs::remove_file(self.state_dir.join(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_counts_until_it_is_cleared_or_the_machine_is_rebooted() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("state");
        let instance = Instance { run_dir: state_dir.join("run"), state_dir, config_file: None };
        instance.mark_stopped().unwrap();
        assert!(!instance.state_dir.exists(), "nothing is created for a stop of nothing");
        fs::create_dir(&instance.state_dir).unwrap();
        assert!(!instance.is_stopped_by_user());
        instance.mark_stopped().unwrap();
        assert!(instance.is_stopped_by_user());

        let rebooted = Machine { boot: "another".into(), ..Machine::current() };
        replace_file(&instance.state_dir, FILE, &rebooted).unwrap();
        assert!(!instance.is_stopped_by_user());

        instance.mark_stopped().unwrap();
        instance.clear_stopped().unwrap();
        instance.clear_stopped().unwrap();
        assert!(!instance.is_stopped_by_user());
    }
}
