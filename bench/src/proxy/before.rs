//! Compares this Mainstay with an earlier build, in paired slices of the same run.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::contest::{Contestant, Outcome, Rules, hold};
use super::throughput::mainstay;
use crate::rig::{
    BenchError, Instance, Programs, Table, Upstream, unless_interrupted, with_instance,
};

const SESSIONS: u32 = 32;
const BEFORE: &str = "before";

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// The earlier `mainstay`.
    #[arg(long, value_name = "FILE")]
    before: PathBuf,
    /// How many cycles; in each of them, each program has one slice.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(6..))]
    cycles: u32,
    /// The length of a slice, in milliseconds.
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(300..))]
    slice: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    http: Outcome,
    stdio: Outcome,
}

impl Figures {
    pub(super) fn tables(&self) -> Vec<Table> {
        vec![self.http.table("HTTP upstream"), self.stdio.table("stdio upstream")]
    }
}

pub(super) async fn measure(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    let earlier = Programs::beside_this(Some(&options.before)).map_err(BenchError::SetUp)?;
    with_instance(&earlier, async |before| {
        with_instance(programs, async |after| {
            unless_interrupted(contests(before, after, options)).await
        })
        .await
    })
    .await
}

async fn contests(
    before: &Instance,
    after: &Instance,
    options: &Options,
) -> Result<Figures, BenchError> {
    Ok(Figures {
        http: contest(before, after, options, ("http", Upstream::Http)).await?,
        stdio: contest(before, after, options, ("stdio", Upstream::Stdio)).await?,
    })
}

async fn contest(
    before: &Instance,
    after: &Instance,
    options: &Options,
    (server, upstream): (&'static str, Upstream),
) -> Result<Outcome, BenchError> {
    let contestants = [
        Contestant { name: BEFORE, ..mainstay(before, server, upstream).await? },
        Contestant { name: "now", ..mainstay(after, server, upstream).await? },
    ];
    let rules = Rules {
        sessions: SESSIONS,
        cycles: options.cycles,
        slice: Duration::from_millis(options.slice),
        baseline: BEFORE,
    };
    hold(&contestants, rules).await
}
