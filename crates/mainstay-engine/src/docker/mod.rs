//! Containers: Docker, and what speaks its language, such as Podman.
//!
//! A server has one container, which is made when it is first started and started again for every run.
//! It bears labels that say whose it is; what bears no label of this instance is never touched.
//!
//! * [`host`] keeps watch over one engine, [`api`] is how it is spoken to;
//! * [`noticing`] decides what events and inspections mean, [`tell`] makes news of it;
//! * [`compare`] finds what no event told, and sweeps what nobody wants;
//! * [`start`] makes containers and starts them, [`body`] is what they are made from;
//! * [`pump`] carries the lines of a run, across outages too.

mod api;
mod body;
mod compare;
mod discover;
mod gap;
mod host;
mod noticing;
mod pull;
mod pump;
mod records;
mod server;
mod start;
mod tell;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::{ContainerSpec, ServerName, ServerSpec, Transport, Workload};
use mainstay_hold::launch::LogConfig;
use mainstay_hold::log::Log;
use tokio::sync::{broadcast, mpsc};

use self::api::Failure;
use self::discover::{Address, Env};
use self::host::{Errand, Host, Reach, Up};
use self::records::Records;
use self::server::Server;
use crate::tasks::Tasks;
use crate::{Engine, EngineError, Found, LogRange, News, RunKey, StartError, Started, Stdio};

pub use self::pull::Pulled;

/// News that a slow reader may fall behind.
const NEWS: usize = 1024;

/// What the engine of containers needs to know.
#[derive(Debug)]
pub struct DockerConfig {
    /// Which instance of Mainstay this is. Only what bears its label is ever touched.
    pub instance: String,
    /// The servers there are. What is left of others is swept.
    pub wanted: BTreeSet<ServerName>,
    /// Where it is written down which run is which.
    pub records_dir: PathBuf,
    /// Where servers' logs are written.
    pub logs_dir: PathBuf,
    /// The environment in which engines are looked for.
    pub env: Vec<(OsString, OsString)>,
    /// When a log is rotated.
    pub log_max_bytes: u64,
    /// How many rotated logs are kept.
    pub log_keep: u32,
}

/// The engine of containers.
#[derive(Debug)]
pub struct DockerEngine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    instance: String,
    env: Env,
    logs_dir: PathBuf,
    log_max_bytes: u64,
    log_keep: u32,
    records: Records,
    news: broadcast::Sender<News>,
    hosts: Mutex<HashMap<Address, Arc<Host>>>,
    servers: Mutex<HashMap<ServerName, Arc<Server>>>,
    wanted: Mutex<BTreeSet<ServerName>>,
    tasks: Tasks,
}

impl DockerEngine {
    /// Opens the engine. That succeeds whether a container engine answers or not.
    pub async fn open(config: DockerConfig) -> Result<Self, EngineError> {
        let opened = Records::open(config.records_dir);
        let records = opened.map_err(EngineError::io("opening the records of containers"))?;
        let known = records.all().map_err(EngineError::io("reading the records of containers"))?;
        let shared = Arc::new(Shared {
            instance: config.instance,
            env: Env::new(config.env),
            logs_dir: config.logs_dir,
            log_max_bytes: config.log_max_bytes,
            log_keep: config.log_keep,
            records,
            news: broadcast::channel(NEWS).0,
            hosts: Mutex::default(),
            servers: Mutex::default(),
            wanted: Mutex::new(config.wanted),
            tasks: Tasks::default(),
        });
        for (name, record) in known {
            match Address::parse(&record.address, &shared.env) {
                Ok(address) if shared.wanted().contains(&name) => {
                    let host = shared.host(&address);
                    let server = Server::recorded(name.clone(), host, record);
                    shared.servers().insert(name, Arc::new(server));
                }
                Ok(address) => {
                    // Its container is swept when the engine there answers.
                    shared.host(&address);
                    shared.records.remove(&name).map_err(EngineError::io("removing a record"))?;
                }
                Err(error) => tracing::warn!(server = %name, %error, "a record cannot be used"),
            }
        }
        let hosts: Vec<Arc<Host>> = shared.hosts().values().cloned().collect();
        for host in hosts {
            // Whether it is there or not: as far as it can be known, it is known now.
            host.up().await.ok();
        }
        Ok(Self { shared })
    }

    /// Pulls the image of such a server. The channel closes after the end.
    pub async fn pull(
        &self,
        container: &ContainerSpec,
    ) -> Result<mpsc::Receiver<Pulled>, StartError> {
        let (_, up) = self.shared.choose(container).await?;
        Ok(pull::pull(&self.shared.tasks, up.api, &container.image))
    }

    fn server(&self, key: &RunKey) -> Result<Arc<Server>, EngineError> {
        let server = self.shared.server(&key.server);
        let server = server.filter(|server| server.state().watch.run() == Some(key.run));
        server.ok_or_else(|| EngineError::NoSuchRun(key.clone()))
    }

