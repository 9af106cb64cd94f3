//! Mainstay as a service of its user: systemd or launchd starts it, at login or at boot.
//!
//! Decided in pure code: what the unit says ([`systemd`], [`launchd`], from a [`Blueprint`]), whose an
//! installed unit is ([`Standing`]), and what an install or uninstall does ([`plan`]). Acting is left to
//! [`Files`] and [`Tools`], the only code here that touches the disk and runs programs.
//!
//! What a person decided stands: a masked service stays masked, one that was stopped or disabled stays
//! so, and an edited unit is not replaced unless that is asked for, and then it is kept beside the new
//! one.

mod blueprint;
mod error;
mod files;
mod launchd;
pub(crate) mod plan;
mod seal;
mod systemd;
mod tools;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

pub(crate) use self::blueprint::Blueprint;
pub(crate) use self::error::ServiceError;
pub(crate) use self::files::Files;
pub(crate) use self::launchd::Launchd;
pub(crate) use self::plan::{Refusal, Step};
pub(crate) use self::seal::Standing;
pub(crate) use self::systemd::Systemd;
pub(crate) use self::tools::{Programs, Tools};

/// A service manager, as far as Mainstay needs it.
pub(crate) trait Manager: std::fmt::Debug {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Where the unit is, or would be.
    fn path(&self) -> &Path;

    /// The unit as this version writes it.
    fn unit(&self) -> &str;

    /// What the manager knows about the service. Fails if there is no manager to ask.
    fn look(&self, tools: &dyn Tools) -> Result<Known, ServiceError>;

    /// The command that has the manager do its part of a step, if it has one.
    fn command(&self, step: Step) -> Option<Vec<String>>;

    /// What a person can do with the service by hand.
    fn manual(&self) -> Manual;
}

/// The commands that people are told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manual {
    /// Turns a service on that was stopped or disabled.
    pub(crate) turn_on: &'static str,
    /// Lets the manager start what it was forbidden to.
    pub(crate) unbar: &'static str,
    /// Changes a unit without editing it, where that is possible.
    pub(crate) change: Option<&'static str>,
    /// Makes a running service use its new unit.
    pub(crate) renew: &'static str,
    /// Has it started without anybody logging in, where that is possible.
    pub(crate) at_boot: Option<&'static str>,
    /// Shows why it does not run.
    pub(crate) log: &'static str,
}

/// What a service manager knows about the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Whether its user forbade that it is ever started: masked, or disabled for launchd.
    pub(crate) barred: bool,
    /// Whether it is started at login.
    pub(crate) enabled: bool,
    pub(crate) activity: Activity,
    /// When it became what it is, if it runs.
    pub(crate) since: Option<Timestamp>,
    pub(crate) pid: Option<u32>,
    /// How often the manager has started it again.
    pub(crate) restarts: Option<u32>,
    /// Whether the manager has yet to read the unit as it is on disk.
    pub(crate) stale: bool,
    /// Whether it runs without its user being logged in; none if nobody knows.
    pub(crate) lingers: Option<bool>,
}

/// Whether the service runs.
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

/// The service of one instance: what is on disk, and who starts it.
#[derive(Debug)]
pub(crate) struct Service {
    manager: Box<dyn Manager>,
    tools: Box<dyn Tools>,
}

