//! Faults in a random order, which a seed repeats, while clients of all protocol versions call without a pause. At the
//! end their history is checked: one answer to each call, nothing executed twice, no acknowledged effect missing, no
//! answer in the wrong session, no session lost, nothing left over.

mod clients;
mod faults;
mod history;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use self::clients::{Client, Record};
use self::faults::{Fault, Random};
use self::history::Counts;
use crate::procfs::parent;
use crate::rig::{self, BenchError, Instance, Programs, Upstream, kill, unless_interrupted};
use crate::seeds::{copy_program, newer_program};

/// The servers that are harmed, and one that is not.
const SERVERS: [(&str, Upstream); 2] = [("lines", Upstream::Stdio), ("web", Upstream::Http)];
const UNHARMED: &str = "bystander";

const VERSIONS: [&str; 3] = ["2024-11-05", "2025-06-18", "2025-11-25"];

/// How long a process is frozen.
const FROZEN: Duration = Duration::from_millis(1500);

/// How long commands are tried again after a fault.
const BACK: Duration = Duration::from_secs(20);

/// How many findings are shown.
const SHOWN: usize = 20;

/// Kills and restarts everything in a random order while clients call, and checks what they were told.
#[derive(Debug, clap::Parser)]
#[command(name = "chaos", version)]
pub struct Options {
    /// The same seed gives the same faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long to go on.
    #[arg(long, default_value_t = 2.0, value_name = "N")]
    minutes: f64,
    /// The program to test; by default `mainstay` beside this program. A copy of it is used.
    #[arg(long, value_name = "FILE")]
    mainstay: Option<PathBuf>,
}

/// Plays and checks. Says whether nothing was found.
pub fn run(options: &Options, out: &mut impl Write) -> Result<bool, BenchError> {
    let bin = tempfile::Builder::new().prefix("mainstay-chaos-").tempdir();
    let bin = bin.map_err(BenchError::SetUp)?;
    let programs =
        copy_program(options.mainstay.as_deref(), bin.path()).map_err(BenchError::SetUp)?;
    let minutes = Duration::try_from_secs_f64(options.minutes * 60.0);
    let time = minutes.map_err(|error| BenchError::Wrong(format!("--minutes: {error}")))?;
    rig::block_on(play_all(&programs, bin.path(), (options.seed, time), out))
}

async fn play_all(
    programs: &Programs,
    bin: &Path,
    (seed, time): (u64, Duration),
    out: &mut impl Write,
) -> Result<bool, BenchError> {
    let instance = Instance::new(programs.clone()).map_err(BenchError::SetUp)?;
    let mut chaos =
        Chaos { instance: &instance, bin, seed, cuts: Vec::new(), findings: Vec::new() };
    let played = unless_interrupted(chaos.play(time, out)).await;
    let (mut findings, left_over) = (chaos.findings, instance.processes_after_end().await?);
    findings.extend(left_over.into_iter().map(|what| format!("left over: {what}")));
    let Counts { answered, errors, cut } = played?;
    let told = findings.iter().take(SHOWN).try_for_each(|finding| writeln!(out, "  {finding}"));
    let summary = writeln!(
        out,
        "chaos --seed {seed}, {} s: {answered} calls answered, {errors} told an error, {cut} cut by a kill; {} findings",
        time.as_secs(),
        findings.len()
    );
    told.and(summary).map_err(BenchError::SetUp)?;
    Ok(findings.is_empty())
}

struct Chaos<'a> {
    instance: &'a Instance,
    bin: &'a Path,
    seed: u64,
    /// When connections may have been cut.
    cuts: Vec<(Duration, Duration)>,
    findings: Vec<String>,
}

/// What `daemon status` tells.
#[derive(Deserialize)]
struct Status {
    pid: u32,
    holder: u32,
    version: String,
}

