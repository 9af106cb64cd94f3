//! The mark of `mainstay daemon stop` in the state directory.
//!
//! While it exists, only commands that need servers start a daemon. It is valid until the machine is rebooted, and every
//! daemon that starts removes it. A signal leaves no mark: service managers and `kill` restart the daemon.

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

    /// Writes the mark, if there is a state directory.
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
    fn a_stop_is_valid_until_it_is_cleared_or_the_machine_is_rebooted() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("state");
        let instance = Instance { run_dir: state_dir.join("run"), state_dir, config_file: None };
        instance.mark_stopped().unwrap();
        assert!(!instance.state_dir.exists(), "no directory is created");
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
