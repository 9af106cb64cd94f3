//! Servers as local processes.
//!
//! Each run is under a shim (`mainstay-hold`), a small process that outlives this daemon. A run is a
//! directory `RUNS/SERVER/GENERATION` with the shim's socket in it. The directories and the sockets are the
//! only state, so a new daemon finds every run again. If a shim is
//! killed, its processes are killed by the records that it kept (pids and start times, and the run's cgroup if it
//! has one), before the next run starts.
//!
//! One task follows each run, from its start or its first listing until it is gone.
//! The engine owns its tasks; they end with its last clone, and the runs continue.

mod attach;
mod command;
mod link;
mod listing;
mod login;
mod monitor;
pub(crate) mod observe;
mod orphans;
mod port;
mod runs;
mod spawn;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::start_activity::StartEvidence;
use mainstay_core::{ProcessSpec, ServerName, ServerSpec, Transport, Workload};
use mainstay_hold::launch::Launch;
use mainstay_hold::limits::SHIM_RESTORE;
use mainstay_hold::socket;
use mainstay_hold::wire::ToShim;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tokio::time::{Instant, sleep};

use crate::tasks::Tasks;
use crate::{
    Endpoint, Engine, EngineError, Found, LogLine, LogRange, News, Observation, RunKey, StartError,
    Started, Stdio,
};
use link::{Greeting, ShimLink};
pub use listing::newest_daemon_of_shims;
use login::LoginPath;
pub use port::PortOwner;
use runs::RunDirs;
use spawn::Spawned;

/// News that is kept for a slow receiver. One that falls further behind has to list.
const NEWS: usize = 1024;

/// How often a shim is asked to restore its run directory.
const RESTORE_EVERY: Duration = Duration::from_millis(20);

/// Where servers listen, in the order in which they are tried.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// The program that becomes a shim when called with `__shim DIR`.
    pub shim: PathBuf,
    /// Where the directories of runs are.
    pub runs_dir: PathBuf,
    /// Where the servers' logs are.
    pub logs_dir: PathBuf,
    /// The label of everything this instance owns.
    pub instance: String,
    /// The number of this daemon. A shim obeys the highest number that it has seen.
    pub daemon: u64,
    /// The daemon's environment. Servers get an allow-listed part of it.
    pub env: Vec<(OsString, OsString)>,
    /// When a log is rotated.
    pub log_max_bytes: u64,
    /// How many rotated logs are kept.
    pub log_keep: u32,
}

/// The engine for local processes. Clones share one state.
#[derive(Debug, Clone)]
pub struct ProcessEngine {
    shared: Arc<Shared>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Shared {
    config: ProcessConfig,
    dirs: RunDirs,
    login: LoginPath,
    news: broadcast::Sender<News>,
    /// Runs whose shims were alive when this daemon started. Taken by the first listing.
    found: Mutex<Vec<RunKey>>,
    /// The runs that are being started or watched.
    active: Mutex<HashMap<RunKey, Active>>,
}

/// A run that is being started or watched. The pid is known once the start has succeeded.
#[derive(Debug, Clone)]
struct Active {
    pid: Option<u32>,
    since: Instant,
    /// Its port, if it is known.
    port: Option<u16>,
    /// Wakes the task that follows the run, which asks its shim to restore the run directory.
    restore: Arc<Notify>,
}

impl Active {
    fn new(pid: Option<u32>, since: Instant, port: Option<u16>) -> Self {
        Self { pid, since, port, restore: Arc::default() }
    }
}

impl ProcessEngine {
    /// Opens the engine. Processes of runs whose shim is gone are killed when the runs are listed.
    pub fn open(config: ProcessConfig) -> Result<Self, EngineError> {
        let dirs = RunDirs::open(&config.runs_dir)?;
        let (news, _) = broadcast::channel(NEWS);
        let found = Mutex::new(dirs.of_living_shims());
        let (login, active) = (LoginPath::default(), Mutex::default());
        let shared = Shared { config, dirs, login, news, found, active };
        Ok(Self { shared: Arc::new(shared), tasks: Tasks::default() })
    }
}

impl Shared {
    /// The search path for a server's program, and the program found on it.
    async fn resolve(&self, process: &ProcessSpec) -> Result<(PathBuf, OsString), StartError> {
        let program = process.command.first().map_or("", String::as_str);
        if let Some(path) = &process.path {
            match command::find_program(program, &process.cwd, path.as_ref()) {
                Err(StartError::NotFound { .. }) => {}
                found => return Ok((found?, path.into())),
            }
        }
        let login = self.login.get(&self.config.env).await;
        let given = process.path.as_deref().unwrap_or("");
        let path = command::join_paths(given.as_ref(), &login.path);
        match (command::find_program(program, &process.cwd, &path), login.failure) {
            (Err(StartError::NotFound { .. }), Some(source)) => Err(StartError::Shortage {
                what: format!("looking for `{program}` where a login shell would"),
                source,
            }),
            (found, _) => Ok((found?, path)),
        }
    }

