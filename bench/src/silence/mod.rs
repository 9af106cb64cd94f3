//! Which silent servers a built Mainstay kills, and how soon.
//!
//! - `alive`: many servers that are silent and not hung; a kill is a fault, and so is a call without its answer.
//! - `detection`: servers that deadlock at random moments.

mod alive;
mod client;
mod detection;
mod kind;
mod late;

use std::path::PathBuf;

use serde::Serialize;

use crate::load::Endpoint;
use crate::rig::{
    self, BenchError, Instance, Programs, Upstream, as_str, unless_interrupted, with_instance,
};

/// Measures which silent servers are killed.
#[derive(Debug, clap::Parser)]
#[command(name = "silence-bench", version)]
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
    /// Servers that are silent and not hung: is any of them killed?
    Alive(alive::Options),
    /// Servers that deadlock: how soon are they killed?
    Detection(detection::Options),
}

#[derive(Debug, Serialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
enum Figures {
    Alive(alive::Figures),
    Detection(detection::Figures),
}

/// The figures for people, and whether all went well.
#[derive(Debug)]
pub struct Report {
    /// Small tables, and what went wrong.
    pub text: String,
    /// Whether nothing happened that must not, and the goal was reached.
    pub clean: bool,
}

/// Measures, and stores the figures if asked to.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let programs = Programs::beside_this(options.mainstay.as_deref()).map_err(BenchError::SetUp)?;
    let figures = rig::block_on(with_instance(&programs, async |instance| {
        unless_interrupted(take(&options.measure, instance)).await
    }))?;
    rig::store(options.out.as_deref(), &figures)?;
    Ok(match figures {
        Figures::Alive(figures) => Report { text: figures.text(), clean: figures.is_clean() },
        Figures::Detection(figures) => Report { text: figures.text(), clean: figures.is_clean() },
    })
}

async fn take(measure: &Measure, instance: &Instance) -> Result<Figures, BenchError> {
    Ok(match measure {
        Measure::Alive(options) => Figures::Alive(alive::measure(instance, options).await?),
        Measure::Detection(options) => {
            Figures::Detection(detection::measure(instance, options).await?)
        }
    })
}

/// Adds a fixture. It counts as stable at once, so no end of it is ever a second failure.
async fn add(
    instance: &Instance,
    name: &str,
    upstream: Upstream,
    options: &[&str],
    flags: &[&str],
) -> Result<(), BenchError> {
    let arguments = instance.run_arguments(name, upstream)?;
    let (run, rest) = arguments.split_at(2);
    let words = [&as_str(run), options, &as_str(rest), flags].concat();
    instance.mainstay(&words).await.map(drop)
}

fn endpoint(url: &str) -> Result<Endpoint, BenchError> {
    let url = url.parse().expect("an address and a path make a URL");
    Ok(Endpoint::new(&url)?)
}
