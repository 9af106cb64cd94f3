//! The only code that starts and stops workloads.
//!
//! An [`Engine`] is where runs live. It decides nothing: it carries out what the supervisor asks for
//! and reports what it sees. Guarantees every engine gives, and the conformance suite in
//! `mainstay-testkit` checks:
//!
//! * Everything it starts carries the instance, the server and the run, so that a later daemon finds
//!   it again with [`Engine::list`] and no other instance ever touches it.
//! * `stop` and `kill` are idempotent, and end every descendant of a run.
//! * The end of a run is told twice: [`News::Exited`] the moment it is noticed, [`News::Gone`] when
//!   nothing of the run is left. Only then may the next run of the same server be started.
//! * News wakes a reconcile and may be lost; what [`Engine::list`] says is the truth.

pub mod discover;
pub mod docker;
mod error;
mod lines;
mod logs;
pub mod process;
mod remote;
mod tasks;

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use mainstay_core::{Cause, Exit, Interruption, RunId, ServerName, ServerSpec};
pub use regex_lite::Regex;
use tokio::sync::{broadcast, mpsc, watch};

pub use docker::{DockerConfig, DockerEngine, Pulled};
pub use error::{EngineError, StartError};
pub use process::{PortOwner, ProcessConfig, ProcessEngine, newest_daemon_of_shims};
pub use remote::RemoteEngine;

/// Which run of which server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunKey {
    /// The server.
    pub server: ServerName,
    /// Its run.
    pub run: RunId,
}

impl RunKey {
    /// The run `run` of `server`.
    pub fn new(server: ServerName, run: RunId) -> Self {
        Self { server, run }
    }
}

/// A run that was started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Started {
    /// The server's own process, where it is one on this machine.
    pub pid: Option<u32>,
    /// The container it runs in, where it is one.
    pub container: Option<String>,
    /// Why this is another container than that of the run before, if the engine could not start that one any more.
    pub replaced: Option<String>,
}

/// A run of ours that the engine knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which one.
    pub key: RunKey,
    /// Its state.
    pub state: FoundState,
}

/// What has become of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    /// It lives.
    Alive {
        /// The server's own process, where it is one on this machine.
        pid: Option<u32>,
        /// The container it runs in, where it is one.
        container: Option<String>,
        /// How long it has lived.
        age: Duration,
    },
    /// What it lives on does not answer. What has become of it is told before [`News::Back`].
    Unknown,
    /// It ended while nobody watched. It is told once, then forgotten.
    Ended(Exit),
}

/// Something happened to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The server itself has ended; what it left behind is being ended too.
    Exited {
        /// Which run.
        key: RunKey,
        /// How it ended.
        exit: Exit,
        /// The last of what it wrote to standard error.
        stderr: Vec<u8>,
    },
    /// Nothing of the run is left. With [`Cause::Removed`] nothing is left of what it ran in either;
    /// that may also be told of a run that was over before.
    Gone {
        /// Which run.
        key: RunKey,
        /// How it ended.
        cause: Cause,
    },
    /// It has become known why a run ended that was reported gone a moment ago.
    Amended {
        /// Which run.
        key: RunKey,
        /// How it ended after all.
        cause: Cause,
    },
    /// Somebody else started again what the last run of a server ran in, whether that had been reported
    /// gone or not. What runs there now is a run of its own.
    Restarted {
        /// The last run that there was.
        key: RunKey,
        /// The run that is there now, one higher.
        new: RunId,
        /// What the new run is.
        started: Started,
    },
    /// Somebody paused the run.
    Paused {
        /// Which run.
        key: RunKey,
    },
    /// The run goes on.
    Unpaused {
        /// Which run.
        key: RunKey,
    },
    /// What the image says about the health of its servers is not met.
    Unhealthy {
        /// Which run.
        key: RunKey,
    },
    /// It is met again.
    Healthy {
        /// Which run.
        key: RunKey,
    },
    /// What the server's runs live on does not answer.
    Away {
        /// Whose.
        server: ServerName,
        /// What is wrong, for people.
        why: String,
    },
    /// It answers again, and everything that happened meanwhile has been told.
    Back {
        /// Whose.
        server: ServerName,
    },
}

impl News {
    /// The server it is about.
    pub fn server(&self) -> &ServerName {
        self.subject().unwrap_or_else(|key| &key.server)
    }

    /// The run it is about; of a restart the one before.
    pub fn run(&self) -> Option<RunId> {
        self.subject().err().map(|key| key.run)
    }

