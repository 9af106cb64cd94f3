//! From nothing to the first answer: no daemon runs, no state exists, and `mainstay run` is started.

use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::peers::endpoint;
use crate::load::{Transport as _, start_time};
use crate::rig::{
    BenchError, Instance, Programs, Table, Upstream, unless_interrupted, with_instance,
};
use crate::stats::Percentiles;

const SERVER: &str = "fixture";
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How long to wait before trying again to connect.
const RETRY: Duration = Duration::from_micros(500);

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// How many times.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    times: u32,
    answered: Percentiles,
    server_alone: Percentiles,
    /// The difference of the medians.
    overhead_ms: f64,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        Table::of_times(format!("cold start, {} times", self.times))
            .times("run to answer", self.answered)
            .times("server alone", self.server_alone)
            .row("overhead", vec![format!("{:.2} ms", self.overhead_ms)])
    }
}

/// The two kinds of start take turns, so that both meet the same machine.
pub(super) async fn measure(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    let (mut answered, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..options.times {
        let (ours, its) = with_instance(programs, async |instance| {
            unless_interrupted(async {
                let alone = server_alone(instance).await?;
                Ok((run_to_answer(instance).await?, alone))
            })
            .await
        })
        .await?;
        answered.push(ours);
        alone.push(its);
    }
    let (answered, server_alone) = (Percentiles::of(answered), Percentiles::of(alone));
    let overhead_ms = (answered.p50_us - server_alone.p50_us) / 1e3;
    Ok(Figures { times: options.times, answered, server_alone, overhead_ms })
}

/// From the start of the fixture's process to its answer to `initialize`.
pub(super) async fn server_alone(instance: &Instance) -> Result<Duration, BenchError> {
    let command = [instance.fixture().to_string_lossy().into_owned()];
    Ok(start_time(&command).await?)
}

/// From the start of `mainstay run` to the answer to `initialize` over HTTP. A client that does not
/// wait for the command to end would see this.
async fn run_to_answer(instance: &Instance) -> Result<Duration, BenchError> {
    let endpoint = endpoint(&instance.url(SERVER))?;
    let words = instance.run_arguments(SERVER, Upstream::Stdio)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = instance.command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut run = command
        .spawn()
        .map_err(|source| BenchError::Start { program: "mainstay run".to_owned(), source })?;
    let answered = timeout(LIMIT, async {
        loop {
            // Refused at first, then perhaps unknown for a moment.
            if let Ok(session) = endpoint.open().await {
                let answered = begun.elapsed();
                endpoint.close(session).await;
                return answered;
            }
            sleep(RETRY).await;
        }
    });
    let answered = answered
        .await
        .map_err(|_| BenchError::Late { what: "the first answer".to_owned(), limit: LIMIT })?;
    run.wait().await.map_err(BenchError::SetUp)?;
    Ok(answered)
}
