//! Mainstay as a service of its user: systemd starts it, at login or at boot.
//!
//! Decided in pure code: what the unit says ([`systemd`], from a [`Blueprint`]), whose an installed unit is
//! ([`Standing`]), and what an install or uninstall does ([`plan`]). Acting is left to [`Files`] and [`Tools`],
//! the only code here that touches the disk and runs programs.
//!
//! What a person decided stands: a masked service stays masked, one that was stopped or disabled stays
//! so, and an edited unit is not replaced unless that is asked for, and then it is kept beside the new
//! one.

mod blueprint;
mod error;
mod files;
pub(crate) mod plan;
mod seal;
pub(crate) mod systemd;
mod tools;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

pub(crate) use self::blueprint::Blueprint;
pub(crate) use self::error::ServiceError;
pub(crate) use self::files::Files;
pub(crate) use self::plan::{Refusal, Step};
pub(crate) use self::seal::Standing;
pub(crate) use self::systemd::Systemd;
pub(crate) use self::tools::{Programs, Tools};

/// What systemd knows about the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Whether its user forbade that it is ever started.
    pub(crate) barred: bool,
    /// Whether it is started at login.
    pub(crate) enabled: bool,
    pub(crate) activity: Activity,
    /// When it became what it is, if it runs.
    pub(crate) since: Option<Timestamp>,
    pub(crate) pid: Option<u32>,
    /// How often systemd has started it again.
    pub(crate) restarts: Option<u32>,
    /// Whether systemd has yet to read the unit as it is on disk.
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
    systemd: Systemd,
    tools: Box<dyn Tools>,
}

impl Service {
    pub(crate) fn new(
        blueprint: &Blueprint,
        var: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ServiceError> {
        if cfg!(target_os = "macos") {
            return Err(ServiceError::Unsupported);
        }
        Ok(Self { systemd: Systemd::new(blueprint, var)?, tools: Box::new(Programs) })
    }

    /// Where the unit is, or would be.
    pub(crate) fn path(&self) -> &Path {
        &self.systemd.path
    }

    /// The unit as this version writes it.
    pub(crate) fn unit(&self) -> &str {
        &self.systemd.unit
    }

    /// How the installed unit compares with ours.
    pub(crate) fn standing(&self) -> Result<Standing, ServiceError> {
        Ok(Standing::of(self.files().read()?.as_deref(), self.unit()))
    }

    /// What systemd knows. Fails if there is no systemd to ask.
    pub(crate) fn look(&self) -> Result<Known, ServiceError> {
        self.systemd.look(&*self.tools)
    }

    /// Does what the disk and systemd have to do for a step.
    pub(crate) fn carry_out(&self, step: Step) -> Result<(), ServiceError> {
        match step {
            Step::Keep => self.files().keep(),
            Step::Write => self.files().write(self.unit()),
            Step::Remove => self.files().remove(),
            Step::Reload
            | Step::Enable
            | Step::Disable
            | Step::MakeWay
            | Step::Start
            | Step::Stop
            | Step::Adopt => systemd::command(step).map_or(Ok(()), |words| self.order(&words)),
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
        let help = match refusal {
            Refusal::Barred => format!("`{}` allows it again", systemd::UNMASK),
            Refusal::Edited => format!(
                "make your changes with `{}`; `--force` replaces it and keeps it as `{}`",
                systemd::EDIT,
                self.aside().display()
            ),
            Refusal::OtherInstance => {
                "MAINSTAY_HOME says which instance is meant; one service serves one of them; with \
                 `--force`, `install` makes it this one"
                    .to_owned()
            }
        };
        ServiceError::Refused { refusal, help }
    }

    fn files(&self) -> Files<'_> {
        Files::new(self.path())
    }

    fn order(&self, words: &[&str]) -> Result<(), ServiceError> {
        let failed = |said| ServiceError::Tool { command: words.join(" "), said };
        match self.tools.run(words) {
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
        let systemd = Systemd::new(&blueprint, var).unwrap();
        let tools: &'static Recorded = Box::leak(Box::new(Recorded::new(answers)));
        (Service { systemd, tools: Box::new(tools) }, tools)
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
