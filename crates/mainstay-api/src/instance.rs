//! The directories of one instance of Mainstay.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name of the config file.
const CONFIG: &str = "config.toml";

/// The directories of one instance. Paths only: nothing here touches the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Files that survive a reboot: databases, logs.
    pub state_dir: PathBuf,
    /// Files that need not survive a reboot: sockets and the directories of runs.
    pub run_dir: PathBuf,
    /// The configuration file, which may not exist. `None` without a home directory.
    pub config_file: Option<PathBuf>,
}

/// Why no directories can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// Neither variable is set.
    #[error("neither MAINSTAY_HOME nor HOME is set, so there is no place to keep state")]
    NoHome,
    /// A relative path depends on the working directory.
    #[error("MAINSTAY_HOME is `{}`, which is not an absolute path", .0.display())]
    Relative(PathBuf),
}

impl Instance {
    /// The socket's file name in [`Instance::run_dir`].
    pub const SOCKET: &'static str = "daemon.sock";

    /// Chooses the directories from the environment: `$MAINSTAY_HOME`, or the XDG ones. The run directory is below the
    /// state directory: `XDG_RUNTIME_DIR` is missing in the environment that many clients pass, and it is removed when
    /// its user logs out.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, InstanceError> {
        let path = |name| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(home) = path("MAINSTAY_HOME") {
            if !home.is_absolute() {
                return Err(InstanceError::Relative(home));
            }
            return Ok(Self {
                state_dir: home.join("state"),
                run_dir: home.join("run"),
                config_file: Some(home.join(CONFIG)),
            });
        }
        let absolute = |name| path(name).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let config = absolute("XDG_CONFIG_HOME")
            .or_else(|| home.as_ref().map(|home| home.join(".config")))
            .map(|config| config.join("mainstay").join(CONFIG));
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| home.map(|home| home.join(".local/state")))
            .ok_or(InstanceError::NoHome)?
            .join("mainstay");
        Ok(Self { run_dir: state.join("run"), state_dir: state, config_file: config })
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

    /// The directory of records of sessions with running servers.
    pub fn sessions_dir(&self) -> PathBuf {
        self.run_dir.join("sessions")
    }

    /// The directories that must exist before a daemon starts.
    pub fn directories(&self) -> [&Path; 2] {
        [&self.state_dir, &self.run_dir]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(env: &[(&str, &str)]) -> Result<Instance, InstanceError> {
        let get =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Instance::from_env(get)
    }

    fn check(env: &[(&str, &str)], state: &str, run: &str, config: Option<&str>) {
        let expected = Instance {
            state_dir: state.into(),
            run_dir: run.into(),
            config_file: config.map(PathBuf::from),
        };
        assert_eq!(from(env), Ok(expected));
    }

    #[test]
    fn directories_come_from_the_environment() {
        check(
            &[("MAINSTAY_HOME", "/m"), ("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")],
            "/m/state",
            "/m/run",
            Some("/m/config.toml"),
        );
        let (state, run) = ("/h/.local/state/mainstay", "/h/.local/state/mainstay/run");
        let config = Some("/h/.config/mainstay/config.toml");
        check(&[("HOME", "/h")], state, run, config);
        check(&[("HOME", "/h"), ("XDG_STATE_HOME", "rel")], state, run, config);
        let xdg = [("XDG_STATE_HOME", "/s"), ("XDG_RUNTIME_DIR", "/r")];
        check(&xdg, "/s/mainstay", "/s/mainstay/run", None);
        let all = [xdg[0], xdg[1], ("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")];
        check(&all, "/s/mainstay", "/s/mainstay/run", Some("/c/mainstay/config.toml"));
    }

    #[test]
    fn a_missing_or_relative_home_is_refused() {
        assert_eq!(from(&[]), Err(InstanceError::NoHome));
        let relative = Err(InstanceError::Relative("m".into()));
        assert_eq!(from(&[("MAINSTAY_HOME", "m")]), relative);
    }
}
