//! What a proxy costs: calls per second, CPU and latency, beside other proxies.
//!
//! With an HTTP upstream the yardstick is nginx, which knows nothing of MCP; with a stdio upstream
//! it is crates.io's mcp-proxy, the fastest bridge that we know.

use std::time::Duration;

use serde::Serialize;

use super::contest::{Contestant, Outcome, Rules, hold};
use super::peers::{Peer, Peers, endpoint};
use crate::procfs::parent;
use crate::rig::{
    BenchError, Instance, Programs, Table, Upstream, unless_interrupted, with_instance,
};

const HTTP: &str = "http";
const STDIO: &str = "stdio";
const START_LIMIT: Duration = Duration::from_secs(60);
/// The sessions of the contests with an HTTP upstream.
const HTTP_SESSIONS: [u32; 2] = [32, 256];
/// The sessions that share a stdio upstream.
const STDIO_SESSIONS: u32 = 32;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    peers: Peers,
    /// How many cycles; in each of them, each contestant has one slice.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    cycles: u32,
    /// The length of a slice, in milliseconds.
    #[arg(long, default_value_t = 1600, value_parser = clap::value_parser!(u64).range(300..))]
    slice: u64,
    /// Compare only the others.
    #[arg(long)]
    without_mainstay: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    http: Vec<Outcome>,
    stdio: Outcome,
}

impl Figures {
    pub(super) fn tables(&self) -> Vec<Table> {
        let http = self.http.iter().map(|outcome| outcome.table("HTTP upstream"));
        http.chain([self.stdio.table("stdio upstream")]).collect()
    }
}

pub(super) async fn measure(programs: &Programs, options: &Options) -> Result<Figures, BenchError> {
    with_instance(programs, async |instance| {
        let mut running = Running::default();
        let figures = contests(instance, options, &mut running);
        let figures = unless_interrupted(figures).await;
        for peer in running.peers {
            peer.end().await;
        }
        figures
    })
    .await
}

/// The programs to be ended, whatever happens.
#[derive(Default)]
struct Running {
    peers: Vec<Peer>,
}

impl Running {
    /// Makes a program a contestant.
    fn admit(
        &mut self,
        instance: &Instance,
        name: &'static str,
        tool_prefix: &'static str,
        peer: Peer,
    ) -> Result<Contestant, BenchError> {
        let (endpoint, pids) = (endpoint(&peer.url), peer.pids(instance));
        self.peers.push(peer);
        Ok(Contestant { name, endpoint: endpoint?, tool_prefix, pids: pids? })
    }
}

async fn contests(
    instance: &Instance,
    options: &Options,
    running: &mut Running,
) -> Result<Figures, BenchError> {
    let rules = |sessions, baseline| Rules {
        sessions,
        cycles: options.cycles,
        slice: Duration::from_millis(options.slice),
        baseline,
    };
    let mut contestants = http_contestants(instance, &options.peers, running).await?;
    let mut bridges = stdio_contestants(instance, &options.peers, running).await?;
    if !options.without_mainstay {
        contestants.push(mainstay(instance, HTTP, Upstream::Http).await?);
        bridges.push(mainstay(instance, STDIO, Upstream::Stdio).await?);
    }
    let mut http = Vec::new();
    for sessions in HTTP_SESSIONS {
        http.push(hold(&contestants, rules(sessions, "nginx")).await?);
    }
    let stdio = hold(&bridges, rules(STDIO_SESSIONS, "mcp-proxy")).await?;
    Ok(Figures { http, stdio })
}

async fn http_contestants(
    instance: &Instance,
    peers: &Peers,
    running: &mut Running,
) -> Result<Vec<Contestant>, BenchError> {
    let fixture = Peer::fixture(instance).await?;
    let upstream = fixture.address();
    let mut contestants = vec![running.admit(instance, "direct", "", fixture)?];
    if let Some(program) = &peers.nginx {
        let nginx = Peer::nginx(instance, program, upstream).await?;
        contestants.push(running.admit(instance, "nginx", "", nginx)?);
    }
    Ok(contestants)
}

async fn stdio_contestants(
    instance: &Instance,
    peers: &Peers,
    running: &mut Running,
) -> Result<Vec<Contestant>, BenchError> {
    let mut contestants = Vec::new();
    if let Some(program) = &peers.mcp_proxy {
        let bridge = Peer::mcp_proxy(instance, program).await?;
        contestants.push(running.admit(instance, "mcp-proxy", "fx/", bridge)?);
    }
    if let Some(script) = &peers.supergateway {
        let bridge = Peer::supergateway(instance, script).await?;
        contestants.push(running.admit(instance, "supergateway", "", bridge)?);
    }
    Ok(contestants)
}

/// Mainstay with one server. Its price is the daemon's and, for a stdio server, the shim's, which
/// is the server's parent.
pub(super) async fn mainstay(
    instance: &Instance,
    server: &'static str,
    upstream: Upstream,
) -> Result<Contestant, BenchError> {
    instance.add(server, upstream).await?;
    let pid = instance.ready_pid(server, START_LIMIT).await?;
    let mut pids = vec![instance.daemon_pid().await?];
    match upstream {
        Upstream::Http => {}
        Upstream::Stdio => pids.push(parent(pid)?),
    }
    let endpoint = endpoint(&instance.url(server))?;
    Ok(Contestant { name: "mainstay", endpoint, tool_prefix: "", pids })
}
