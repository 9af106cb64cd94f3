//! Whether a state on disk survives whatever kills the one who changes it.
//!
//! First the store alone, in a process that is killed at random moments ([`deaths`]), then a whole daemon
//! that is killed while commands change what it keeps ([`daemon`]). Both end at the first state that cannot
//! be read and at the first acknowledged change that is lost, so figures tell of none.

mod daemon;
mod deaths;

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::rig::{self, BenchError, Programs, unless_interrupted, with_instance};

/// Kills whoever changes the state, again and again.
#[derive(Debug, clap::Parser)]
#[command(name = "state-bench", version)]
pub struct Options {
    /// The unit tests of mainstay-daemon, as a program: they let processes die while they change a store.
    #[arg(long, value_name = "FILE")]
    tests: PathBuf,
    /// How many of them die.
    #[arg(long, default_value_t = 10_000)]
    deaths: u32,
    /// How often a whole daemon dies.
    #[arg(long, default_value_t = 50)]
    daemons: u32,
    /// The program to measure; by default `mainstay` beside this program.
    #[arg(long, value_name = "FILE")]
    mainstay: Option<PathBuf>,
    /// Also write the figures to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum StateBenchError {
    /// The surroundings could not be set up.
    #[error("the tests could not be run")]
    SetUp(#[source] io::Error),
    /// A state was unreadable, or an acknowledged change was lost.
    #[error("a death did harm (seed {seed}): {said}")]
    Death {
        /// Repeats it.
        seed: u64,
        /// What the tests said.
        said: String,
    },
    /// The daemon could not be measured, or has lost something.
    #[error("the daemon")]
    Daemon(#[from] BenchError),
}

#[derive(Debug, Serialize)]
struct Figures {
    store: deaths::Figures,
    daemon: daemon::Figures,
}

/// Measures, stores the figures if asked to, and returns them in words.
pub fn run(options: &Options) -> Result<String, StateBenchError> {
    let store = deaths::measure(&options.tests, options.deaths)?;
    let programs = Programs::beside_this(options.mainstay.as_deref()).map_err(BenchError::SetUp)?;
    let daemon = rig::block_on(with_instance(&programs, async |instance| {
        unless_interrupted(daemon::measure(instance, options.daemons)).await
    }))?;
    let figures = Figures { store, daemon };
    rig::store(options.out.as_deref(), &figures)?;
    Ok(format!("{}\n{}", figures.store, figures.daemon))
}