    /// Starts a run, reports that, and follows the run until it is gone.
    async fn run(
        self: Arc<Self>,
        key: RunKey,
        launch: Launch,
        port: Option<u16>,
        started: oneshot::Sender<Result<u32, StartError>>,
    ) {
        let spawned = match self.claim_port(&key, port).await {
            Ok(()) => self.spawn(&key, &launch).await,
            Err(error) => Err(error),
        };
        match spawned {
            Ok(Spawned { pid, link, shim }) => {
                self.active().insert(key.clone(), Active::new(Some(pid), Instant::now(), port));
                // If the caller is gone, the next list shows the run.
                started.send(Ok(pid)).ok();
                self.follow_and_reap(key, link, shim).await;
            }
            Err(error) => {
                self.active().remove(&key);
                if let Err(Err(error)) = started.send(Err(error)) {
                    tracing::warn!(server = %key.server, run = %key.run, %error, "a start failed");
                }
            }
        }
    }

    /// Connects to a run's shim, which may still refuse this daemon. The shim of a run that is being followed is alive: if
    /// its socket is missing, the run directory was removed, and the shim restores it.
    async fn connect(&self, key: &RunKey) -> Result<(ShimLink, Greeting), EngineError> {
        let dir = self.dirs.path(key);
        let give_up = Instant::now() + SHIM_RESTORE;
        loop {
            let connected = ShimLink::connect(&dir, self.config.daemon).await;
            let restore = self.active().get(key).map(|active| active.restore.clone());
            match (connected, restore) {
                (Err(error), Some(restore)) if error.is_gone() && !has_socket(&dir) => {
                    if Instant::now() >= give_up {
                        return Err(EngineError::NoAnswer);
                    }
                    restore.notify_one();
                    sleep(RESTORE_EVERY).await;
                }
                (connected, _) => return connected.map_err(|error| gone_or(error, key)),
            }
        }
    }

    /// Waits until the shims that were alive when this daemon started can be reached. Each restores its directory if
    /// that was removed.
    async fn await_shims(&self) {
        let mut found = std::mem::take(&mut *mainstay_core::lock(&self.found));
        let give_up = Instant::now() + SHIM_RESTORE;
        loop {
            found.retain(|key| !has_socket(&self.dirs.path(key)));
            if found.is_empty() || Instant::now() >= give_up {
                break;
            }
            sleep(RESTORE_EVERY).await;
        }
        for key in found {
            tracing::error!(server = %key.server, run = %key.run, "a shim cannot be reached");
        }
    }

    /// Asks shims to restore run directories that were removed.
    fn restore_directories(&self) {
        for (key, active) in self.active().iter().filter(|(_, active)| active.pid.is_some()) {
            if !has_socket(&self.dirs.path(key)) {
                tracing::warn!(server = %key.server, run = %key.run, "the run directory was removed");
                active.restore.notify_one();
            }
        }
    }

