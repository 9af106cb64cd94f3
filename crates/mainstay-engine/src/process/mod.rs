//! Servers as local processes.
//!
//! Each run lives under a shim (`mainstay-hold`), a small process that outlives this daemon. A run
//! is a directory `RUNS/SERVER/GENERATION` with the shim's socket in it; what is in that directory,
//! and who answers on the socket, is all there is to know, so a new daemon finds every run again.
//! Every process of a run also carries a mark in its environment. Should a shim be killed, what it
//! held is found by that mark and ended: nothing is ever left behind.

mod attach;
mod command;
mod lines;
mod link;
mod login;
mod logs;
mod monitor;
mod runs;
mod spawn;

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::{ProcessSpec, ServerName, ServerSpec, Transport, Workload};
use mainstay_hold::wire::{FromShim, ToShim};
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;

use crate::{
    Engine, EngineError, Found, FoundState, LogRange, News, RunKey, StartError, Started, Stdio,
};
use link::ShimLink;
use login::LoginPath;
use runs::RunDirs;

/// News kept for a reader that is slow; one that falls further behind is told to list.
const NEWS: usize = 1024;

/// What the process engine needs to know.
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
    /// The number of this daemon; a shim obeys the highest it has seen.
    pub daemon: u64,
    /// The daemon's environment, of which servers get an allow-listed part.
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
}

#[derive(Debug)]
struct Shared {
    config: ProcessConfig,
    dirs: RunDirs,
    login: LoginPath,
    news: broadcast::Sender<News>,
    /// The runs that are being started or watched.
    active: Mutex<HashMap<RunKey, Active>>,
}

/// A run under watch. The process is known once the start has succeeded.
#[derive(Debug, Clone, Copy)]
struct Active {
    pid: Option<u32>,
    since: Instant,
}

impl ProcessEngine {
    /// Opens the engine and ends what is left of runs whose shim is no more.
    pub async fn open(config: ProcessConfig) -> Result<Self, EngineError> {
        let dirs = RunDirs::open(&config.runs_dir)?;
        let (news, _) = broadcast::channel(NEWS);
        let shared =
            Shared { dirs, login: LoginPath::default(), news, active: Mutex::default(), config };
        let engine = Self { shared: Arc::new(shared) };
        engine.sweep_strays().await;
        Ok(engine)
    }

    /// Ends marked processes of this instance that no living shim holds.
    async fn sweep_strays(&self) {
        let held = |mark: &str| {
            runs::parse_mark(&self.shared.config.instance, mark)
                .is_some_and(|key| self.shared.dirs.shim_alive(&key).is_some())
        };
        monitor::end_marked(&format!("{}/", self.shared.config.instance), |mark| !held(mark)).await;
    }

    /// The search path for a server's program, and the program found on it.
    async fn resolve(&self, process: &ProcessSpec) -> Result<(PathBuf, OsString), StartError> {
        let program = process.command.first().map_or("", String::as_str);
        if let Some(path) = &process.path {
            match command::find_program(program, &process.cwd, path.as_ref()) {
                Err(StartError::NotFound { .. }) => {}
                found => return Ok((found?, path.into())),
            }
        }
        let login = self.shared.login.get(&self.shared.config.env).await;
        let path = command::join_paths(process.path.as_deref().unwrap_or("").as_ref(), login);
        Ok((command::find_program(program, &process.cwd, &path)?, path))
    }

    async fn connect(&self, key: &RunKey) -> Result<(ShimLink, link::Greeting), EngineError> {
        ShimLink::connect(&self.shared.dirs.path(key)).await.map_err(|error| match error {
            EngineError::Io { source, .. } if link::is_absent(&source) => {
                EngineError::NoSuchRun(key.clone())
            }
            other => other,
        })
    }

