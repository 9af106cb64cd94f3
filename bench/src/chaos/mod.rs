//! Faults in a random order, which a seed repeats, while clients of all protocol versions call without a pause. At the
//! end their history is checked: one answer to each call, nothing executed twice, no acknowledged effect missing, no
//! answer in the wrong session, no session lost, no client of another server delayed, nothing left over.
//!
//! The state directory has a disk of its own, which can be full, and names are resolved by a name server of its own, which
//! can be slow. Both are mounts, so this program has to run in a mount namespace of its own; faults of containers need an
//! engine of their own and this program inside its network namespace. `scripts/chaos` sees to all of that.

mod clients;
mod disk;
mod faults;
mod history;
mod inflict;
mod remote;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::clients::{Client, Record};
use self::disk::Disk;
use self::faults::Faults;
use self::history::{Counts, Windows};
use self::remote::{NameServer, Remote};
use crate::docker::{self, Engine, IMAGE};
use crate::restarts::NEWEST;
use crate::rig::{self, BenchError, Instance, Programs, Upstream, unless_interrupted};
use crate::seeds::copy_program;

/// The local servers that are harmed.
const SERVERS: [(&str, Upstream); 2] = [("lines", Upstream::Stdio), ("web", Upstream::Http)];
/// The one that is reached by a name, and the one in a container.
const REMOTE: &str = "remote";
const BOXED: &str = "boxed";
/// The one that nothing is done to.
const UNHARMED: &str = "bystander";

const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];

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
    /// The directory of the engine to use, as `scripts/docker up` made it; without it, there are no containers.
    #[arg(long, value_name = "DIR", requires = "script")]
    engine: Option<PathBuf>,
    /// `scripts/docker`, which ends and starts it.
    #[arg(long, value_name = "FILE", requires = "engine")]
    script: Option<PathBuf>,
    /// If anything is found, copy the state directory, with the daemon's log, to this new directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// The program to test; by default `mainstay` beside this program. A copy of it is used.
    #[arg(long, value_name = "FILE")]
    mainstay: Option<PathBuf>,
}

impl Options {
    fn engine(&self) -> Option<Engine> {
        Some(Engine::new(self.engine.clone()?, self.script.clone()?))
    }
}

/// Plays and checks. Says whether nothing was found.
pub fn run(options: &Options, out: &mut impl Write) -> Result<bool, BenchError> {
    check_mount_namespace()?;
    let bin = tempfile::Builder::new().prefix("mainstay-chaos-").tempdir();
    let bin = bin.map_err(BenchError::SetUp)?;
    let engine = options.engine();
    let mut programs =
        copy_program(options.mainstay.as_deref(), bin.path()).map_err(BenchError::SetUp)?;
    if let Some(engine) = &engine {
        programs = programs.with_var("DOCKER_HOST", docker::host(&engine.socket()));
    }
    let minutes = Duration::try_from_secs_f64(options.minutes * 60.0);
    let time = minutes.map_err(|error| BenchError::Wrong(format!("--minutes: {error}")))?;
    let extra = (engine.as_ref(), options.keep.as_deref());
    rig::block_on(play_all((&programs, bin.path()), extra, (options.seed, time), out))
}

/// What is mounted here must not be seen by the rest of the machine.
fn check_mount_namespace() -> Result<(), BenchError> {
    let parent = rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
    let shared = namespace("self").and_then(|own| Ok(own == namespace(&parent.to_string())?));
    if shared.map_err(BenchError::SetUp)? {
        let needs = "a mount namespace of its own is needed: run scripts/chaos, as root";
        return Err(BenchError::SetUp(io::Error::other(needs)));
    }
    Ok(())
}

async fn play_all(
    (programs, bin): (&Programs, &Path),
    (engine, keep): (Option<&Engine>, Option<&Path>),
    (seed, time): (u64, Duration),
    out: &mut impl Write,
) -> Result<bool, BenchError> {
    let instance = Instance::new(programs.clone()).map_err(BenchError::SetUp)?;
    let disk = Disk::mount(instance.state()).map_err(BenchError::SetUp)?;
    let names = NameServer::start(instance.folder()).await.map_err(BenchError::SetUp)?;
    let remote = Remote::start(instance.fixture()).map_err(BenchError::SetUp)?;
    let (instance, disk, names) = (&instance, &disk, &names);
    let mut chaos = Chaos { instance, bin, disk, names, remote, engine, findings: Vec::new() };
    let played = unless_interrupted(chaos.play(seed, time, out)).await;
    let mut findings = chaos.end();
    if let Some(keep) = keep.filter(|_| played.is_err() || !findings.is_empty()) {
        let mut copy = tokio::process::Command::new("cp");
        copy.arg("--archive").arg(instance.state()).arg(keep);
        rig::output(&mut copy, BACK).await?;
    }
    findings.extend(left_over(instance, engine).await?);
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
    disk: &'a Disk,
    names: &'a NameServer,
    remote: Remote,
    engine: Option<&'a Engine>,
    findings: Vec<String>,
}

