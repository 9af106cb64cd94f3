//! What engines report about the runs of a server.

use std::time::Duration;

use crate::{Cause, Exit, RunId, ServerName};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunKey {
    pub server: ServerName,
    pub run: RunId,
}

impl RunKey {
    pub fn new(server: ServerName, run: RunId) -> Self {
        Self { server, run }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Started {
    /// The server's own process, where it is one on this machine.
    pub pid: Option<u32>,
    /// The container it runs in, where it is one.
    pub container: Option<String>,
    /// Why the container of the run before was replaced, if the engine could not start it any more.
    pub replaced: Option<String>,
}

/// The state of a run in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    Alive {
        /// The server's own process, where it is one on this machine.
        pid: Option<u32>,
        /// The container it runs in, where it is one.
        container: Option<String>,
        /// The time since its start.
        age: Duration,
    },
    /// Its engine does not answer. Its state is reported before [`News::Back`].
    Unknown,
    /// It ended before this daemon watched it. This is reported once.
    Ended(Exit),
}

/// A change of a run or of its engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The server has exited; its remaining processes are being killed.
    Exited {
        key: RunKey,
        exit: Exit,
        /// The last of what it wrote to standard error.
        stderr: Vec<u8>,
    },
    /// Nothing of the run is left. With [`Cause::Removed`], its container is gone too;
    /// that may also be reported for a run that was over before.
    Gone {
        key: RunKey,
        cause: Cause,
    },
    /// The cause of the end of a run that was reported gone a moment ago.
    Amended {
        key: RunKey,
        cause: Cause,
    },
    /// Someone else started the container of the last run again, whether that run had been reported
    /// gone or not. This is a new run.
    Restarted {
        /// The last run.
        key: RunKey,
        /// The new run, one higher.
        new: RunId,
        started: Started,
    },
    Paused {
        key: RunKey,
    },
    /// The run continues after a pause.
    Unpaused {
        key: RunKey,
    },
    /// The health check of the image fails.
    Unhealthy {
        key: RunKey,
    },
    /// The health check of the image passes again.
    Healthy {
        key: RunKey,
    },
    /// The engine of the server does not answer.
    Away {
        server: ServerName,
        /// What is wrong, for people.
        why: String,
    },
    /// The engine answers again, and everything that happened meanwhile has been reported.
    Back {
        server: ServerName,
    },
}

impl News {
    pub fn server(&self) -> &ServerName {
        self.subject().unwrap_or_else(|key| &key.server)
    }

    /// The run it is about; of a restart, the old one.
    pub fn run(&self) -> Option<RunId> {
        self.subject().err().map(|key| key.run)
    }

    /// The server, or the run that it is about.
    fn subject(&self) -> Result<&ServerName, &RunKey> {
        match self {
            Self::Away { server, .. } | Self::Back { server } => Ok(server),
            Self::Exited { key, .. }
            | Self::Gone { key, .. }
            | Self::Amended { key, .. }
            | Self::Restarted { key, .. }
            | Self::Paused { key }
            | Self::Unpaused { key }
            | Self::Unhealthy { key }
            | Self::Healthy { key } => Err(key),
        }
    }
}
