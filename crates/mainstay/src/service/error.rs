//! Why something about the service could not be done.

use std::io;
use std::path::PathBuf;

use mainstay_core::with_causes;

use super::plan::Refusal;
use crate::error::CliError;

/// Why something about the service could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    /// No manager of user services answers.
    #[error("{manager} cannot be reached: {said}")]
    NoManager { manager: &'static str, said: String, help: &'static str },
    /// The manager refused.
    #[error("`{command}` failed: {said}")]
    Tool { command: String, said: String, log: &'static str },
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
            Self::NoManager { help, .. } => Some((*help).to_owned()),
            Self::Tool { log, .. } => Some(format!("see `{log}`")),
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
