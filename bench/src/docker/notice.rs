//! From the death of a container to the event that tells of it.

use std::time::Duration;

use super::engine::{Engine, Wire};
use crate::rig::{BenchError, Instance, kill};
use crate::stats::Percentiles;
use crate::supervise::kill::{NAME, recovery, wall_clock};

/// Kills the container of a server again and again; times run from just before the kill to the time
/// that Mainstay's event `ended` bears.
pub(super) async fn measure(
    engine: &Engine,
    instance: &Instance,
    wire: Wire,
    kills: u32,
) -> Result<Percentiles, BenchError> {
    engine.add(instance, NAME, wire).await?;
    let mut events = instance.follow()?;
    let mut times: Vec<Duration> = Vec::new();
    for number in 1..=kills {
        let pid = engine.ready_pid(instance, NAME).await?;
        let killed_at = wall_clock();
        kill(pid);
        times.push(recovery(&mut events, killed_at, number).await?.noticed);
    }
    Ok(Percentiles::of(times))
}
