//! What the faults do.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::clients::Client;
use super::faults::Fault;
use super::history::Outcome;
use super::{BACK, BOXED, Chaos, SERVERS};
use crate::docker::{Engine, IMAGE};
use crate::procfs::parent;
use crate::rig::{BenchError, Server, kill};
use crate::seeds::newer_program;

/// How long a process is frozen.
const FROZEN: Duration = Duration::from_millis(1500);

/// How long the disk is full, and how long there is no engine.
const FULL: Duration = Duration::from_secs(2);
const AWAY: Duration = Duration::from_secs(1);

/// How long names are resolved slowly: longer than one slow answer takes.
const SLOW: Duration = Duration::from_secs(5);

/// A server in a container that is removed.
const DOOMED: &str = "doomed";

/// What `daemon status` tells.
#[derive(Deserialize)]
struct Status {
    pid: u32,
    holder: u32,
    version: String,
}

impl Chaos<'_> {
    /// Does it, and waits until commands are answered again.
    pub(super) async fn inflict(&mut self, fault: Fault) -> Result<(), BenchError> {
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
            Fault::FillDisk(server) => self.fill_disk(server).await?,
            Fault::FillDiskAndKillDaemon => {
                let daemon = self.status().await?.pid;
                let kill = async {
                    sleep(FULL / 4).await;
                    kill(daemon);
                };
                tokio::join!(self.disk.be_full(FULL), kill).0.map_err(BenchError::SetUp)?;
            }
            Fault::SlowResolver => {
                self.names.set_slow(true);
                self.remote.restart().await.map_err(BenchError::SetUp)?;
                sleep(SLOW).await;
                self.names.set_slow(false);
            }
            Fault::KillEngine => {
                let engine = self.engine()?;
                engine.kill().await?;
                sleep(AWAY).await;
                engine.start().await?;
            }
            Fault::FreezeEngine => freeze(self.engine()?.process()?).await,
            Fault::KillContainer => {
                let engine = self.engine()?;
                if let Some(container) = self.server(BOXED).await?.container_id {
                    kill(engine.pid(&container).await?);
                }
            }
            Fault::RemoveContainer => self.remove_container().await?,
        }
        self.status().await.map(drop)
    }

    /// A command may be refused while the disk is full, if it says why.
    async fn fill_disk(&self, server: usize) -> Result<(), BenchError> {
        let (name, pid) = (SERVERS[server].0, self.pid(server).await?);
        let command = async {
            sleep(FULL / 4).await;
            pid.into_iter().for_each(kill);
            self.instance.mainstay(&["stop", name]).await
        };
        let (full, stopped) = tokio::join!(self.disk.be_full(FULL), command);
        full.map_err(BenchError::SetUp)?;
        match stopped {
            Err(BenchError::Failed { stderr, .. }) if stderr.contains("full") => {}
            told => drop(told?),
        }
        self.instance.mainstay(&["start", name]).await.map(drop)
    }

    /// The call that was under way is told an error, later ones that there is no such server.
    async fn remove_container(&self) -> Result<(), BenchError> {
        let (instance, engine) = (self.instance, self.engine()?);
        instance.mainstay(&["run", DOOMED, "--image", IMAGE, "--wait"]).await?;
        let untold = || BenchError::Untold { server: DOOMED.to_owned(), what: "container" };
        let container = self.server(DOOMED).await?.container_id.ok_or_else(untold)?;
        let name = (DOOMED.to_owned(), "2025-06-18");
        let mut client = Client::http(name, &instance.url(DOOMED), instance.folder(), 0).await?;
        let remove = async {
            sleep(Duration::from_millis(300)).await;
            engine.docker(&["rm", "--force", &container]).await
        };
        let (told, removed) = tokio::join!(client.sleep(BACK), remove);
        removed?;
        let last = client.sleep(Duration::ZERO).await;
        let is_error = match &told {
            Outcome::Answered { text, is_error } => *is_error && !text.is_empty(),
            Outcome::Failed(text) => !text.is_empty(),
            Outcome::Cut | Outcome::Status(_) | Outcome::Silent => false,
        };
        if is_error && last == Outcome::Status(404) {
            return Ok(());
        }
        Err(BenchError::Wrong(format!("clients of a removed container: {told:?}, then {last:?}")))
    }

    fn engine(&self) -> Result<&Engine, BenchError> {
        self.engine.ok_or_else(|| BenchError::Wrong("there is no engine".to_owned()))
    }

    /// The process of a local server, if it has one now.
    async fn pid(&self, server: usize) -> Result<Option<u32>, BenchError> {
        Ok(self.server(SERVERS[server].0).await?.pid)
    }

    async fn server(&self, name: &str) -> Result<Server, BenchError> {
        let servers = self.instance.all_servers().await?;
        let untold = || BenchError::Untold { server: name.to_owned(), what: "entry" };
        servers.into_iter().find(|server| server.name == name).ok_or_else(untold)
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
