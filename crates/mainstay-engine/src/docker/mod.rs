//! Containers in Docker, and in engines with the same API, such as Podman.
//!
//! A server has one container, which is created for its first run and started again for every other run.
//! Its id is recorded, and only containers with a recorded id are stopped, removed or attached to. Labels
//! and names prove nothing, because anyone can copy them: see [`ownership`].
//!
//! * [`host`] watches one engine, [`api`] sends requests to it;
//! * [`watch`] decides what events and inspections mean, [`news`] reports it;
//! * [`compare`] finds what no event reported, and removes containers that no server needs;
//! * [`creations`] records what was created, [`ownership`] decides which containers are ours to remove;
//! * [`start`] creates containers and starts them, [`body`] is the request that creates them;
//! * [`observe`] finds out what a run does that does not answer;
//! * [`pump`] carries the lines of a run, across outages too; [`streams`] connects it, [`splice`] joins log and stream.

mod api;
mod body;
mod compare;
mod creations;
mod host;
mod log_writer;
mod news;
mod observe;
mod ownership;
mod pull;
mod pump;
mod records;
mod refusal;
mod server;
mod shared;
mod splice;
mod start;
mod streams;
mod watch;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::start_activity::StartEvidence;
use mainstay_core::{Cause, ContainerSpec, ServerName, ServerSpec, Transport, Workload};
use tokio::sync::{broadcast, mpsc};

use self::api::Failure;
use self::host::{Host, LiveEngine, Reachability};
use self::server::Server;
use self::shared::Shared;
use crate::discover::Address;
use crate::tasks::blocking;
use crate::{
    Endpoint, Engine, EngineError, Found, LogLine, LogRange, News, Observation, RunKey, StartError,
    Started, Stdio,
};

pub use self::pull::Pulled;

#[derive(Debug)]
pub struct DockerConfig {
    /// The instance of Mainstay, which is a label of its containers.
    pub instance: String,
    /// All servers. Recorded containers of others are removed.
    pub wanted: BTreeSet<ServerName>,
    /// The directory of the records of containers.
    pub records_dir: PathBuf,
    /// Where servers' logs are written.
    pub logs_dir: PathBuf,
    /// The environment, which may name engines.
    pub env: Vec<(OsString, OsString)>,
    /// When a log is rotated.
    pub log_max_bytes: u64,
    /// How many rotated logs are kept.
    pub log_keep: u32,
}

/// The engine for containers.
#[derive(Debug)]
pub struct DockerEngine {
    shared: Arc<Shared>,
}

impl DockerEngine {
    /// Opens the engine. That succeeds even if no container engine answers.
    pub async fn open(config: DockerConfig) -> Result<Self, EngineError> {
        let shared = blocking(|| Shared::open(config)).await?;
        shared.wait_for_engines().await;
        Ok(Self { shared })
    }

    /// Pulls the image of such a server. The channel closes after the end.
    pub async fn pull(
        &self,
        container: &ContainerSpec,
    ) -> Result<mpsc::Receiver<Pulled>, StartError> {
        let (_, engine) = self.shared.choose_engine(container).await?;
        Ok(pull::pull(&self.shared.tasks, engine.api, &container.image))
    }

    fn server(&self, key: &RunKey) -> Result<Arc<Server>, EngineError> {
        let server = self.shared.server(&key.server);
        let server = server.filter(|server| server.state().watch.run() == Some(key.run));
        server.ok_or_else(|| EngineError::NoSuchRun(key.clone()))
    }

    /// The container of a run, at an engine that answers.
    async fn reach(&self, key: &RunKey) -> Result<(Arc<Server>, LiveEngine, String), EngineError> {
        let server = self.server(key)?;
        let (host, container) = {
            let state = server.state();
            (Arc::clone(&state.host), state.container.clone())
        };
        let container = container.ok_or_else(|| EngineError::NoSuchRun(key.clone()))?;
        let engine =
            host.engine().await.map_err(|unreachable| EngineError::Away(unreachable.why))?;
        Ok((server, engine, container))
    }

