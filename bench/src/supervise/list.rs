//! The wall time of `mainstay ls`, from the start of its process to its end.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::many::add_servers;
use crate::rig::{BenchError, Instance, Table};
use crate::stats::Percentiles;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    times: u32,
    servers: u32,
    one: Percentiles,
    many: Percentiles,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        Table::of_times(format!("mainstay ls, {} times", self.times))
            .times("1 server", self.one)
            .times(format!("{} servers", self.servers), self.many)
    }
}

pub(super) async fn measure(
    instance: &Instance,
    servers: u32,
    times: u32,
) -> Result<Figures, BenchError> {
    add_servers(instance, 0..1).await?;
    let one = wall_times(instance, times).await?;
    add_servers(instance, 1..servers).await?;
    let many = wall_times(instance, times).await?;
    Ok(Figures { times, servers, one, many })
}

async fn wall_times(instance: &Instance, times: u32) -> Result<Percentiles, BenchError> {
    let mut taken = Vec::<Duration>::new();
    for _ in 0..times {
        let began = Instant::now();
        instance.mainstay(&["ls"]).await?;
        taken.push(began.elapsed());
    }
    Ok(Percentiles::of(taken))
}
