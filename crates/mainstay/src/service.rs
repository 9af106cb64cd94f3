//! Mainstay as a systemd user service, which is started at login or at boot.
//!
//! Pure code decides what the unit contains ([`mod@unit`]) and what an install or uninstall does ([`plan`]). [`Service`] is
//! the only code here that touches the disk and runs programs.
//!
//! Decisions of the user are kept: a masked service stays masked, a stopped or disabled one stays so, and an edited
//! unit is replaced only on request and then kept beside the new one.

pub(crate) mod plan;
mod unit;

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind::NotFound, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Serialize;

use self::plan::{Refusal, Step};
pub(crate) use self::unit::UnitState;
use crate::error::CliError;

const UNIT: &str = "mainstay.service";

const PROPERTIES: &str = "--property=LoadState,ActiveState,UnitFileState,MainPID,NRestarts,\
                          ActiveEnterTimestamp,NeedDaemonReload";

/// Commands in messages.
pub(crate) const ENABLE: &str = "systemctl --user enable --now mainstay";
pub(crate) const RESTART: &str = "systemctl --user restart mainstay";
pub(crate) const START_AT_BOOT: &str = "loginctl enable-linger";

const WITHOUT_SYSTEMD: &str = "add the line `@reboot mainstay daemon start` to your crontab (`crontab -e`), with the \
                               full path of `mainstay`, or `mainstay daemon start >/dev/null 2>&1` to ~/.profile";

/// What systemd knows about the service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ServiceState {
    /// The user forbade that it is started.
    pub(crate) masked: bool,
    /// Whether it is started at login.
    pub(crate) enabled: bool,
    #[serde(rename = "state")]
    pub(crate) activity: Activity,
    /// Since when it is active.
    pub(crate) since: Option<Timestamp>,
    pub(crate) pid: Option<u32>,
    /// How often systemd has restarted it.
    pub(crate) restarts: Option<u32>,
    /// The unit on disk is newer than the one that systemd has read.
    #[serde(skip)]
    pub(crate) stale: bool,
    /// Whether it runs without a login, if that is known.
    #[serde(rename = "linger")]
    pub(crate) lingers: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Activity {
    #[default]
    Inactive,
    Starting,
    Active,
    Stopping,
    Failed,
}

/// Runs a program to its end. The first argument is its name.
type RunProgram = Box<dyn Fn(&[&str]) -> io::Result<Output>>;

/// The service of one instance.
pub(crate) struct Service {
    path: PathBuf,
    unit: String,
    run: RunProgram,
}

impl Service {
    pub(crate) fn new(
        program: &Path,
        state_dir: &Path,
        var: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, CliError> {
        let dir = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = dir("XDG_CONFIG_HOME").or_else(|| Some(dir("HOME")?.join(".config")));
        let no_home = || {
            let message = "HOME is not an absolute path, so there is no directory for the unit";
            CliError::failed(message, "set HOME")
        };
        let path = config.ok_or_else(no_home)?.join("systemd/user").join(UNIT);
        Ok(Self { path, unit: unit::unit(program, state_dir, var)?, run: Box::new(run_program) })
    }

    /// Where the unit is, or would be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The unit as this version writes it.
    pub(crate) fn unit(&self) -> &str {
        &self.unit
    }

    /// Where an edited unit is kept. systemd does not read a file of that name.
    pub(crate) fn old_unit(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".old");
        name.into()
    }

    pub(crate) fn unit_state(&self) -> Result<UnitState, CliError> {
        let installed = match fs::read(&self.path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            // A dangling link was made by the user.
            Err(error) if error.kind() == NotFound => {
                fs::symlink_metadata(&self.path).is_ok().then(String::new)
            }
            Err(source) => return Err(self.file_error("read", source)),
        };
        Ok(UnitState::compare(installed.as_deref(), &self.unit))
    }

    /// Asks systemd. Fails if there is none.
    pub(crate) fn state(&self) -> Result<ServiceState, CliError> {
        let output = (self.run)(&["systemctl", "--user", "show", PROPERTIES, UNIT])
            .map_err(|error| no_systemd(&format!("`systemctl`: {error}")))?;
        if !output.status.success() {
            return Err(no_systemd(&failure(&output)));
        }
        let properties = String::from_utf8_lossy(&output.stdout);
        Ok(ServiceState { lingers: self.lingers(), ..service_state(&properties) })
    }

    fn lingers(&self) -> Option<bool> {
        let uid = rustix::process::getuid().as_raw().to_string();
        let output = (self.run)(&["loginctl", "show-user", &uid, "--property=Linger"]).ok()?;
        match String::from_utf8_lossy(&output.stdout).trim() {
            "Linger=yes" => Some(true),
            "Linger=no" => Some(false),
            _ => None,
        }
    }

