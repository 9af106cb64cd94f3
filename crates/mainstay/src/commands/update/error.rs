//! Why an update is refused.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use mainstay_api::ApiError;
use mainstay_core::{human_duration, with_causes};

use crate::error::CliError;

/// Part of every refusal. The new program may have said it itself.
const UNCHANGED: &str = "nothing was changed";

/// Why nothing was replaced. The old program is in its place and its daemon serves.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpdateError {
    #[error("another update is running")]
    Busy,
    #[error("the lock `{}` cannot be taken", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("`{}` cannot be read", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is not a regular file", .0.display())]
    NoFile(PathBuf),
    #[error("`{}` is not a program for this system and processor", path.display())]
    Platform { path: PathBuf },
    #[error("the daemon runs `{}`, but this program is `{}`", daemon.display(), ours.display())]
    OtherProgram { daemon: PathBuf, ours: PathBuf },
    #[error("`{}` cannot be written", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("`{}` cannot be started", path.display())]
    Start { path: PathBuf, source: io::Error },
    #[error("`{}` has not answered `{argument}` within {}", path.display(), human_duration(*limit))]
    Late { path: PathBuf, argument: &'static str, limit: Duration },
    #[error("`{}` is not Mainstay: its answer to `--version` is {answer}", path.display())]
    NoMainstay { path: PathBuf, answer: String },
    #[error(
        "version {version} does not support this update: its answer to the trial run is {answer}"
    )]
    NoTrial { version: String, answer: String },
    #[error("version {version} cannot read the state of this instance: {error}")]
    Trial { version: String, error: ApiError },
}

impl UpdateError {
    /// What the user can do about it.
    fn help(&self) -> String {
        match self {
            Self::Busy => "wait until it has finished, at most a minute".to_owned(),
            Self::Lock { .. } => "`mainstay doctor` checks the directories".to_owned(),
            Self::Read { .. } | Self::NoFile(_) => {
                "name the file of the new program, as it was downloaded and unpacked".to_owned()
            }
            Self::Platform { .. } => {
                "name the `mainstay` program itself, unpacked and built for this machine; nothing was \
                 changed"
                    .to_owned()
            }
            Self::NoMainstay { .. } => {
                "name the `mainstay` program itself, unpacked; download it again if it may be \
                 incomplete; nothing was changed"
                    .to_owned()
            }
            Self::OtherProgram { daemon, .. } => {
                format!("update that program: `{}` update --from FILE", daemon.display())
            }
            Self::Write { .. } => "ask the owner of the directory to replace the file, then run `mainstay daemon reload`; nothing was changed"
                .to_owned(),
            Self::Start { .. } => {
                "libraries may be missing, or its file system may not allow programs; nothing was changed"
                    .to_owned()
            }
            Self::Late { .. } | Self::NoTrial { .. } => UNCHANGED.to_owned(),
            Self::Trial { error, .. } => match error.help.as_deref() {
                Some(help) if help.contains(UNCHANGED) => format!("it says: {help}"),
                Some(help) => format!("it says: {help}; {UNCHANGED}"),
                None => UNCHANGED.to_owned(),
            },
        }
    }
}

impl From<UpdateError> for CliError {
    fn from(error: UpdateError) -> Self {
        Self::failed(with_causes(&error), error.help())
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::ErrorKind;

    use super::*;

    #[test]
    fn nothing_was_changed_is_part_of_the_message_once() {
        let check = |help: Option<&str>, expected: &str| {
            let error = ApiError::new(ErrorKind::Internal, "the disk is full");
            let error = ApiError { help: help.map(str::to_owned), ..error };
            let error = UpdateError::Trial { version: "2.0.0".to_owned(), error };
            assert_eq!(error.help(), expected);
        };
        let full = "free some space; nothing was changed";
        check(Some(full), "it says: free some space; nothing was changed");
        check(Some("go elsewhere"), "it says: go elsewhere; nothing was changed");
        check(None, "nothing was changed");
    }
}