    /// Sends a message to a run's shim and waits for its confirmation. Returns false if the run is already gone.
    async fn send_confirmed(&self, key: &RunKey, message: &ToShim) -> Result<bool, EngineError> {
        let sending = async {
            let (mut link, _) = self.connect(key).await?;
            link.confirm(Some(message)).await
        };
        match sending.await {
            Ok(_) => Ok(true),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds a run to the watched ones. Returns false if it is one of them already.
    fn claim(&self, key: &RunKey, active: Active) -> bool {
        match self.active().entry(key.clone()) {
            Entry::Vacant(place) => {
                place.insert(active);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn active(&self) -> MutexGuard<'_, HashMap<RunKey, Active>> {
        mainstay_core::lock(&self.active)
    }
}

#[async_trait]
impl Engine for ProcessEngine {
    fn abandon(&self) {
        self.tasks.abort_all();
    }

    async fn prepare(&self, spec: &ServerSpec) -> Result<ServerSpec, StartError> {
        let process = process_of(spec)?;
        command::check_directory(&process.cwd)?;
        self.shared.resolve(process).await?;
        Ok(spec.clone())
    }

    async fn start(&self, key: &RunKey, spec: &ServerSpec) -> Result<Started, StartError> {
        let process = process_of(spec)?;
        command::check_directory(&process.cwd)?;
        let (program, path) = self.shared.resolve(process).await?;
        let port = match process.transport {
            Transport::Stdio => None,
            Transport::StreamableHttp { port, .. } => Some(port),
        };
        let launch = self.shared.launch(key, process, program, &path);
        let (started_tx, started) = oneshot::channel();
        // A separate task, so that a start is completed even if the caller is dropped.
        self.tasks.spawn(self.shared.clone().run(key.clone(), launch, port, started_tx));
        let pid = started.await.expect("a start reports its result, and the task set is alive")?;
        Ok(Started { pid: Some(pid), ..Started::default() })
    }

    async fn stop(&self, key: &RunKey, grace: Duration) -> Result<(), EngineError> {
        let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        self.shared.send_confirmed(key, &ToShim::End { grace_ms }).await.map(drop)
    }

    async fn kill(&self, key: &RunKey) -> Result<(), EngineError> {
        match self.shared.send_confirmed(key, &ToShim::Kill).await {
            // A shim may be alive and accept no connections.
            Ok(false) if self.shared.dirs.shim_alive(key) => {
                tracing::warn!(server = %key.server, run = %key.run, "killing an unreachable shim");
                self.shared.kill_by_force(key).await;
                Ok(())
            }
            Ok(_) => Ok(()),
            // The shim obeys a newer daemon, or this process is out of a resource.
            Err(error) if error.is_temporary() && !matches!(error, EngineError::NoAnswer) => {
                Err(error)
            }
            Err(error) => {
                tracing::warn!(server = %key.server, run = %key.run, %error, "killing the shim too");
                self.shared.kill_by_force(key).await;
                Ok(())
            }
        }
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        self.list_all().await
    }

    fn watch(&self) -> broadcast::Receiver<News> {
        self.shared.news.subscribe()
    }

    async fn logs(
        &self,
        server: &ServerName,
        range: LogRange,
    ) -> Result<mpsc::Receiver<LogLine>, EngineError> {
        crate::logs::open(&self.tasks, &self.shared.config.logs_dir, server, range).await
    }

    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        let (mut link, greeting) = self.shared.connect(key).await?;
        // A shim that refuses this daemon does so here, where the reason can be returned.
        let attached = async {
            link.confirm(None).await?.ok_or_else(|| EngineError::NoSuchRun(key.clone()))?;
            attach::attach(&self.tasks, link, &greeting).await
        };
        attached.await.map_err(|error| gone_or(error, key))
    }

    async fn endpoint(&self, key: &RunKey, port: u16) -> Result<Endpoint, EngineError> {
        self.shared.reach(key, port).await
    }

    async fn observe(&self, key: &RunKey) -> Result<Observation, EngineError> {
        self.shared.observe(key).await
    }

    async fn observe_start(&self, key: &RunKey) -> Result<StartEvidence, EngineError> {
        self.shared.observe_start(key).await
    }

    async fn log_stacks(&self, key: &RunKey) -> Result<(), EngineError> {
        self.shared.log_stacks(key).await
    }

    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError> {
        let (mut link, _) = self.shared.connect(key).await?;
        let tail = link.confirm(None).await.map_err(|error| gone_or(error, key))?;
        tail.ok_or_else(|| EngineError::NoSuchRun(key.clone()))
    }

    async fn release(&self, server: &ServerName) -> Result<(), EngineError> {
        self.shared.dirs.forget(server)
    }

    async fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        self.release(server).await?;
        crate::logs::remove(&self.shared.config.logs_dir, server)
    }
}

fn has_socket(dir: &Path) -> bool {
    dir.join(socket::SHIM).exists()
}

/// Maps the absence of a shim to [`EngineError::NoSuchRun`].
fn gone_or(error: EngineError, key: &RunKey) -> EngineError {
    if error.is_gone() { EngineError::NoSuchRun(key.clone()) } else { error }
}

fn process_of(spec: &ServerSpec) -> Result<&ProcessSpec, StartError> {
    match &spec.workload {
        Workload::Process(process) => Ok(process),
        Workload::Container(_) | Workload::Remote(_) => {
            Err(StartError::OtherEngine { engine: spec.workload.engine() })
        }
    }
}
