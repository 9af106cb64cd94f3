//! Why a run ended.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::human_duration;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Exit {
    /// The exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did. For a container both may be known: its
    /// engine reports a code that stands for the signal.
    pub signal: Option<i32>,
    /// Whether the kernel killed it because memory ran out.
    #[serde(default)]
    pub oom: bool,
}

impl Exit {
    /// An ordinary exit with this code.
    pub const fn code(code: i32) -> Self {
        Self { code: Some(code), signal: None, oom: false }
    }

    pub const fn signal(signal: i32) -> Self {
        Self { code: None, signal: Some(signal), oom: false }
    }

    /// An end without a status, because no process was left to collect it.
    pub const UNKNOWN: Self = Self { code: None, signal: None, oom: false };
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), None) => write!(f, "exited {code}")?,
            (Some(code), Some(_)) if self.oom => write!(f, "exited {code}")?,
            (Some(code), Some(signal)) => match signal_name(signal) {
                Some(name) => write!(f, "exited {code} ({name})")?,
                None => write!(f, "exited {code} (signal {signal})")?,
            },
            (None, Some(signal)) => match signal_name(signal) {
                Some(name) => write!(f, "killed by {name}")?,
                None => write!(f, "killed by signal {signal}")?,
            },
            (None, None) => f.write_str("ended, exit status unknown")?,
        }
        if self.oom { f.write_str(" (OOM)") } else { Ok(()) }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// The typed cause of the end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The server exited or was killed by a signal.
    Exited(Exit),
    /// The server was alive but did not answer; the text says what was missed.
    Hung(String),
    /// The server did not become ready: it never answered `initialize`, or not as an MCP server does. The text
    /// says what was missed.
    NotReady(String),
    /// Someone else stopped the workload.
    StoppedBySomeone,
    /// Someone else restarted the workload.
    RestartedBySomeone,
    /// The workload was removed from its engine.
    Removed,
    /// The run ended during an outage of its engine.
    EngineAway,
    /// The machine was restarted, and no daemon saw the run end before.
    MachineRestarted,
    /// The run could not be started because the machine was temporarily out of a resource (descriptors,
    /// memory, disk space), which the text names. It is not the server's fault.
    NotStarted(String),
    /// The run cannot be started, now or later; the text says why.
    CannotStart(String),
    Asked,
}

impl Cause {
    /// Whether such an end uses up a restart.
    pub fn charged(&self) -> bool {
        matches!(self, Self::Exited(_) | Self::Hung(_) | Self::NotReady(_) | Self::StoppedBySomeone)
    }

    /// The cause as a word, as in events and JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Exited(_) => "exited",
            Self::Hung(_) => "hung",
            Self::NotReady(_) => "not-ready",
            Self::StoppedBySomeone => "stopped",
            Self::RestartedBySomeone => "restarted",
            Self::Removed => "removed",
            Self::EngineAway => "engine-away",
            Self::MachineRestarted => "machine-restarted",
            Self::NotStarted(_) => "not-started",
            Self::CannotStart(_) => "cannot-start",
            Self::Asked => "asked",
        }
    }

    /// A description with the duration of the run: "exited 1 after 3 s".
    pub fn after(&self, ran_for: Duration) -> String {
        let ran_for = human_duration(ran_for);
        match self {
            Self::Hung(what) => format!("failed after {ran_for}: {what}"),
            Self::Exited(_)
            | Self::StoppedBySomeone
            | Self::RestartedBySomeone
            | Self::Asked
            | Self::Removed => format!("{self} after {ran_for}"),
            Self::EngineAway
            | Self::MachineRestarted
            | Self::CannotStart(_)
            | Self::NotReady(_)
            | Self::NotStarted(_) => self.to_string(),
        }
    }

    pub fn exit(&self) -> Option<Exit> {
        if let Self::Exited(exit) = self { Some(*exit) } else { None }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(exit) => exit.fmt(f),
            Self::Hung(what) => write!(f, "failed: {what}"),
            Self::NotReady(what) => write!(f, "not ready: {what}"),
            Self::StoppedBySomeone => f.write_str("stopped by someone else"),
            Self::RestartedBySomeone => f.write_str("restarted by someone else"),
            Self::Removed => f.write_str("removed"),
            Self::EngineAway => f.write_str("lost with its engine"),
            Self::MachineRestarted => f.write_str("the machine restarted"),
            Self::NotStarted(why) => write!(f, "could not be started: {why}"),
            Self::CannotStart(why) => write!(f, "cannot start: {why}"),
            Self::Asked => f.write_str("stopped on request"),
        }
    }
}