impl Chaos<'_> {
    /// Plays, and tells how calls ended.
    async fn play(
        &mut self,
        seed: u64,
        time: Duration,
        out: &mut impl Write,
    ) -> Result<Counts, BenchError> {
        let effects = self.instance.folder().join("effects");
        fs::write(&effects, "").map_err(BenchError::SetUp)?;
        self.add_servers(&effects).await?;
        let clients = self.open_clients(&effects, seed).await?;
        let idle = self.open_idle_clients(&effects).await?;
        let (record, until) = (Record::new(), Instant::now() + time);
        let mut working = tokio::task::JoinSet::new();
        for client in clients {
            working.spawn(client.work(Arc::clone(&record), until));
        }
        let mut faults = Faults::new(seed, SERVERS.len(), self.engine.is_some());
        let mut windows = Windows::default();
        while Instant::now() < until {
            let (pause, fault) = faults.next();
            sleep(pause).await;
            let begun = record.now();
            writeln!(out, "{:7.1} s {fault:?}", begun.as_secs_f64()).map_err(BenchError::SetUp)?;
            if let Err(error) = self.inflict(fault).await {
                self.findings.push(format!("{fault:?} at {begun:?}: {}", crate::chain(&error)));
            }
            windows.add(fault, (begun, record.now()));
        }
        while working.join_next().await.is_some() {}
        for client in idle {
            client.call_once(&record).await;
        }
        let calls = record.take();
        let effects = fs::read_to_string(&effects).map_err(BenchError::SetUp)?;
        let effects: Vec<String> = effects.lines().map(str::to_owned).collect();
        self.findings.extend(history::findings(&calls, &effects, &windows));
        Ok(Counts::of(&calls))
    }

    async fn add_servers(&self, effects: &Path) -> Result<(), BenchError> {
        let instance = self.instance;
        for (name, upstream) in SERVERS {
            instance.add(name, upstream).await?;
        }
        instance.add(UNHARMED, Upstream::Stdio).await?;
        let url = self.remote.url();
        let stable = ["--stable-after", "0s", "--wait"];
        instance.mainstay(&[&["run", REMOTE, "--url", &url], &stable[..]].concat()).await?;
        if self.engine.is_some() {
            let volume = format!("{0}:{0}", effects.display());
            let image = ["run", BOXED, "--image", IMAGE, "--volume", &volume];
            instance.mainstay(&[&image, &stable[..]].concat()).await?;
        }
        let count = SERVERS.len() + 2 + usize::from(self.engine.is_some());
        instance.ready_servers(count, BACK).await.map(drop)
    }

    async fn open_clients(&self, effects: &Path, seed: u64) -> Result<Vec<Client>, BenchError> {
        let instance = self.instance;
        let others = [REMOTE].into_iter().chain(self.engine.map(|_| BOXED));
        let names: Vec<(&str, &[&str])> = SERVERS
            .iter()
            .map(|(name, _)| (*name, &VERSIONS[..]))
            .chain(others.map(|name| (name, &VERSIONS[3..])))
            .collect();
        let mut clients = Vec::new();
        let mut seeds = (0..).map(|n| seed.wrapping_add(n));
        let mut next_seed = || seeds.next().unwrap_or_default();
        for (server, versions) in names {
            for version in versions {
                let (name, url) = (format!("{server}-{version}"), instance.url(server));
                clients.push(Client::http((name, version), &url, effects, next_seed()).await?);
            }
            let name = format!("{server}-connect");
            clients.push(Client::connect(name, instance, server, effects, next_seed()).await?);
        }
        let bystander = (UNHARMED.to_owned(), NEWEST);
        let url = instance.url(UNHARMED);
        clients.push(Client::http(bystander, &url, effects, next_seed()).await?);
        Ok(clients)
    }

    /// Those that open a session and say nothing until the end.
    async fn open_idle_clients(&self, effects: &Path) -> Result<[Client; 2], BenchError> {
        let [(lines, _), (web, _)] = SERVERS;
        let name = (format!("idle-{lines}"), NEWEST);
        Ok([
            Client::http(name, &self.instance.url(lines), effects, 0).await?,
            Client::connect(format!("idle-{web}"), self.instance, web, effects, 0).await?,
        ])
    }

    /// What was found so far. The server that Mainstay has not started ends.
    fn end(self) -> Vec<String> {
        self.findings
    }
}

/// Ends everything, and tells what did not end.
async fn left_over(
    instance: &Instance,
    engine: Option<&Engine>,
) -> Result<Vec<String>, BenchError> {
    let mut found = instance.left_over().await?;
    if let Some(engine) = engine {
        let containers = engine.docker(&["ps", "--all", "--format", "{{.Names}}"]).await?;
        found.extend(containers.lines().map(|name| format!("container {name}")));
    }
    Ok(found.into_iter().map(|what| format!("left over: {what}")).collect())
}
