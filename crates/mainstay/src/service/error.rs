//! Why something about the service could not be done.

use std::io;
use std::path::PathBuf;

use mainstay_core::with_causes;

use super::plan::Refusal;
use super::systemd::SHOW_LOG;
use crate::error::CliError;

/// How to have Mainstay started where there is no systemd.
const WITHOUT_SYSTEMD: &str = "add the line `@reboot mainstay daemon start` to your crontab (`crontab -e`), with the \
                               full path of `mainstay`, or `mainstay daemon start >/dev/null 2>&1` to ~/.profile";

/// Why something about the service could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("`mainstay service` is not supported on this system: it needs systemd")]
    Unsupported,
    #[error("the systemd of your login session cannot be reached: {said}")]
    NoSystemd { said: String },
    #[error("`{command}` failed: {said}")]
    Tool { command: String, said: String },
    /// Something that belongs in the unit cannot be written there.
    #[error("{what} contains control characters or is not valid UTF-8, so no unit can hold it")]
    Unwritable { what: String },
    /// There is no place for the unit.
    #[error("HOME is not set to an absolute path, so there is no place for the unit")]
    NoHome,
    /// A person has decided otherwise.
    #[error("{refusal}")]
    Refused { refusal: Refusal, help: String },
    /// The disk failed us.
    #[error("`{}` cannot be {action}", path.display())]
    File { path: PathBuf, action: &'static str, source: io::Error },
}

impl ServiceError {
    /// What the user can do about it.
    fn help(&self) -> Option<String> {
        match self {
            Self::Unsupported => Some(format!("without systemd, {WITHOUT_SYSTEMD}")),
            Self::NoSystemd { .. } => Some(format!(
                "the service needs systemd and a login session of yours: log in as yourself rather than \
                 with `su` or `sudo`; without systemd, {WITHOUT_SYSTEMD}"
            )),
            Self::Tool { .. } => Some(format!("see `{SHOW_LOG}`")),
            Self::Unwritable { .. } => {
                Some("choose another path, or unset the variable".to_owned())
            }
            Self::NoHome => Some("set HOME".to_owned()),
            Self::Refused { help, .. } => Some(help.clone()),
            Self::File { .. } => None,
        }
    }
}

impl From<ServiceError> for CliError {
    fn from(error: ServiceError) -> Self {
        Self::Failed { message: with_causes(&error), help: error.help() }
    }
}
