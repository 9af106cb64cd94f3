//! What many idle servers cost: the daemon's CPU time and memory, and the shims' memory.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::procfs::{cpu_time, pss_kib};
use crate::rig::{BenchError, Instance, Table, Upstream, become_quiet};

const START_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    servers: u32,
    /// Whether the daemon came to rest before it was measured.
    quiet: bool,
    watched_s: f64,
    daemon_cpu_percent: f64,
    daemon_pss_kib: u64,
    shims: usize,
    shim_pss_kib_mean: u64,
    shim_pss_kib_max: u64,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        let quiet = if self.quiet { "idle" } else { "never idle" };
        let kib = |kib: u64| vec![format!("{kib} KiB")];
        Table::new(format!("{} servers, {quiet}", self.servers), &["value"])
            .row("daemon CPU", vec![format!("{:.2} % of a core", self.daemon_cpu_percent)])
            .row("daemon PSS", kib(self.daemon_pss_kib))
            .row("shims", vec![self.shims.to_string()])
            .row("shim PSS, mean", kib(self.shim_pss_kib_mean))
            .row("shim PSS, max", kib(self.shim_pss_kib_max))
    }
}

pub(super) async fn measure(
    instance: &Instance,
    servers: u32,
    watched: Duration,
) -> Result<Figures, BenchError> {
    add_servers(instance, 0..servers).await?;
    let daemon = instance.daemon_pid().await?;
    let quiet = become_quiet(daemon).await?;
    let (began, before) = (Instant::now(), cpu_time(daemon)?);
    sleep(watched).await;
    let used = cpu_time(daemon)?.saturating_sub(before);
    let watched_s = began.elapsed().as_secs_f64();
    let shims = shim_pss(instance)?;
    Ok(Figures {
        servers,
        quiet,
        watched_s,
        daemon_cpu_percent: used.as_secs_f64() / watched_s * 100.0,
        daemon_pss_kib: pss_kib(daemon)?,
        shims: shims.len(),
        shim_pss_kib_mean: mean(&shims),
        shim_pss_kib_max: shims.iter().copied().max().unwrap_or(0),
    })
}

/// Adds the servers with these numbers and waits until all up to the last are ready.
pub(super) async fn add_servers(
    instance: &Instance,
    numbers: std::ops::Range<u32>,
) -> Result<(), BenchError> {
    let count = numbers.end as usize;
    for number in numbers {
        instance.add(&format!("s{number}"), Upstream::Stdio).await?;
    }
    instance.ready_servers(count, START_LIMIT).await.map(drop)
}

/// What each shim takes, together with its guard, which has the same command line.
fn shim_pss(instance: &Instance) -> Result<Vec<u64>, BenchError> {
    let state = instance.state();
    let state = state.to_string_lossy();
    let processes = instance.processes()?;
    let mut shims = BTreeMap::new();
    for process in &processes {
        if process.command.contains("__shim") && process.command.contains(state.as_ref()) {
            *shims.entry(&process.command).or_default() += pss_kib(process.pid)?;
        }
    }
    Ok(shims.into_values().collect())
}

fn mean(values: &[u64]) -> u64 {
    let count = u64::try_from(values.len()).unwrap_or(u64::MAX);
    values.iter().sum::<u64>().checked_div(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_nothing_is_nothing() {
        assert_eq!(mean(&[]), 0);
        assert_eq!(mean(&[10, 20]), 15);
    }
}
