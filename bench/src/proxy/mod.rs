//! What a built Mainstay costs and bears as a proxy, seen from outside, beside its peers.

mod before;
mod cold;
mod contest;
mod floods;
mod instructions;
mod killload;
mod memory;
mod peers;
mod throughput;

use std::path::PathBuf;

use serde::Serialize;

use crate::rig::{self, BenchError, Programs, Table};

/// Measures how Mainstay proxies.
#[derive(Debug, clap::Parser)]
#[command(name = "proxy-bench", version)]
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
    /// Calls per second, CPU and latency, in paired slices with other proxies.
    Proxy(throughput::Options),
    /// Calls per second and CPU, in paired slices with an earlier Mainstay.
    Before(before::Options),
    /// Instructions per call, counted by valgrind.
    Instructions(instructions::Options),
    /// What a well-behaved client notices of floods.
    Floods(floods::Options),
    /// The memory of the daemon, idle, busy, and per idle session.
    Memory(memory::Options),
    /// From `mainstay run` without a daemon to the first answer.
    Cold(cold::Options),
    /// Kill the server again and again under load: does a client notice?
    Killload(killload::Options),
}

/// What a measure found out.
#[derive(Debug, Serialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
enum Figures {
    Proxy(throughput::Figures),
    Before(before::Figures),
    Instructions(instructions::Figures),
    Floods(floods::Figures),
    Memory(memory::Figures),
    Cold(cold::Figures),
    Killload(killload::Figures),
}

impl Figures {
    fn tables(&self) -> Vec<Table> {
        match self {
            Self::Proxy(figures) => figures.tables(),
            Self::Before(figures) => figures.tables(),
            Self::Instructions(figures) => vec![figures.table()],
            Self::Floods(figures) => vec![figures.table()],
            Self::Memory(figures) => vec![figures.table()],
            Self::Cold(figures) => vec![figures.table()],
            Self::Killload(figures) => figures.tables(),
        }
    }
}

/// Measures, stores the figures if asked to, and returns them as small tables.
pub fn run(options: &Options) -> Result<String, BenchError> {
    let programs = Programs::beside_this(options.mainstay.as_deref()).map_err(BenchError::SetUp)?;
    let figures = rig::block_on(take(&programs, &options.measure))?;
    rig::store(options.out.as_deref(), &figures)?;
    let tables: Vec<_> = figures.tables().iter().map(Table::to_string).collect();
    Ok(tables.join("\n\n"))
}

async fn take(programs: &Programs, measure: &Measure) -> Result<Figures, BenchError> {
    Ok(match measure {
        Measure::Proxy(options) => Figures::Proxy(throughput::measure(programs, options).await?),
        Measure::Before(options) => Figures::Before(before::measure(programs, options).await?),
        Measure::Instructions(options) => {
            Figures::Instructions(instructions::measure(programs, options).await?)
        }
        Measure::Floods(options) => Figures::Floods(floods::measure(programs, options).await?),
        Measure::Memory(options) => Figures::Memory(memory::measure(programs, options).await?),
        Measure::Cold(options) => Figures::Cold(cold::measure(programs, options).await?),
        Measure::Killload(options) => {
            Figures::Killload(killload::measure(programs, options).await?)
        }
    })
}
