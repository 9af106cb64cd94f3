//! What all measures of a built Mainstay stand on.
//!
//! A measure runs against a Mainstay of its own, with state, home and port that nobody else uses
//! ([`Instance`]), and ends everything it started, also when it fails or is interrupted. It uses
//! nothing but the command line's contract. Every wait has a limit.

mod contract;
mod instance;
mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use contract::{Event, Server};
pub(crate) use instance::{
    Events, Instance, Programs, Upstream, as_str, free_address, kill, output,
};
use serde::Serialize;
pub(crate) use table::{Table, milliseconds};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::load::LoadError;
use crate::procfs::{ProcError, cpu_time};

/// How long to wait for a process to become quiet.
const QUIET_LIMIT: Duration = Duration::from_secs(30);
/// Quiet means that it uses no more than this in a second.
const QUIET: Duration = Duration::from_millis(10);

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The surroundings could not be set up.
    #[error("the instance could not be set up")]
    SetUp(#[source] io::Error),
    /// A program could not be started.
    #[error("`{program}` could not be started")]
    Start {
        /// Which program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A command failed.
    #[error("`{command}` failed: {stderr}")]
    Failed {
        /// Which command.
        command: String,
        /// What it said.
        stderr: String,
    },
    /// A command printed something else than agreed.
    #[error("`{command}` printed something unexpected")]
    Unreadable {
        /// Which command.
        command: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {limit:?}")]
    Late {
        /// What was awaited.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// `mainstay ls` does not tell something about a server.
    #[error("`mainstay ls` shows no {what} of server `{server}`")]
    Untold {
        /// Which server.
        server: String,
        /// What is missing.
        what: &'static str,
    },
    /// The load could not be put on.
    #[error("the load could not be put on")]
    Load(#[from] LoadError),
    /// There were answers, but not the right ones.
    #[error("not all answers were right: {0}")]
    Wrong(String),
    /// The event stream ended.
    #[error("`mainstay events` ended")]
    EventsEnded,
    /// A figure could not be read from `/proc`.
    #[error("a process could not be measured")]
    Proc(#[from] ProcError),
    /// The figures could not be stored.
    #[error("`{path}` could not be written")]
    Store {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

/// Runs a measure on one thread, which leaves the other cores to what is measured.
pub(crate) fn block_on<T>(
    measure: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(BenchError::SetUp)?.block_on(measure)
}

/// Runs a measure against a Mainstay of its own, and ends that one whatever comes of it.
pub(crate) async fn with_instance<T>(
    programs: &Programs,
    measure: impl AsyncFnOnce(&Instance) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let instance = Instance::new(programs.clone()).map_err(BenchError::SetUp)?;
    let figures = measure(&instance).await;
    instance.end().await?;
    figures
}

/// Waits until a process has next to nothing to do; says whether that came.
pub(crate) async fn become_quiet(daemon: u32) -> Result<bool, BenchError> {
    let deadline = Instant::now() + QUIET_LIMIT;
    let mut before = cpu_time(daemon)?;
    while Instant::now() < deadline {
        sleep(Duration::from_secs(1)).await;
        let now = cpu_time(daemon)?;
        if now.saturating_sub(before) <= QUIET {
            return Ok(true);
        }
        before = now;
    }
    Ok(false)
}

/// Drops a measure when the user or the system wants us to end, so that it can be cleaned up.
pub(crate) async fn unless_interrupted<T>(
    measure: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    tokio::select! {
        figures = measure => figures,
        stopped = interrupted() => Err(stopped.map_or_else(BenchError::SetUp, |()| BenchError::Interrupted)),
    }
}

/// Returns when the user or the system wants us to end.
async fn interrupted() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// Writes figures to a file as one JSON object, if there is to be a file.
pub(crate) fn store(path: Option<&Path>, figures: &impl Serialize) -> Result<(), BenchError> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(figures).map_err(io::Error::from);
    text.and_then(|text| fs::write(path, text + "\n"))
        .map_err(|source| BenchError::Store { path: path.to_owned(), source })
}