    /// Stops or kills a run in the background.
    async fn end(&self, key: &RunKey, grace: Option<Duration>) -> Result<(), EngineError> {
        let (server, engine, container) = match self.reach(key).await {
            Ok(reached) => reached,
            Err(EngineError::NoSuchRun(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        server.state().watch.ending();
        self.shared.tasks.spawn(async move {
            let ended = match grace {
                Some(grace) => engine.api.stop(&container, grace).await,
                None => engine.api.kill(&container).await,
            };
            let ended = match ended {
                // A paused container cannot be stopped or killed.
                Err(Failure::Conflict(_) | Failure::Refused(_) | Failure::Internal(_)) => {
                    engine.api.unpause(&container).await.ok();
                    engine.api.kill(&container).await
                }
                other => other,
            };
            if let Err(error) = ended {
                tracing::warn!(server = %server.name, %error, "cannot end a container");
            }
            server.inspect_at(tokio::time::Instant::now());
        });
        Ok(())
    }
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
    fn abandon(&self) {
        self.shared.tasks.abort_all();
    }

    async fn prepare(&self, spec: &ServerSpec) -> Result<ServerSpec, StartError> {
        let container = container_of(spec)?;
        let (address, engine) = self.shared.choose_engine(container).await?;
        check_reach(container, &address)?;
        engine.api.has_image(&container.image).await.map_err(|failure| match failure {
            Failure::Missing(_) => StartError::NoImage { image: container.image.to_string() },
            failure => StartError::Refused(failure.to_string()),
        })?;
        self.shared.check_by_trial(&address, &engine, spec, container).await?;
        let mut spec = spec.clone();
        if let Workload::Container(container) = &mut spec.workload {
            container.engine = Some(engine.identity.kind);
            container.host = Some(address.to_string());
        }
        Ok(spec)
    }

    async fn start(&self, key: &RunKey, spec: &ServerSpec) -> Result<Started, StartError> {
        self.shared.start(key, spec, container_of(spec)?).await
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
            if let Reachability::Up(_) = host.reachability() {
                host.compare().await;
            }
        }
        self.shared.listed.store(true, Ordering::Relaxed);
        let all: Vec<Arc<Server>> = self.shared.servers().values().cloned().collect();
        for server in all.iter().filter(|server| server.state().removed) {
            // A receiver may have missed it.
            let key = server.key(server.state().watch.last());
            self.shared.send(News::Gone { key, cause: Cause::Removed });
        }
        Ok(all.iter().filter_map(|server| server.found()).collect())
    }

    fn watch(&self) -> broadcast::Receiver<News> {
        let early = mainstay_core::lock(&self.shared.early_news).take();
        early.unwrap_or_else(|| self.shared.news.subscribe())
    }

    async fn logs(
        &self,
        server: &ServerName,
        range: LogRange,
    ) -> Result<mpsc::Receiver<LogLine>, EngineError> {
        self.shared.log_writer.flush().await;
        crate::logs::open(&self.shared.tasks, &self.shared.logs_dir, server, range).await
    }

    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        let server = self.server(key)?;
        let known = server.state().pump.clone();
        if let Some(pump) = known {
            return pump.attach(key).await;
        }
        let (_, engine, _) = self.reach(key).await?;
        let connected = self.shared.connect_streams(&server, &engine).await;
        connected.map_err(|failure| EngineError::Away(failure.to_string()))?;
        let pump = server.state().pump.clone();
        pump.ok_or_else(|| EngineError::NoSuchRun(key.clone()))?.attach(key).await
    }

    async fn endpoint(&self, key: &RunKey, port: u16) -> Result<Endpoint, EngineError> {
        let (server, engine, container) = self.reach(key).await?;
        server.state().http_port = Some(port);
        let known = server.state().ports.outside(port);
        let outside = if let Some(outside) = known {
            outside
        } else {
            let inspected = engine.api.inspect(&container).await.map_err(no_port)?;
            server.state().run_started(&inspected);
            let published = inspected.ports.get(&port).copied();
            published.ok_or_else(|| no_port(format!("port {port} is not published")))?
        };
        Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, outside))].into())
    }

    async fn has_moved(&self, key: &RunKey, port: u16) -> bool {
        let Ok((server, engine, container)) = self.reach(key).await else { return false };
        let Ok(inspected) = engine.api.inspect(&container).await else { return false };
        let mut state = server.state();
        let same_run = inspected.state.running && inspected.state.started_at == state.started_at;
        same_run && state.ports.update(port, &inspected.ports)
    }

    async fn observe(&self, key: &RunKey) -> Result<Observation, EngineError> {
        self.observe_container(key).await
    }

    async fn observe_start(&self, key: &RunKey) -> Result<StartEvidence, EngineError> {
        self.observe_container_start(key).await
    }

    async fn log_stacks(&self, key: &RunKey) -> Result<(), EngineError> {
        self.log_container_stacks(key).await
    }

    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError> {
        let server = self.server(key)?;
        let pump = server.state().pump.clone();
        Ok(pump.map(|pump| pump.stderr()).unwrap_or_default())
    }

    async fn release(&self, server: &ServerName) -> Result<(), EngineError> {
        let known = self.shared.server(server);
        self.shared.wanted().remove(server);
        let Some(known) = known else { return Ok(()) };
        let _busy = known.busy.lock().await;
        let (host, record) = {
            let mut state = known.state();
            let record = state.record();
            state.drop_container();
            (Arc::clone(&state.host), record)
        };
        self.shared.servers().remove(server);
        let dropped = self.shared.drop_record(server).await;
        dropped.map_err(EngineError::io("recording a container that is to be removed"))?;
        if let Some(record) = record
            && let Reachability::Up(engine) = host.reachability()
            && engine.identity.id == record.engine
            && let Err(error) = self.shared.remove(&engine.api, &record.container).await
        {
            // It is removed when the engine is back, perhaps by the next daemon.
            tracing::debug!(%server, %error, "cannot remove a container yet");
        }
        Ok(())
    }

    async fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        self.release(server).await?;
        self.shared.log_writer.remove(server).await
    }
}

fn no_port(why: impl fmt::Display) -> EngineError {
    EngineError::Engine { what: "looking up its port", why: why.to_string() }
}

/// A server that speaks HTTP is reached through this machine, so its engine must be local.
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
            let why = format!("the source `{}` of a volume does not exist", volume.source);
            return Err(StartError::Refused(why));
        }
    }
    if container.transport == Transport::Stdio || here {
        return Ok(());
    }
    let why = format!("{address} is another machine: a server there must speak stdio");
    Err(StartError::Refused(why))
}