impl Chaos<'_> {
    /// Plays, and tells how calls ended.
    async fn play(&mut self, time: Duration, out: &mut impl Write) -> Result<Counts, BenchError> {
        let instance = self.instance;
        for (name, upstream) in SERVERS {
            instance.add(name, upstream).await?;
        }
        instance.add(UNHARMED, Upstream::Stdio).await?;
        instance.ready_servers(SERVERS.len() + 1, BACK).await?;
        let effects = instance.folder().join("effects");
        fs::write(&effects, "").map_err(BenchError::SetUp)?;
        let clients = self.open_clients(&effects).await?;
        let (record, until) = (Record::new(), Instant::now() + time);
        let mut working = tokio::task::JoinSet::new();
        for client in clients {
            working.spawn(client.work(Arc::clone(&record), until));
        }
        let mut random = Random::new(self.seed);
        while Instant::now() < until {
            let (pause, fault) = faults::next(&mut random, SERVERS.len());
            sleep(pause).await;
            let begun = record.now();
            writeln!(out, "{:7.1} s {fault:?}", begun.as_secs_f64()).map_err(BenchError::SetUp)?;
            if let Err(error) = self.inflict(fault).await {
                self.findings.push(format!("{fault:?} at {begun:?}: {}", crate::chain(&error)));
            }
            if fault.cuts() {
                self.cuts.push((begun, record.now()));
            }
        }
        while working.join_next().await.is_some() {}
        let calls = record.take();
        let effects = fs::read_to_string(&effects).map_err(BenchError::SetUp)?;
        let effects: Vec<String> = effects.lines().map(str::to_owned).collect();
        self.findings.extend(history::findings(&calls, &effects, &self.cuts));
        Ok(Counts::of(&calls))
    }

    async fn open_clients(&self, effects: &Path) -> Result<Vec<Client>, BenchError> {
        let instance = self.instance;
        let mut clients = Vec::new();
        let mut seed = self.seed;
        for (server, _) in SERVERS {
            for version in VERSIONS {
                seed = seed.wrapping_add(1);
                let (name, url) = (format!("{server}-{version}"), instance.url(server));
                clients.push(Client::http((name, version), &url, effects, seed).await?);
            }
            seed = seed.wrapping_add(1);
            let name = format!("{server}-connect");
            clients.push(Client::connect(name, instance, server, effects, seed).await?);
        }
        let url = instance.url(UNHARMED);
        let bystander = (UNHARMED.to_owned(), "2025-11-25");
        clients.push(Client::http(bystander, &url, effects, seed.wrapping_add(1)).await?);
        Ok(clients)
    }

    /// Does it, and waits until commands are answered again.
    async fn inflict(&self, fault: Fault) -> Result<(), BenchError> {
        let instance = self.instance;
        match fault {
            Fault::KillServer(server) => {
                if let Some(pid) = self.pid(server).await? {
                    kill(pid);
                }
            }
            Fault::KillShim(server) => {
                if let Some(pid) = self.pid(server).await?
                    && let Ok(shim) = parent(pid)
                {
                    kill(shim);
                }
            }
            Fault::FreezeServer(server) => {
                if let Some(pid) = self.pid(server).await? {
                    freeze(pid).await;
                }
            }
            Fault::StopServer(server) => {
                let name = SERVERS[server].0;
                instance.mainstay(&["stop", name]).await?;
                sleep(Duration::from_millis(200)).await;
                instance.mainstay(&["start", name]).await?;
            }
            Fault::KillDaemon => kill(self.status().await?.pid),
            Fault::KillDaemons => {
                for _ in 0..5 {
                    kill(self.status().await?.pid);
                    sleep(Duration::from_millis(500)).await;
                }
            }
            Fault::FreezeDaemon => freeze(self.status().await?.pid).await,
            Fault::KillHolder => kill(self.status().await?.holder),
            Fault::KillBoth => {
                let status = self.status().await?;
                kill(status.holder);
                kill(status.pid);
            }
            Fault::Reload => drop(instance.mainstay(&["daemon", "reload"]).await?),
            Fault::Update => {
                let version = self.status().await?.version;
                let newer = newer_program(self.bin, &version)?.0;
                instance.mainstay(&["update", "--from", &newer.to_string_lossy()]).await?;
            }
            Fault::WipeRunDirectory => {
                // What is being made again meanwhile may be in the way.
                fs::remove_dir_all(instance.state().join("run")).ok();
            }
        }
        self.status().await.map(drop)
    }

    /// The process of a server, if it has one now.
    async fn pid(&self, server: usize) -> Result<Option<u32>, BenchError> {
        let name = SERVERS[server].0;
        let servers = self.instance.all_servers().await?;
        Ok(servers.into_iter().find(|server| server.name == name).and_then(|server| server.pid))
    }

    /// What the daemon says, as soon as one says something.
    async fn status(&self) -> Result<Status, BenchError> {
        let until = Instant::now() + BACK;
        loop {
            match self.instance.json(&["daemon", "status", "--json"]).await {
                Ok(status) => return Ok(status),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

/// Stops a process by a signal for a while.
async fn freeze(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    // It may have ended.
    kill_process(pid, Signal::STOP).ok();
    sleep(FROZEN).await;
    kill_process(pid, Signal::CONT).ok();
}
