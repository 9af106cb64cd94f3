//! Where one instance of Mainstay keeps its things.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The directories of one instance. Paths only: nothing here touches the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// What must survive a reboot: database, logs.
    pub state_dir: PathBuf,
    /// What need not: sockets and the directories of runs.
    pub run_dir: PathBuf,
}

/// Why no directories could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// Neither variable is set.
    #[error("neither MAINSTAY_HOME nor HOME is set, so there is no place to keep state")]
    NoHome,
    /// A relative path would mean another place in every directory.
    #[error("MAINSTAY_HOME is `{}`, which is not an absolute path", .0.display())]
    Relative(PathBuf),
}

impl Instance {
    /// The socket's file name in [`Instance::run_dir`].
    pub const SOCKET: &'static str = "daemon.sock";

    /// Chooses the directories from the environment: `$MAINSTAY_HOME`, or the XDG ones.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, InstanceError> {
        let path = |name| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(home) = path("MAINSTAY_HOME") {
            if !home.is_absolute() {
                return Err(InstanceError::Relative(home));
            }
            return Ok(Self { state_dir: home.join("state"), run_dir: home.join("run") });
        }
        let absolute = |name| path(name).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| home.map(|home| home.join(".local/state")))
            .ok_or(InstanceError::NoHome)?
            .join("mainstay");
        let run_dir = match absolute("XDG_RUNTIME_DIR") {
            Some(dir) => dir.join("mainstay"),
            None => state.join("run"),
        };
        Ok(Self { state_dir: state, run_dir })
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(Self::SOCKET)
    }

    /// The daemon's own log.
    pub fn daemon_log(&self) -> PathBuf {
        self.state_dir.join("daemon.log")
    }

    /// The log of a server.
    pub fn server_log(&self, name: &str) -> PathBuf {
        self.logs_dir().join(format!("{name}.log"))
    }

    /// The directory of the servers' logs.
    pub fn logs_dir(&self) -> PathBuf {
        self.state_dir.join("logs")
    }

    /// The directory of the process engine's runs.
    pub fn runs_dir(&self) -> PathBuf {
        self.run_dir.join("runs")
    }

    /// The directory in which the sessions with running servers are remembered.
    pub fn sessions_dir(&self) -> PathBuf {
        self.run_dir.join("sessions")
    }

    /// All directories that must exist before a daemon can work.
    pub fn directories(&self) -> [&Path; 2] {
        [&self.state_dir, &self.run_dir]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(env: &[(&str, &str)], expected: Result<(&str, &str), InstanceError>) {
        let get =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let expected =
            expected.map(|(state, run)| Instance { state_dir: state.into(), run_dir: run.into() });
        assert_eq!(Instance::from_env(get), expected);
    }

    #[test]
    fn directories_come_from_the_environment() {
        check(&[("MAINSTAY_HOME", "/m"), ("HOME", "/h")], Ok(("/m/state", "/m/run")));
        check(&[("HOME", "/h")], Ok(("/h/.local/state/mainstay", "/h/.local/state/mainstay/run")));
        check(
            &[("HOME", "/h"), ("XDG_STATE_HOME", "/s"), ("XDG_RUNTIME_DIR", "/r")],
            Ok(("/s/mainstay", "/r/mainstay")),
        );
        check(
            &[("HOME", "/h"), ("XDG_STATE_HOME", "rel")],
            Ok(("/h/.local/state/mainstay", "/h/.local/state/mainstay/run")),
        );
    }

    #[test]
    fn what_cannot_be_a_home_is_refused() {
        check(&[], Err(InstanceError::NoHome));
        check(&[("MAINSTAY_HOME", "m")], Err(InstanceError::Relative("m".into())));
    }
}
