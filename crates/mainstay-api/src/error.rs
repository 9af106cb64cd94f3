//! Errors as they travel over the socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What kind of error an answer carries; the command line turns it into an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// There is no server of that name.
    NoSuchServer,
    /// The request is invalid.
    Invalid,
    /// The name is in use.
    NameTaken,
    /// The server cannot be started, or is not up.
    Unavailable,
    /// The image of a container does not exist locally; it can be pulled.
    NoImage,
    /// The server answered with an error.
    Server,
    /// The daemon itself failed: disk, database, descriptors.
    Internal,
}

/// An error with a message and, where possible, advice for the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What kind of error this is.
    pub kind: ErrorKind,
    /// What went wrong.
    pub message: String,
    /// What the user can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl ApiError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), help: None }
    }

    /// The same error with advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}