    /// Executes the part of a step that belongs to the disk and to systemd.
    pub(crate) fn execute(&self, step: Step) -> Result<(), CliError> {
        match step {
            Step::KeepOld => fs::rename(&self.path, self.old_unit())
                .map_err(|source| self.file_error("renamed", source)),
            Step::Write => self.write().map_err(|source| self.file_error("written", source)),
            Step::Remove => match fs::remove_file(&self.path) {
                Err(error) if error.kind() != NotFound => Err(self.file_error("removed", error)),
                Ok(()) | Err(_) => Ok(()),
            },
            Step::Reload => self.systemctl(&["daemon-reload"]),
            Step::Enable => self.systemctl(&["enable", "--quiet", UNIT]),
            Step::Disable => self.systemctl(&["disable", "--quiet", UNIT]),
            Step::Start => self.systemctl(&["start", UNIT]),
            Step::Stop => self.systemctl(&["stop", UNIT]),
            Step::StopDaemon | Step::StartDaemon => Ok(()),
        }
    }

    /// Undoes a first install that failed before the start, so that the next one is a first install again.
    pub(crate) fn roll_back(&self) {
        for step in [Step::Disable, Step::Remove, Step::Reload] {
            let _was_not_done = self.execute(step);
        }
    }

    pub(crate) fn refused(&self, refusal: Refusal) -> CliError {
        let help = match refusal {
            Refusal::Masked => "`systemctl --user unmask mainstay` unmasks it".to_owned(),
            Refusal::Edited => format!(
                "move your changes to a drop-in (`systemctl --user edit mainstay`); `--force` replaces the \
                 unit and keeps it as `{}`",
                self.old_unit().display()
            ),
            Refusal::OtherInstance => {
                "there is one service per user, for one MAINSTAY_HOME; `install --force` switches it to \
                 this instance"
                    .to_owned()
            }
        };
        CliError::failed(refusal.to_string(), help)
    }

    /// Replaces the unit atomically.
    fn write(&self) -> io::Result<()> {
        let dir = self.path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let mut new = tempfile::Builder::new().prefix(".mainstay").tempfile_in(dir)?;
        new.write_all(self.unit.as_bytes())?;
        new.as_file().set_permissions(Permissions::from_mode(0o644))?;
        new.as_file().sync_all()?;
        new.persist(&self.path)?;
        File::open(dir)?.sync_all()
    }

    fn systemctl(&self, args: &[&str]) -> Result<(), CliError> {
        let command = [&["systemctl", "--user"], args].concat();
        let failed = |output: String| {
            let message = format!("`{}` failed: {output}", command.join(" "));
            CliError::failed(message, "see `journalctl --user --unit mainstay --lines 20`")
        };
        match (self.run)(&command) {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(failed(failure(&output))),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn file_error(&self, action: &str, source: io::Error) -> CliError {
        CliError::io(format!("`{}` cannot be {action}", self.path.display()))(source)
    }
}

fn no_systemd(why: &str) -> CliError {
    CliError::failed(
        format!("the systemd of your login session cannot be reached: {why}"),
        format!(
            "the service needs systemd and a login session: log in directly, not with `su` or `sudo`; \
             without systemd, {WITHOUT_SYSTEMD}"
        ),
    )
}

fn run_program(command: &[&str]) -> io::Result<Output> {
    let [program, args @ ..] = command else { return Err(io::ErrorKind::InvalidInput.into()) };
    // The output is parsed, so language and time zone are fixed.
    let env = [("LC_ALL", "C"), ("TZ", "UTC"), ("SYSTEMD_COLORS", "0"), ("SYSTEMD_PAGER", "")];
    Command::new(program).args(args).envs(env).stdin(Stdio::null()).output()
}

/// Why a program failed, in one line.
fn failure(output: &Output) -> String {
    let texts = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes));
    let text = texts.iter().map(|text| text.trim()).find(|text| !text.is_empty());
    text.unwrap_or("no output").lines().collect::<Vec<_>>().join("; ")
}

/// Parses the output of `systemctl show`.
fn service_state(properties: &str) -> ServiceState {
    let get = |name: &str| {
        let line = properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default()
    };
    let activity = match get("ActiveState") {
        "active" | "reloading" | "refreshing" => Activity::Active,
        "activating" => Activity::Starting,
        "deactivating" => Activity::Stopping,
        "failed" => Activity::Failed,
        _ => Activity::Inactive,
    };
    ServiceState {
        masked: get("LoadState") == "masked" || get("UnitFileState").starts_with("masked"),
        enabled: get("UnitFileState").starts_with("enabled"),
        activity,
        since: timestamp(get("ActiveEnterTimestamp")).filter(|_| activity == Activity::Active),
        pid: get("MainPID").parse().ok().filter(|pid| *pid > 0),
        restarts: get("NRestarts").parse().ok(),
        stale: get("NeedDaemonReload") == "yes",
        lingers: None,
    }
}

/// Reads "Mon 2026-11-16 09:18:23 UTC", the format of every version of systemd.
fn timestamp(text: &str) -> Option<Timestamp> {
    let (_weekday, rest) = text.split_once(' ')?;
    let at = DateTime::strptime("%Y-%m-%d %H:%M:%S", rest.strip_suffix(" UTC")?).ok()?;
    at.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp())
}

#[cfg(test)]
mod tests;
