//! How fast and how cheaply a built Mainstay keeps servers alive, seen from outside.
//!
//! Each measure runs against a Mainstay of its own, with state, home and port that nobody else
//! uses ([`Instance`]), and ends everything it started, also when it fails or is interrupted. It
//! uses nothing but the command line's contract. Every wait has a limit.

mod contract;
mod instance;
mod kill;
mod list;
mod many;
mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instance::{Instance, Programs};
use serde::Serialize;
use table::Table;
use tokio::signal::unix::{SignalKind, signal};

use crate::procfs::ProcError;

/// Measures how Mainstay supervises.
#[derive(Debug, clap::Parser)]
#[command(name = "supervise-bench", version)]
pub struct Options {
    #[command(subcommand)]
    measure: Measure,
    /// The program to measure; by default `mainstay` beside this program.
    #[arg(long, global = true, value_name = "FILE")]
    mainstay: Option<PathBuf>,
    /// Also write the figures to this file, as one JSON object.
    #[arg(long, global = true, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Measure {
    /// Kill a server again and again: how soon is it noticed, replaced, ready?
    Kill {
        /// How many times.
        #[arg(long, default_value_t = 200)]
        kills: u32,
    },
    /// Many idle servers: what do they cost?
    Many {
        /// How many.
        #[arg(long, default_value_t = 200)]
        servers: u32,
        /// How long to watch, in seconds.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// The wall time of `mainstay ls` with one server and with many.
    Ls {
        /// How many servers are many.
        #[arg(long, default_value_t = 200)]
        servers: u32,
        /// How many times to run it.
        #[arg(long, default_value_t = 50)]
        times: u32,
    },
}

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
        server: &'static str,
        /// What is missing.
        what: &'static str,
    },
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

/// What a measure found out.
#[derive(Debug, Serialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
enum Figures {
    Kill(kill::Figures),
    Many(many::Figures),
    Ls(list::Figures),
}

impl Figures {
    fn table(&self) -> Table {
        match self {
            Self::Kill(figures) => figures.table(),
            Self::Many(figures) => figures.table(),
            Self::Ls(figures) => figures.table(),
        }
    }
}

/// Measures, stores the figures if asked to, and returns them as a small table.
pub fn run(options: &Options) -> Result<String, BenchError> {
    let programs = Programs::beside_this(options.mainstay.as_deref()).map_err(BenchError::SetUp)?;
    let figures = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::SetUp)?
        .block_on(measure_and_clean_up(programs, &options.measure))?;
    if let Some(path) = &options.out {
        store(path, &figures)?;
    }
    Ok(figures.table().to_string())
}

async fn measure_and_clean_up(
    programs: Programs,
    measure: &Measure,
) -> Result<Figures, BenchError> {
    let instance = Instance::new(programs).map_err(BenchError::SetUp)?;
    let figures = tokio::select! {
        figures = take(measure, &instance) => figures,
        stopped = interrupted() => Err(stopped.map_or_else(BenchError::SetUp, |()| BenchError::Interrupted)),
    };
    instance.end().await?;
    figures
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

async fn take(measure: &Measure, instance: &Instance) -> Result<Figures, BenchError> {
    Ok(match *measure {
        Measure::Kill { kills } => Figures::Kill(kill::measure(instance, kills).await?),
        Measure::Many { servers, seconds } => {
            let watched = Duration::from_secs(seconds);
            Figures::Many(many::measure(instance, servers, watched).await?)
        }
        Measure::Ls { servers, times } => {
            Figures::Ls(list::measure(instance, servers, times).await?)
        }
    })
}

fn store(path: &Path, figures: &Figures) -> Result<(), BenchError> {
    let text = serde_json::to_string_pretty(figures).map_err(io::Error::from);
    text.and_then(|text| fs::write(path, text + "\n"))
        .map_err(|source| BenchError::Store { path: path.to_owned(), source })
}
