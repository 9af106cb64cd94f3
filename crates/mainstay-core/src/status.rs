//! The status of a server, as users see it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Being started because its user wants it.
    Starting,
    /// Up and ready.
    Running,
    /// Being started again after a run ended, or waiting for the next attempt.
    Restarting,
    /// Up, but not answering as it used to.
    Unhealthy,
    /// Its engine, its host or its remote end is away, or it is paused.
    Waiting,
    /// Being stopped.
    Stopping,
    /// Off, as its user wants.
    Stopped,
    /// Being stopped for good.
    Removing,
    /// Given up, or impossible to start.
    Error,
}

impl Status {
    /// The status as a word, as in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Unhealthy => "unhealthy",
            Self::Waiting => "waiting",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Removing => "removing",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