impl Service {
    /// The service that this system's manager would run.
    pub(crate) fn of_this_system(
        blueprint: &Blueprint,
        var: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ServiceError> {
        let manager: Box<dyn Manager> = if cfg!(target_os = "macos") {
            Box::new(Launchd::new(blueprint, var)?)
        } else {
            Box::new(Systemd::new(blueprint, var)?)
        };
        Ok(Self { manager, tools: Box::new(Programs) })
    }

    pub(crate) fn manager(&self) -> &dyn Manager {
        &*self.manager
    }

    /// How the installed unit compares with ours.
    pub(crate) fn standing(&self) -> Result<Standing, ServiceError> {
        Ok(Standing::of(self.files().read()?.as_deref(), self.manager.unit()))
    }

    /// What the manager knows.
    pub(crate) fn look(&self) -> Result<Known, ServiceError> {
        self.manager.look(&*self.tools)
    }

    /// Does what the disk and the manager have to do for a step.
    pub(crate) fn carry_out(&self, step: Step) -> Result<(), ServiceError> {
        match step {
            Step::Keep => self.files().keep(),
            Step::Write => self.files().write(self.manager.unit()),
            Step::Remove => self.files().remove(),
            Step::Reload
            | Step::Enable
            | Step::Disable
            | Step::MakeWay
            | Step::Start
            | Step::Stop
            | Step::Adopt => self.manager.command(step).map_or(Ok(()), |words| self.order(&words)),
        }
    }

    /// Takes back a first install that did not get as far as a start, so that the next one is a first
    /// install again. What cannot be taken back was not done.
    pub(crate) fn take_back(&self) {
        for step in [Step::Disable, Step::Remove, Step::Reload] {
            let _not_done = self.carry_out(step);
        }
    }

    /// Where a unit is kept that was put aside.
    pub(crate) fn aside(&self) -> PathBuf {
        self.files().aside()
    }

    /// The error that says why nothing is done.
    pub(crate) fn refused(&self, refusal: Refusal) -> ServiceError {
        let Manual { unbar, change, .. } = self.manager.manual();
        let force = format!("`--force` replaces it and keeps it as `{}`", self.aside().display());
        let help = match (refusal, change) {
            (Refusal::Barred, _) => format!("`{unbar}` allows it again"),
            (Refusal::Edited, Some(change)) => {
                format!("make your changes with `{change}`; {force}")
            }
            (Refusal::Edited, None) => force,
            (Refusal::OtherInstance, _) => {
                "MAINSTAY_HOME says which instance is meant; one service serves one of them; with \
                 `--force`, `install` makes it this one"
                    .to_owned()
            }
        };
        ServiceError::Refused { refusal, help }
    }

    fn files(&self) -> Files<'_> {
        Files::new(self.manager.path())
    }

    fn order(&self, words: &[String]) -> Result<(), ServiceError> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let failed = |said| ServiceError::Tool {
            command: words.join(" "),
            said,
            log: self.manager.manual().log,
        };
        match self.tools.run(&words) {
            Ok(answer) if answer.ok => Ok(()),
            Ok(answer) => Err(failed(answer.complaint())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::tools::recorded::Recorded;
    use super::*;

    fn service(
        home: &Path,
        answers: &[(&'static str, bool, &str)],
    ) -> (Service, &'static Recorded) {
        let var = |name: &str| (name == "HOME").then(|| home.as_os_str().to_owned());
        let blueprint = Blueprint::new(Path::new("/bin/mainstay"), home, var).unwrap();
        let manager = Box::new(Systemd::new(&blueprint, var).unwrap());
        let tools: &'static Recorded = Box::leak(Box::new(Recorded::new(answers)));
        (Service { manager, tools: Box::new(tools) }, tools)
    }

    fn play(service: &Service, steps: &[Step]) -> Result<(), ServiceError> {
        steps.iter().try_for_each(|step| service.carry_out(*step))
    }

    #[test]
    fn an_install_and_an_uninstall_are_these_commands() {
        let home = tempfile::tempdir().unwrap();
        let (service, tools) = service(home.path(), &[]);
        let known = service.look().unwrap();
        let standing = service.standing().unwrap();
        play(&service, &plan::install(standing, &known, false).unwrap()).unwrap();
        assert_eq!(service.standing().unwrap(), Standing::Current);
        let active = Known { activity: Activity::Active, ..Known::default() };
        play(&service, &plan::uninstall(Standing::Current, &active).unwrap()).unwrap();
        assert_eq!(service.standing().unwrap(), Standing::Absent);
        let asked = tools.asked.borrow();
        let changes: Vec<&str> = asked.iter().skip(2).map(String::as_str).collect();
        let expected = [
            "systemctl --user daemon-reload",
            "systemctl --user enable --quiet mainstay.service",
            "systemctl --user start mainstay.service",
            "systemctl --user stop mainstay.service",
            "systemctl --user disable --quiet mainstay.service",
            "systemctl --user daemon-reload",
        ];
        assert_eq!(changes, expected);
    }

    #[test]
    fn a_first_install_that_fails_is_taken_back() {
        let home = tempfile::tempdir().unwrap();
        let refused = ("systemctl --user enable", false, "Failed to enable unit: no\n");
        let (service, _) = service(home.path(), &[refused]);
        let error = play(&service, &[Step::Write, Step::Reload, Step::Enable]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`systemctl --user enable --quiet mainstay.service` failed: Failed to enable unit: no"
        );
        service.take_back();
        assert_eq!(service.standing().unwrap(), Standing::Absent);
    }
}
