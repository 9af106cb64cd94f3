//! From the return of an engine to the readiness of all its servers.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::engine::{Engine, Wire};
use crate::rig::{BenchError, Instance};
use crate::stats::Percentiles;
use crate::supervise::kill::wall_clock;

const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) servers: u32,
    /// From the engine's first answer to the readiness of the last server.
    pub(super) all_ready: Percentiles,
    /// What `docker start` of as many plain containers takes.
    pub(super) plain_start: Percentiles,
}

/// The engine ends in peace, and its containers with it.
pub(super) async fn measure(
    engine: &Engine,
    instance: &Instance,
    servers: u32,
    rounds: u32,
) -> Result<Figures, BenchError> {
    let plain_start = Percentiles::of(vec![plain_start(engine, servers).await?]);
    for number in 0..servers {
        engine.add(instance, &format!("s{number}"), Wire::Stdio).await?;
    }
    let mut times = Vec::new();
    for _ in 0..rounds {
        engine.stop().await?;
        nobody_ready(instance).await?;
        let back = async {
            engine.answers().await;
            wall_clock()
        };
        let (started, back) = tokio::join!(engine.start(), back);
        started?;
        times.push(last_ready(instance, servers, back).await?);
    }
    Ok(Figures { servers, all_ready: Percentiles::of(times), plain_start })
}

async fn nobody_ready(instance: &Instance) -> Result<(), BenchError> {
    let deadline = Instant::now() + LIMIT;
    while instance.servers().await?.iter().any(|server| server.status == "running") {
        if Instant::now() >= deadline {
            return Err(BenchError::Late { what: "the outage".to_owned(), limit: LIMIT });
        }
        sleep(POLL).await;
    }
    Ok(())
}

async fn last_ready(
    instance: &Instance,
    servers: u32,
    back: Timestamp,
) -> Result<Duration, BenchError> {
    let count = usize::try_from(servers).unwrap_or(usize::MAX);
    let ready = instance.ready_servers(count, LIMIT).await?;
    let last = ready.iter().filter_map(|server| server.ready_at).max().unwrap_or(back);
    Ok(Duration::try_from(last.duration_since(back)).unwrap_or_default())
}

async fn plain_start(engine: &Engine, count: u32) -> Result<Duration, BenchError> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(engine.container(&["create", "--interactive"], &[]).await?);
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let begun = Instant::now();
    engine.docker(&[&["start"], &ids[..]].concat()).await?;
    let took = begun.elapsed();
    engine.docker(&[&["rm", "--force"], &ids[..]].concat()).await?;
    Ok(took)
}