    /// The container of a run that is there, at an engine that answers.
    async fn reach(&self, key: &RunKey) -> Result<(Arc<Server>, Up, String), EngineError> {
        let server = self.server(key)?;
        let (host, container) = {
            let state = server.state();
            (Arc::clone(&state.host), state.container.clone())
        };
        let container = container.ok_or_else(|| EngineError::NoSuchRun(key.clone()))?;
        let up = host.up().await.map_err(EngineError::Away)?;
        Ok((server, up, container))
    }

    /// Ends a run, in a task of its own.
    async fn end(&self, key: &RunKey, grace: Option<Duration>) -> Result<(), EngineError> {
        let (server, up, container) = match self.reach(key).await {
            Ok(reached) => reached,
            Err(EngineError::NoSuchRun(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        server.state().watch.ending();
        let host = Arc::clone(&server.state().host);
        self.shared.tasks.spawn(async move {
            let ended = match grace {
                Some(grace) => up.api.stop(&container, grace).await,
                None => up.api.kill(&container).await,
            };
            let ended = match ended {
                // One that is paused can neither hear nor die.
                Err(Failure::Conflict(_) | Failure::Refused(_)) => {
                    up.api.unpause(&container).await.ok();
                    up.api.kill(&container).await
                }
                other => other,
            };
            if let Err(error) = ended {
                tracing::warn!(server = %server.name, %error, "cannot end a container");
            }
            host.leave(Errand::Look(server.name.clone(), tokio::time::Instant::now()));
        });
        Ok(())
    }
}

impl Shared {
    fn host(self: &Arc<Self>, address: &Address) -> Arc<Host> {
        let mut hosts = self.hosts();
        let new = || Host::start(self, address.clone());
        Arc::clone(hosts.entry(address.clone()).or_insert_with(new))
    }

    /// The server of that name, at that address from now on.
    fn enter(self: &Arc<Self>, name: &ServerName, address: &Address) -> Arc<Server> {
        let host = self.host(address);
        let mut servers = self.servers();
        self.wanted().insert(name.clone());
        let new = || Arc::new(Server::new(name.clone(), Arc::clone(&host)));
        let server = Arc::clone(servers.entry(name.clone()).or_insert_with(new));
        server.state().move_to(host);
        server
    }

    /// Where the engine of a container was found.
    fn address(&self, container: &ContainerSpec) -> Result<Address, StartError> {
        let Some(host) = &container.host else {
            return Err(StartError::NoEngine { tried: Vec::new() });
        };
        Address::parse(host, &self.env).map_err(|error| StartError::Refused(error.to_string()))
    }

    /// The engine for a container: the one that it names, or the first one that answers.
    async fn choose(
        self: &Arc<Self>,
        container: &ContainerSpec,
    ) -> Result<(Address, Up), StartError> {
        let mut tried = Vec::new();
        let addresses = if container.host.is_some() {
            vec![self.address(container)?]
        } else {
            let read = |path: &Path| fs::read_to_string(path).ok();
            let (kind, env) = (container.engine, &self.env);
            let unusable = discover::unusable(kind, env, &read, &entries);
            tried.extend(unusable.into_iter().map(|(from, error)| format!("{from}: {error}")));
            let found = discover::candidates(kind, env, &read, &entries);
            found.into_iter().map(|candidate| candidate.address).collect()
        };
        for address in addresses {
            if let Address::Unix(path) = &address
                && container.host.is_none()
                && !path.exists()
            {
                continue;
            }
            match self.host(&address).up().await {
                Ok(up) if container.engine.is_none_or(|kind| kind == up.who.kind) => {
                    return Ok((address, up));
                }
                Ok(up) => tried.push(format!("{address} is {}", up.who.kind)),
                Err(why) => tried.push(why),
            }
        }
        Err(StartError::NoEngine { tried })
    }

    fn server(&self, name: &ServerName) -> Option<Arc<Server>> {
        self.servers().get(name).cloned()
    }

    /// The server whose container that is.
    fn server_of(&self, host: &Host, container: &str) -> Option<Arc<Server>> {
        let servers = self.servers();
        servers.values().find(|server| server.state().is_in(&host.address, container)).cloned()
    }

    fn servers_at(&self, host: &Host) -> Vec<Arc<Server>> {
        let mut all: Vec<Arc<Server>> = self.servers().values().cloned().collect();
        all.retain(|server| server.state().host.address == host.address);
        all
    }

    fn log(&self, server: &ServerName) -> Log {
        Log::new(LogConfig {
            path: self.logs_dir.join(format!("{server}.log")),
            max_bytes: self.log_max_bytes,
            keep: self.log_keep,
        })
    }

    fn send(&self, news: News) {
        // Without a reader, the next list tells.
        self.news.send(news).ok();
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<Address, Arc<Host>>> {
        self.hosts.lock().expect("no code panics while it holds this lock")
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<ServerName, Arc<Server>>> {
        self.servers.lock().expect("no code panics while it holds this lock")
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeSet<ServerName>> {
        self.wanted.lock().expect("no code panics while it holds this lock")
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn container_of(spec: &ServerSpec) -> Result<&ContainerSpec, StartError> {
    match &spec.workload {
        Workload::Container(container) => Ok(container),
        Workload::Process(_) | Workload::Remote(_) => {
            Err(StartError::OtherEngine { engine: spec.workload.engine() })
        }
    }
}

#[async_trait]
impl Engine for DockerEngine {
    async fn prepare(&self, spec: &ServerSpec) -> Result<ServerSpec, StartError> {
        let container = container_of(spec)?;
        let (address, up) = self.shared.choose(container).await?;
        check_reach(container, &address)?;
        up.api.has_image(&container.image).await.map_err(|failure| match failure {
            Failure::Missing(_) => StartError::NoImage { image: container.image.to_string() },
            Failure::Conflict(why) | Failure::Refused(why) | Failure::Silent(why) => {
                StartError::Refused(why)
            }
        })?;
        let mut spec = spec.clone();
        if let Workload::Container(container) = &mut spec.workload {
            container.engine = Some(up.who.kind);
            container.host = Some(address.to_string());
        }
        Ok(spec)
    }

    async fn start(&self, key: &RunKey, spec: &ServerSpec) -> Result<Started, StartError> {
        let container = container_of(spec)?;
        if container.host.is_none() {
            let spec = self.prepare(spec).await?;
            return self.shared.start(key, &spec, container_of(&spec)?).await;
        }
        self.shared.start(key, spec, container).await
    }

    async fn stop(&self, key: &RunKey, grace: Duration) -> Result<(), EngineError> {
        self.end(key, Some(grace)).await
    }

    async fn kill(&self, key: &RunKey) -> Result<(), EngineError> {
        self.end(key, None).await
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        let hosts: Vec<Arc<Host>> = self.shared.hosts().values().cloned().collect();
        for host in hosts {
            if let Reach::Up(_) = host.reach() {
                host.compare().await;
            }
        }
        let all: Vec<Arc<Server>> = self.shared.servers().values().cloned().collect();
        Ok(all.iter().filter_map(|server| server.found()).collect())
    }

    fn watch(&self) -> broadcast::Receiver<News> {
        self.shared.news.subscribe()
    }

    async fn logs(
        &self,
        server: &ServerName,
        range: LogRange,
    ) -> Result<mpsc::Receiver<String>, EngineError> {
        crate::logs::open(&self.shared.tasks, &self.shared.logs_dir, server, range).await
    }

    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        let server = self.server(key)?;
        let known = server.state().pump.clone();
        if let Some(pump) = known {
            return pump.attach(key).await;
        }
        let (_, up, _) = self.reach(key).await?;
        let connected = self.shared.connect(&server, &up).await;
        connected.map_err(|failure| EngineError::Away(failure.to_string()))?;
        let pump = server.state().pump.clone();
        pump.ok_or_else(|| EngineError::NoSuchRun(key.clone()))?.attach(key).await
    }

    async fn endpoint(&self, key: &RunKey, port: u16) -> Result<Vec<SocketAddr>, EngineError> {
        let (server, up, container) = self.reach(key).await?;
        let known = server.state().ports.get(&port).copied();
        if let Some(outside) = known {
            return Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, outside))]);
        }
        let found = up.api.inspect(&container).await.map_err(|failure| EngineError::Engine {
            what: "looking up its port",
            why: failure.to_string(),
        })?;
        // In the host's own network its port is ours.
        let outside = found.ports.get(&port).copied().unwrap_or(port);
        Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, outside))])
    }

    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError> {
        let server = self.server(key)?;
        let pump = server.state().pump.clone();
        Ok(pump.map(|pump| pump.stderr()).unwrap_or_default())
    }

    async fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        crate::logs::remove(&self.shared.logs_dir, server)?;
        self.shared.wanted().remove(server);
        let known = self.shared.servers().remove(server);
        self.shared.records.remove(server).map_err(EngineError::io("removing a record"))?;
        let Some(known) = known else { return Ok(()) };
        let _busy = known.busy.lock().await;
        let (host, container) = {
            let mut state = known.state();
            state.pump = None;
            (Arc::clone(&state.host), state.container.take())
        };
        // One whose engine is away is swept when that is back.
        if let (Reach::Up(up), Some(container)) = (host.reach(), container)
            && let Err(error) = up.api.remove(&container).await
        {
            tracing::warn!(%server, container, %error, "cannot remove a container yet");
        }
        Ok(())
    }
}

/// A server that speaks HTTP is reached through this machine, where its engine must be.
fn check_reach(container: &ContainerSpec, address: &Address) -> Result<(), StartError> {
    let here = match address {
        Address::Unix(_) => true,
        Address::Tcp { host_port, .. } => {
            let host = host_port.rsplit_once(':').map_or(host_port.as_str(), |(host, _)| host);
            matches!(host, "localhost" | "127.0.0.1" | "[::1]")
        }
    };
    for volume in &container.volumes {
        if here && volume.source.starts_with('/') && !Path::new(&volume.source).exists() {
            let why = format!("`{}`, which it is to see, does not exist", volume.source);
            return Err(StartError::Refused(why));
        }
    }
    if container.transport == Transport::Stdio || here {
        return Ok(());
    }
    let why = format!("{address} is another machine: a server there must speak stdio");
    Err(StartError::Refused(why))
}
