//! The only code that starts and stops workloads.
//!
//! An [`Engine`] is where runs live. It makes no decisions: it executes the supervisor's actions
//! and reports what it observes. Guarantees of every engine, checked by the conformance suite in
//! `mainstay-testkit`:
//!
//! * Every run carries the instance, the server and its number, so that a later daemon finds
//!   it with [`Engine::list`] and no other instance ever touches it.
//! * `stop` and `kill` are idempotent, and end every descendant of a run.
//! * The end of a run is reported twice: [`News::Exited`] as soon as it is noticed, [`News::Gone`] when
//!   nothing of the run is left. Only then may the next run of the same server be started.
//! * News may be lost; [`Engine::list`] is authoritative.

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
use mainstay_core::start_activity::StartEvidence;
pub use mainstay_core::watchdog::Observation;
pub use mainstay_core::{FoundState, News, RunKey, Started};
use mainstay_core::{Interruption, ServerName, ServerSpec};
pub use regex_lite::Regex;
use tokio::sync::{broadcast, mpsc, watch};

pub use docker::{DockerConfig, DockerEngine, Pulled};
pub use error::{EngineError, StartError};
pub use process::{PortOwner, ProcessConfig, ProcessEngine, newest_daemon_of_shims};
pub use remote::RemoteEngine;

/// A run of this instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which one.
    pub key: RunKey,
    /// Its state.
    pub state: FoundState,
}

/// Lines to and from a stdio server. Lines carry no line end.
#[derive(Debug)]
pub struct Stdio {
    /// Lines for the server's standard input.
    pub to_server: mpsc::Sender<Bytes>,
    /// Lines from its standard output. Of one longer than 16 MiB only the two ends are delivered, with a
    /// newline between them, which no other line contains.
    pub from_server: mpsc::Receiver<Bytes>,
    /// For lines that are not protocol messages; they go to the server's log.
    pub junk: mpsc::Sender<Bytes>,
    /// The number of lines that were completely written to the server since its start; more than were sent
    /// if that is not known any more.
    pub written: watch::Receiver<u64>,
    /// To be set to the number of lines of `from_server` that were processed. The others are delivered
    /// again to the daemon that attaches next. If the engine cannot keep more of them, the server has to wait.
    pub consumed: watch::Sender<u64>,
    /// What the server may have written while no daemon was attached; some
    /// of it may have been delivered before. None if all of it comes with `from_server`.
    pub earlier_output: Option<Vec<Bytes>>,
    /// Reports every interruption of the connection, when it is over. None if there can be none while the
    /// server is alive.
    pub interruptions: Option<watch::Receiver<Interruption>>,
}

/// Where a run that speaks HTTP is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// In the order in which they are tried.
    pub addrs: Vec<SocketAddr>,
    /// Which process listens there, if it is not the run itself.
    pub owner: Option<PortOwner>,
}

impl From<Vec<SocketAddr>> for Endpoint {
    fn from(addrs: Vec<SocketAddr>) -> Self {
        Self { addrs, owner: None }
    }
}

/// Selects a part of a log.
#[derive(Debug, Clone, Default)]
pub struct LogRange {
    /// Only the last lines.
    pub tail: Option<usize>,
    /// Whether to continue with new lines.
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
    /// Checks that such a server could be started now, as far as possible without starting it, and returns the spec
    /// with all choices made that it left open.
    async fn prepare(&self, spec: &ServerSpec) -> Result<ServerSpec, StartError>;

    /// Starts a run. It exists when this returns, and is gone again when this fails. If the future is
    /// dropped, the run may be in the next [`Engine::list`].
    async fn start(&self, key: &RunKey, spec: &ServerSpec) -> Result<Started, StartError>;

    /// Begins to stop a run, and kills what is left of it after `grace`. The end is reported as news.
    async fn stop(&self, key: &RunKey, grace: Duration) -> Result<(), EngineError>;

    /// Kills a run. The end is reported as news.
    async fn kill(&self, key: &RunKey) -> Result<(), EngineError>;

    /// All runs of this instance. From now on there is news of each that is alive. A run that is ending counts as
    /// alive until nothing of it is left.
    async fn list(&self) -> Result<Vec<Found>, EngineError>;

    /// Aborts all background tasks, because another daemon has taken over. The engine must not be used any more.
    fn abandon(&self) {}

    /// News of all runs from now on. A receiver that lags must call [`Engine::list`].
    fn watch(&self) -> broadcast::Receiver<News>;

    /// A server's log, oldest line first. The channel closes at the end, or never if it follows.
    async fn logs(
        &self,
        server: &ServerName,
        range: LogRange,
    ) -> Result<mpsc::Receiver<LogLine>, EngineError>;

    /// Attaches to a run's standard input and output, in place of the previous consumer, until
    /// [`Stdio::from_server`] or the engine is dropped.
    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError>;

    /// The address of a run that speaks HTTP on `port`. Waits until something listens there, so the caller
    /// sets a time limit.
    async fn endpoint(&self, key: &RunKey, port: u16) -> Result<Endpoint, EngineError>;

    /// Whether the address of a run has changed since the last [`Engine::endpoint`].
    async fn has_moved(&self, _key: &RunKey, _port: u16) -> bool {
        false
    }

    /// What can be seen of a run from outside, if it does not answer.
    async fn observe(&self, _key: &RunKey) -> Result<Observation, EngineError> {
        Ok(Observation::default())
    }

    /// What a run does that does not become ready. Without processes, if they cannot be seen.
    async fn observe_start(&self, _key: &RunKey) -> Result<StartEvidence, EngineError> {
        Ok(StartEvidence::default())
    }

    /// Writes what each thread of a run waits for to the server's log, if its processes can be seen.
    async fn log_stacks(&self, _key: &RunKey) -> Result<(), EngineError> {
        Ok(())
    }

    /// The last of what the run wrote to standard error.
    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError>;

    /// Removes the server's container or run directory; its log stays. To be called when it has no run here and
    /// will have none, such as when it moves to another engine.
    async fn release(&self, _server: &ServerName) -> Result<(), EngineError> {
        Ok(())
    }

    /// Does what [`Engine::release`] does, and removes the log.
    async fn forget(&self, server: &ServerName) -> Result<(), EngineError>;
}