    /// The server, if it is about no run of it.
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

/// Lines to and from a stdio server. Lines carry no line end.
#[derive(Debug)]
pub struct Stdio {
    /// Lines for the server's standard input.
    pub to_server: mpsc::Sender<Bytes>,
    /// Lines from its standard output. Of one longer than 16 MiB only the two ends come, with a
    /// newline between them, which no other line holds.
    pub from_server: mpsc::Receiver<Bytes>,
    /// Lines that turned out to be no protocol; they go to the server's log.
    pub junk: mpsc::Sender<Bytes>,
    /// How many lines have been written whole to the server, since its start; more than were handed
    /// over if that cannot be known any more.
    pub written: watch::Receiver<u64>,
    /// Takes in how many lines of `from_server` have been dealt with, all together. What was not is told
    /// again to the daemon that attaches next; an engine that keeps no more of them has the server wait.
    pub consumed: watch::Sender<u64>,
    /// What the server may have written while nobody was attached, for whoever waits for an answer; some
    /// of it may have been told before. None if all of it comes with `from_server`.
    pub earlier_output: Option<Vec<Bytes>>,
    /// Tells of every interruption of the connection, when it is over. None if there can be none while the
    /// server lives.
    pub interruptions: Option<watch::Receiver<Interruption>>,
}

/// Where a run that speaks HTTP is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// To be tried in this order.
    pub addrs: Vec<SocketAddr>,
    /// Who listens there, if that is known not to be the run itself.
    pub owner: Option<PortOwner>,
}

impl From<Vec<SocketAddr>> for Endpoint {
    fn from(addrs: Vec<SocketAddr>) -> Self {
        Self { addrs, owner: None }
    }
}

/// Which part of a log is wanted.
#[derive(Debug, Clone, Default)]
pub struct LogRange {
    /// Only that many of the last lines that are wanted.
    pub tail: Option<usize>,
    /// Whether new lines follow as they come.
    pub follow: bool,
    /// Only lines that were written then or later.
    pub since: Option<Timestamp>,
    /// Only lines that match.
    pub grep: Option<Regex>,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written. Versions before 0.2 recorded no times.
    pub at: Option<Timestamp>,
    /// The line without its end.
    pub text: String,
}

/// A place where runs live.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The spec with everything decided that it left open, if such a server could be started now, as
    /// far as that can be told without starting it.
    async fn prepare(&self, spec: &ServerSpec) -> Result<ServerSpec, StartError>;

    /// Starts a run. It exists when this returns, and is gone again when this fails. A caller that
    /// does not wait for the end of this may find the run in the next [`Engine::list`].
    async fn start(&self, key: &RunKey, spec: &ServerSpec) -> Result<Started, StartError>;

    /// Begins to end a run: asks it, and kills what is left of it after `grace`. The end comes as news.
    async fn stop(&self, key: &RunKey, grace: Duration) -> Result<(), EngineError>;

    /// Ends a run without asking. The end comes as news.
    async fn kill(&self, key: &RunKey) -> Result<(), EngineError>;

    /// Every run of this instance, and from now on news of each that lives. No run makes the others
    /// wait for long: one that is ending counts as alive until nothing of it is left.
    async fn list(&self) -> Result<Vec<Found>, EngineError>;

    /// Ends all that it does by itself, because another daemon has taken over. Nothing must be asked of it any more.
    fn abandon(&self) {}

    /// News of all runs from now on. A reader that lags is told so and must [`Engine::list`].
    fn watch(&self) -> broadcast::Receiver<News>;

    /// A server's log, oldest line first. The channel closes at the end, or never if it follows.
    async fn logs(
        &self,
        server: &ServerName,
        range: LogRange,
    ) -> Result<mpsc::Receiver<LogLine>, EngineError>;

    /// Takes over a run's standard input and output from whoever has them. They are given up when
    /// [`Stdio::from_server`] is dropped, or the engine is.
    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError>;

    /// Where a run is reached that speaks HTTP on `port`. May wait until something listens there, so the caller
    /// sets a time limit.
    async fn endpoint(&self, key: &RunKey, port: u16) -> Result<Endpoint, EngineError>;

    /// Whether a run that speaks HTTP on `port` is reached elsewhere than [`Engine::endpoint`] said last.
    async fn has_moved(&self, _key: &RunKey, _port: u16) -> bool {
        false
    }

    /// The last of what the run wrote to standard error.
    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError>;

    /// Removes what the server's runs ran in; its log stays. To be called when it has no run here and
    /// is to have none, as when another engine runs it from now on.
    async fn release(&self, _server: &ServerName) -> Result<(), EngineError> {
        Ok(())
    }

    /// Removes all that is kept of a server beyond its runs: what [`Engine::release`] does, and its log.
    async fn forget(&self, server: &ServerName) -> Result<(), EngineError>;
}