    /// Says one thing to a run's shim. A run that is gone already needs no telling.
    async fn tell(&self, key: &RunKey, message: &ToShim) -> Result<(), EngineError> {
        match self.connect(key).await {
            Ok((mut link, _)) => link.send(message).await,
            Err(EngineError::NoSuchRun(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes a run into the table of watched ones and follows it until it is gone.
    fn watch_over(&self, key: RunKey, active: Active, link: ShimLink) {
        self.active().insert(key.clone(), active);
        let engine = self.clone();
        tokio::spawn(async move { engine.follow(key, link).await });
    }

    /// Tells everybody who watches. Nobody may, which is no concern of the engine's.
    fn tell_all(&self, news: News) {
        self.shared.news.send(news).ok();
    }

    fn active(&self) -> MutexGuard<'_, HashMap<RunKey, Active>> {
        self.shared.active.lock().expect("no code panics while it holds this lock")
    }

    /// A run on disk that nobody watches yet: alive and watched from now on, or ended. One whose shim
    /// lives but cannot be talked to counts as alive: its driver will find out and have it killed.
    async fn take_in(&self, key: RunKey) -> Found {
        let state = match self.begin_watch(&key).await {
            Ok(state) => state,
            Err(error) if self.shared.dirs.shim_alive(&key).is_some() => {
                tracing::error!(server = %key.server, run = %key.run, %error, "a shim does not answer");
                FoundState::Alive { pid: None, age: Duration::ZERO }
            }
            Err(_) => FoundState::Ended(self.shared.dirs.clear_away(&key)),
        };
        Found { key, state }
    }

    async fn begin_watch(&self, key: &RunKey) -> Result<FoundState, EngineError> {
        let (mut link, greeting) = self.connect(key).await?;
        link.send(&ToShim::Watch).await?;
        if greeting.exited {
            // It ended while nobody watched, and its shim has stayed to tell how.
            return Ok(FoundState::Ended(self.clone().follow(key.clone(), link).await));
        }
        let age = greeting.age();
        let since = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        let pid = Some(greeting.server_pid);
        self.watch_over(key.clone(), Active { pid, since }, link);
        Ok(FoundState::Alive { pid, age })
    }

    /// Ends a run whose shim does not listen: the server dies with its shim, the rest by its mark.
    async fn kill_by_force(&self, key: &RunKey) {
        if let Some(shim) = self.shared.dirs.shim_alive(key) {
            monitor::kill(shim);
        }
        let mark = command::mark(&self.shared.config.instance, key);
        monitor::end_marked(&mark, |found| found == mark).await;
    }
}

#[async_trait]
impl Engine for ProcessEngine {
    fn name(&self) -> &'static str {
        "process"
    }

    async fn check(&self, spec: &ServerSpec) -> Result<(), StartError> {
        let Workload::Process(process) = &spec.workload;
        command::check_directory(&process.cwd)?;
        self.resolve(process).await.map(drop)
    }

    async fn start(&self, key: &RunKey, spec: &ServerSpec) -> Result<Started, StartError> {
        let Workload::Process(process) = &spec.workload;
        command::check_directory(&process.cwd)?;
        let (program, path) = self.resolve(process).await?;
        if let Transport::StreamableHttp { port, .. } = spec.transport {
            check_port(port)?;
        }
        let launch = spawn::launch(&self.shared.config, key, spec, process, program, &path);
        self.active().insert(key.clone(), Active { pid: None, since: Instant::now() });
        match spawn::spawn(&self.shared, key, &launch).await {
            Ok((pid, link)) => {
                let pid = Some(pid);
                self.watch_over(key.clone(), Active { pid, since: Instant::now() }, link);
                Ok(Started { pid })
            }
            Err(error) => {
                self.active().remove(key);
                self.shared.dirs.clear_away(key);
                Err(error)
            }
        }
    }

    async fn stop(&self, key: &RunKey, grace: Duration) -> Result<(), EngineError> {
        let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        self.tell(key, &ToShim::End { grace_ms }).await
    }

    async fn kill(&self, key: &RunKey) -> Result<(), EngineError> {
        if let Err(error) = self.tell(key, &ToShim::Kill).await {
            tracing::warn!(server = %key.server, run = %key.run, %error, "killing the shim too");
            self.kill_by_force(key).await;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        let mut all = Vec::new();
        for key in self.shared.dirs.list()? {
            let known = self.active().get(&key).copied();
            all.push(match known {
                Some(Active { pid, since }) => {
                    Found { key, state: FoundState::Alive { pid, age: since.elapsed() } }
                }
                None => self.take_in(key).await,
            });
        }
        Ok(all)
    }

    fn watch(&self) -> broadcast::Receiver<News> {
        self.shared.news.subscribe()
    }

    async fn logs(
        &self,
        server: &ServerName,
        range: LogRange,
    ) -> Result<mpsc::Receiver<String>, EngineError> {
        logs::open(&self.shared.config.logs_dir, server, range).await
    }

    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        let (link, greeting) = self.connect(key).await?;
        attach::attach(link, &greeting, self.shared.config.daemon).await
    }

    async fn endpoint(&self, _key: &RunKey, port: u16) -> Result<SocketAddr, EngineError> {
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }

    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError> {
        let (mut link, _) = self.connect(key).await?;
        link.send(&ToShim::Tail).await?;
        loop {
            match link.next().await? {
                Some(FromShim::Tail { stderr }) => return Ok(stderr),
                Some(_) => {}
                None => return Err(EngineError::NoSuchRun(key.clone())),
            }
        }
    }

    async fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        self.shared.dirs.forget(server)?;
        logs::remove(&self.shared.config.logs_dir, server)
    }
}

/// Whether a port is free for a server that is about to listen on it.
fn check_port(port: u16) -> Result<(), StartError> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(StartError::PortTaken { port })
        }
        Err(error) => Err(StartError::Refused(format!("port {port} cannot be used: {error}"))),
    }
}
