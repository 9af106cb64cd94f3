//! How soon a built Mainstay notices and makes good the death of a container, beside what Docker's own
//! restart policy does in the same run.
//!
//! Needs an engine of its own and has to run inside its network namespace; `scripts/bench docker` sees
//! to both.

mod back;
mod engine;
mod mute;
mod notice;
mod resume;

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::rig::{self, BenchError, Programs, Table, unless_interrupted, with_instance};
use crate::stats::Percentiles;
use engine::Wire;
pub(crate) use engine::{Engine, IMAGE, host};
use mute::Mute;
pub(crate) use resume::end as end_container;

/// Measures how Mainstay keeps containers alive.
#[derive(Debug, clap::Parser)]
#[command(name = "docker-bench", version)]
pub struct Options {
    #[command(flatten)]
    engine: Engine,
    #[command(flatten)]
    counts: Counts,
    /// The program to measure; by default `mainstay` beside this program.
    #[arg(long, value_name = "FILE")]
    mainstay: Option<PathBuf>,
    /// Also write the figures to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// How often.
#[derive(Debug, Clone, Serialize, clap::Args)]
struct Counts {
    /// Kills of which the notice is timed.
    #[arg(long, default_value_t = 50)]
    noticed: u32,
    /// The same with every event, and the end of every attachment, suppressed.
    #[arg(long, default_value_t = 5)]
    silent: u32,
    /// Kills after which a call is timed, over each transport.
    #[arg(long, default_value_t = 30)]
    resumed: u32,
    /// Kills that are left to Docker's restart policy, each after ten quiet seconds.
    #[arg(long, default_value_t = 10)]
    policy: u32,
    /// Servers that wait for their engine.
    #[arg(long, default_value_t = 20)]
    servers: u32,
    /// How often the engine goes away and comes back.
    #[arg(long, default_value_t = 3)]
    outages: u32,
}

/// What was found out.
#[derive(Debug, Serialize)]
struct Figures {
    counts: Counts,
    noticed: Percentiles,
    silent: Percentiles,
    resumed_stdio: Percentiles,
    resumed_http: Percentiles,
    start_stdio: Percentiles,
    start_http: Percentiles,
    docker_policy: Percentiles,
    back: back::Figures,
}

impl Figures {
    fn tables(&self) -> String {
        let Counts { noticed, silent, resumed, policy, outages, .. } = self.counts;
        let kills = Table::of_times("kill -9 of a container")
            .times(format!("noticed ({noticed})"), self.noticed)
            .times(format!("noticed by the list alone ({silent})"), self.silent)
            .times(format!("next answer in the session, stdio ({resumed})"), self.resumed_stdio)
            .times(format!("next answer in the session, HTTP ({resumed})"), self.resumed_http)
            .times(format!("Docker's restart policy, session lost ({policy})"), self.docker_policy)
            .times("docker start to initialize, stdio", self.start_stdio)
            .times("docker start to initialize, HTTP", self.start_http);
        let back::Figures { servers, all_ready, plain_start } = &self.back;
        let outage = Table::of_times(format!("engine away and back ({outages})"))
            .times(format!("all {servers} servers ready"), *all_ready)
            .times(format!("docker start of {servers} containers"), *plain_start);
        let mut text = kills.to_string();
        // Writing to a string cannot fail.
        write!(text, "\n\n{outage}").ok();
        text
    }
}

/// Measures, stores the figures if asked to, and returns them as small tables.
pub fn run(options: &Options) -> Result<String, BenchError> {
    let programs = Programs::beside_this(options.mainstay.as_deref()).map_err(BenchError::SetUp)?;
    let figures = rig::block_on(take(&programs, options))?;
    rig::store(options.out.as_deref(), &figures)?;
    Ok(figures.tables())
}

async fn take(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    let Options { engine, counts, .. } = options;
    let direct = programs.clone().with_var("DOCKER_HOST", engine::host(&engine.socket()));
    let noticed = with_instance(&direct, async |instance| {
        unless_interrupted(notice::measure(engine, instance, Wire::Stdio, counts.noticed)).await
    });
    let resumed = async |wire| {
        with_instance(&direct, async |instance| {
            unless_interrupted(resume::with_mainstay(engine, instance, wire, counts.resumed)).await
        })
        .await
    };
    Ok(Figures {
        counts: counts.clone(),
        noticed: noticed.await?,
        silent: silent(programs, engine, counts.silent).await?,
        resumed_stdio: resumed(Wire::Stdio).await?,
        resumed_http: resumed(Wire::Http).await?,
        start_stdio: resume::server_alone(engine, Wire::Stdio, counts.resumed).await?,
        start_http: resume::server_alone(engine, Wire::Http, counts.resumed).await?,
        docker_policy: resume::with_docker(engine, counts.policy).await?,
        back: with_instance(&direct, async |instance| {
            let measure = back::measure(engine, instance, counts.servers, counts.outages);
            unless_interrupted(measure).await
        })
        .await?,
    })
}

/// How long it takes if neither an event nor the end of an attachment tells of the death.
async fn silent(
    programs: &Programs,
    engine: &Engine,
    kills: u32,
) -> Result<Percentiles, BenchError> {
    let mute = Mute::before(engine.socket()).map_err(BenchError::SetUp)?;
    let muted = programs.clone().with_var("DOCKER_HOST", engine::host(&mute.socket()));
    with_instance(&muted, async |instance| {
        unless_interrupted(notice::measure(engine, instance, Wire::Http, kills)).await
    })
    .await
}
