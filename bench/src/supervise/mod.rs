//! How fast and how cheaply a built Mainstay keeps servers alive, seen from outside.
//!
//! Each measure runs against a Mainstay of its own ([`Instance`]).

pub(crate) mod kill;
mod list;
mod many;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::rig::{self, BenchError, Instance, Programs, Table, unless_interrupted, with_instance};

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
    let figures = rig::block_on(with_instance(&programs, async |instance| {
        unless_interrupted(take(&options.measure, instance)).await
    }))?;
    rig::store(options.out.as_deref(), &figures)?;
    Ok(figures.table().to_string())
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
