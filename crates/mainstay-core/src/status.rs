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
    /// Up and working, but it reads nothing.
    Busy,
    /// Up, but it waits inside a call and reads nothing else.
    Blocked,
    /// Up, but it reads nothing and does nothing; it is killed.
    Hung,
    /// Up, but its process is stopped by a signal or a debugger.
    Suspended,
    /// Up, but it is silent, and what it does cannot be observed.
    Unresponsive,
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
    /// Whether its run has become ready, and has not ended.
    pub fn is_up(self) -> bool {
        match self {
            Self::Running
            | Self::Busy
            | Self::Blocked
            | Self::Hung
            | Self::Suspended
            | Self::Unresponsive
            | Self::Unhealthy => true,
            Self::Starting
            | Self::Restarting
            | Self::Waiting
            | Self::Stopping
            | Self::Stopped
            | Self::Removing
            | Self::Error => false,
        }
    }

    /// The status as a word, as in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Busy => "busy",
            Self::Blocked => "blocked",
            Self::Hung => "hung",
            Self::Suspended => "suspended",
            Self::Unresponsive => "unresponsive",
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
