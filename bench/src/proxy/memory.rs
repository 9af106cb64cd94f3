//! What sessions cost in memory: the daemon's PSS, idle, busy, and with many idle sessions.

use std::time::Duration;

use serde::Serialize;

use super::peers::endpoint;
use crate::load::{Crew, Endpoint, LoadError, Tool, Transport as _, Work};
use crate::procfs::pss_kib;
use crate::rig::{BenchError, Instance, Programs, Table, Upstream, become_quiet, with_instance};

const SERVER: &str = "fixture";
const START_LIMIT: Duration = Duration::from_secs(30);
const BUSY_SESSIONS: u32 = 256;
/// How often the memory of the busy daemon is looked at.
const SAMPLES: u32 = 5;
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    /// How many sessions without a stream.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    sessions: u32,
    /// How many sessions with an open GET stream.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    idle_kib: u64,
    busy_sessions: u32,
    busy_kib: u64,
    sessions: u32,
    bytes_per_session: u64,
    streams: u32,
    bytes_per_stream: u64,
}

impl Figures {
    pub(super) fn table(&self) -> Table {
        let mib = |kib: u64| vec![format!("{}.{} MiB", kib / 1024, kib % 1024 * 10 / 1024)];
        let bytes = |bytes: u64| vec![format!("{bytes} bytes")];
        Table::new("memory of the daemon (PSS)", &["value"])
            .row("idle, one server", mib(self.idle_kib))
            .row(format!("{} busy sessions", self.busy_sessions), mib(self.busy_kib))
            .row(format!("an idle session, of {}", self.sessions), bytes(self.bytes_per_session))
            .row(format!("one with a stream, of {}", self.streams), bytes(self.bytes_per_stream))
    }
}

/// Memory that a daemon has used once it may keep, so the busy one is another than the idle one.
pub(super) async fn measure(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    let busy_kib = with_instance(programs, async |instance| {
        let (endpoint, daemon) = start(instance).await?;
        busy_pss(&endpoint, daemon).await
    })
    .await?;
    with_instance(programs, async |instance| idle(instance, options, busy_kib).await).await
}

async fn start(instance: &Instance) -> Result<(Endpoint, u32), BenchError> {
    instance.add(SERVER, Upstream::Stdio).await?;
    instance.ready_pid(SERVER, START_LIMIT).await?;
    Ok((endpoint(&instance.url(SERVER))?, instance.daemon_pid().await?))
}

async fn idle(
    instance: &Instance,
    options: &Options,
    busy_kib: u64,
) -> Result<Figures, BenchError> {
    let (endpoint, daemon) = start(instance).await?;
    let idle_kib = quiet_pss(daemon).await?;
    open_sessions(&endpoint, options.sessions).await?;
    let with_sessions = quiet_pss(daemon).await?;
    let streams = open_streams(&endpoint, options.streams).await?;
    let with_streams = quiet_pss(daemon).await?;
    drop(streams);
    Ok(Figures {
        idle_kib,
        busy_sessions: BUSY_SESSIONS,
        busy_kib,
        sessions: options.sessions,
        bytes_per_session: each(idle_kib, with_sessions, options.sessions),
        streams: options.streams,
        bytes_per_stream: each(with_sessions, with_streams, options.streams),
    })
}

async fn quiet_pss(daemon: u32) -> Result<u64, BenchError> {
    become_quiet(daemon).await?;
    Ok(pss_kib(daemon)?)
}

/// Opens sessions and leaves them: their connections are closed, they themselves are not.
async fn open_sessions(endpoint: &Endpoint, count: u32) -> Result<(), LoadError> {
    for _ in 0..count {
        endpoint.open().await.map_err(LoadError::Open)?;
    }
    Ok(())
}

/// Sessions whose stream stays open as long as what is returned.
async fn open_streams(endpoint: &Endpoint, count: u32) -> Result<Vec<impl Sized>, LoadError> {
    let mut open = Vec::new();
    for _ in 0..count {
        let mut session = endpoint.open().await.map_err(LoadError::Open)?;
        let stream = endpoint.listen(&mut session).await.map_err(LoadError::Open)?;
        open.push((session, stream));
    }
    Ok(open)
}

/// The most that the daemon takes while all sessions call without a pause.
async fn busy_pss(endpoint: &Endpoint, daemon: u32) -> Result<u64, BenchError> {
    let work = Work {
        sessions: BUSY_SESSIONS,
        tool: Tool::Echo,
        tool_prefix: String::new(),
        size: 64,
        timeout: START_LIMIT,
    };
    let mut crew = Crew::open(endpoint, &work).await?;
    let mut most = 0;
    for _ in 0..SAMPLES {
        let report = crew.slice(Duration::ZERO, SAMPLE_EVERY, &[]).await?;
        if !report.is_clean() {
            return Err(BenchError::Wrong(report.render(false)));
        }
        most = most.max(pss_kib(daemon)?);
    }
    crew.close().await;
    Ok(most)
}

/// What each of `count` things takes, if they take all that came on top.
fn each(before_kib: u64, after_kib: u64, count: u32) -> u64 {
    after_kib.saturating_sub(before_kib) * 1024 / u64::from(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_on_top_is_shared_out() {
        assert_eq!(each(1_000, 3_000, 1_000), 2_048);
        assert_eq!(each(3_000, 1_000, 1_000), 0);
    }
}
