//! State that the parts of [`DockerEngine`](super::DockerEngine) share.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use mainstay_core::{ContainerSpec, ServerName};
use tokio::sync::broadcast;
use tokio::time::timeout;

use super::DockerConfig;
use super::api::{Api, Failure};
use super::creations::Creations;
use super::host::{Host, LiveEngine, Reachability, Unreachable};
use super::log_writer::LogWriter;
use super::ownership::Need;
use super::records::{Record, Records};
use super::server::Server;
use crate::discover::{self, Address, AddressError, Disk, Env};
use crate::tasks::{Tasks, blocking};
use crate::{EngineError, News, StartError};

/// How long the start of a daemon waits for engines to answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);

/// News that is kept for a slow receiver.
const NEWS: usize = 1024;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) instance: String,
    pub(super) env: Env,
    pub(super) logs_dir: PathBuf,
    pub(super) log_writer: LogWriter,
    pub(super) records: Records,
    pub(super) creations: Creations,
    pub(super) news: broadcast::Sender<News>,
    /// Receives the news before the first subscriber.
    pub(super) early_news: Mutex<Option<broadcast::Receiver<News>>>,
    /// Whether the runs that were found at the start have been listed.
    pub(super) listed: AtomicBool,
    pub(super) hosts: Mutex<HashMap<Address, Arc<Host>>>,
    pub(super) servers: Mutex<HashMap<ServerName, Arc<Server>>>,
    pub(super) wanted: Mutex<BTreeSet<ServerName>>,
    pub(super) tasks: Tasks,
}

impl Shared {
    /// Resumes with the records of an earlier daemon.
    pub(super) fn open(config: DockerConfig) -> Result<Arc<Self>, EngineError> {
        let opened = Creations::open(config.records_dir.clone());
        let creations = opened.map_err(EngineError::io("reading the records of containers"))?;
        let opened = Records::open(config.records_dir.clone());
        let (records, known) =
            opened.map_err(EngineError::io("reading the records of containers"))?;
        let DockerConfig { logs_dir, log_max_bytes, log_keep, .. } = &config;
        let started = LogWriter::start(logs_dir.clone(), *log_max_bytes, *log_keep);
        let log_writer = started.map_err(EngineError::io("starting a thread"))?;
        let (news, early_news) = broadcast::channel(NEWS);
        let shared = Arc::new(Shared {
            instance: config.instance,
            env: Env::new(config.env),
            logs_dir: config.logs_dir,
            log_writer,
            records,
            creations,
            news,
            early_news: Mutex::new(Some(early_news)),
            listed: AtomicBool::new(false),
            hosts: Mutex::default(),
            servers: Mutex::default(),
            wanted: Mutex::new(config.wanted),
            tasks: Tasks::default(),
        });
        for (name, record) in known {
            shared.resume(name, record);
        }
        for entry in shared.creations.all() {
            // Containers that no server needs are removed by the host's first comparison.
            if let Ok(address) = entry.creation.address.parse() {
                shared.host(&address);
            }
        }
        Ok(shared)
    }

    /// Resumes a server that has a container, or removes the run record of one that was forgotten.
    fn resume(self: &Arc<Self>, name: ServerName, record: Record) {
        let Record { address, engine, container, .. } = &record;
        let imported = self.creations.import(&name, address, engine, container);
        if let Err(error) = &imported {
            tracing::warn!(server = %name, %error, "the record of a container cannot be written");
        }
        if self.wanted().contains(&name) {
            match address.parse::<Address>() {
                Ok(address) => {
                    let host = self.host(&address);
                    let server = Server::recorded(name.clone(), host, record);
                    self.servers().insert(name, Arc::new(server));
                }
                Err(error) => tracing::warn!(server = %name, %error, "a record cannot be used"),
            }
        } else if imported.is_ok()
            && let Err(error) = self.records.remove(&name)
        {
            tracing::warn!(server = %name, %error, "a record cannot be removed");
        }
    }

    /// Waits a moment for the known engines to answer. Those that do not count as away.
    pub(super) async fn wait_for_engines(&self) {
        let hosts: Vec<Arc<Host>> = self.hosts().values().cloned().collect();
        let all = join_all(hosts.iter().map(|host| host.engine()));
        timeout(CONNECT_WITHIN, all).await.map(drop).ok();
        for host in hosts.iter().filter(|host| matches!(host.reachability(), Reachability::Unknown))
        {
            for server in self.servers_at(host) {
                server.state().away = true;
            }
        }
    }

    /// The names that the container of a server may have: the second one if another has the first.
    pub(super) fn names(&self, server: &ServerName) -> [String; 2] {
        let instance = self.instance.get(..8).unwrap_or(&self.instance);
        [format!("mainstay-{server}"), format!("mainstay-{server}-{instance}")]
    }

    /// Whether the container of a server at that address is at another engine than the one that answers.
    pub(super) fn waits_for_other_engine(&self, host: &Host, engine: &LiveEngine) -> bool {
        self.servers_at(host)
            .iter()
            .any(|server| server.state().is_at_other_engine(&engine.identity.id))
    }

    pub(super) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
    }

    /// Whether a container belongs to a server.
    pub(super) fn is_used(&self, container: &str) -> bool {
        let servers = self.servers();
        servers.values().any(|server| server.state().container.as_deref() == Some(container))
    }

    /// Which of the containers that were created for a server are needed.
    pub(super) fn need(&self, name: &ServerName) -> Need {
        match self.server(name) {
            Some(server) => server.need(),
            // It has not been started yet.
            None if self.wanted().contains(name) => Need::Unknown,
            None => Need::Nothing,
        }
    }

    /// Deletes the run record of a server. The ids of its containers are on disk then, so they are
    /// removed later if they cannot be removed now.
    pub(super) async fn drop_record(&self, server: &ServerName) -> io::Result<()> {
        self.creations.save_all_of(server).await?;
        let (records, server) = (self.records.clone(), server.clone());
        blocking(move || records.remove(&server)).await
    }

    /// Removes a container whose id is recorded. The record stays until the container is gone.
    pub(super) async fn remove(&self, api: &Api, container: &str) -> Result<(), Failure> {
        let removed = api.remove(container).await;
        self.note_removal(container, removed).await
    }

    /// Forgets a container whose removal has succeeded.
    pub(super) async fn note_removal(
        &self,
        container: &str,
        removed: Result<bool, Failure>,
    ) -> Result<(), Failure> {
        if removed? {
            self.creations.forget_container(container).await;
        }
        Ok(())
    }

    pub(super) fn host(self: &Arc<Self>, address: &Address) -> Arc<Host> {
        let mut hosts = self.hosts();
        let new = || Host::start(self, address.clone());
        Arc::clone(hosts.entry(address.clone()).or_insert_with(new))
    }

    /// The server of that name, which is moved to that address.
    pub(super) fn server_at(self: &Arc<Self>, name: &ServerName, address: &Address) -> Arc<Server> {
        let host = self.host(address);
        self.wanted().insert(name.clone());
        let mut servers = self.servers();
        let new = || Arc::new(Server::new(name.clone(), Arc::clone(&host)));
        let server = Arc::clone(servers.entry(name.clone()).or_insert_with(new));
        server.state().move_to(host);
        server
    }

    /// The engine for a container: the one that it names, or the first one that answers.
    pub(super) async fn choose_engine(
        self: &Arc<Self>,
        container: &ContainerSpec,
    ) -> Result<(Address, LiveEngine), StartError> {
        let (mut tried, mut is_denied) = (Vec::new(), false);
        let addresses = if container.host.is_some() {
            vec![address_of(container)?]
        } else {
            let (kind, env) = (container.engine, &self.env);
            let unusable = discover::unusable(kind, env, &Disk);
            tried.extend(unusable.iter().map(ToString::to_string));
            let found = discover::candidates(kind, env, &Disk);
            found.into_iter().map(|candidate| candidate.address).collect()
        };
        for address in addresses {
            if let Address::Unix(path) = &address
                && container.host.is_none()
                && !path.exists()
            {
                continue;
            }
            match self.probe(&address).await {
                Ok(engine) if container.engine.is_none_or(|kind| kind == engine.identity.kind) => {
                    return Ok((address, engine));
                }
                Ok(engine) => tried.push(format!("{address} is {}", engine.identity.kind)),
                Err(unreachable) => {
                    is_denied |= unreachable.is_permission_denied;
                    tried.push(unreachable.why);
                }
            }
        }
        let kind = container.engine;
        Err(if is_denied {
            StartError::EngineDenied { kind, tried }
        } else {
            StartError::NoEngine { kind, tried }
        })
    }

    /// The engine at an address, without watching it from now on.
    pub(super) async fn probe(&self, address: &Address) -> Result<LiveEngine, Unreachable> {
        let known = self.hosts().get(address).cloned();
        if let Some(host) = known {
            return host.engine().await;
        }
        let connected = Api::connect(address).await;
        let (api, identity) = connected.map_err(|failure| Unreachable::at(address, &failure))?;
        Ok(LiveEngine { api, identity })
    }

    pub(super) fn server(&self, name: &ServerName) -> Option<Arc<Server>> {
        self.servers().get(name).cloned()
    }

    /// The server of a container.
    pub(super) fn server_of(&self, host: &Host, container: &str) -> Option<Arc<Server>> {
        let servers = self.servers();
        servers
            .values()
            .find(|server| server.state().has_container(&host.address, container))
            .cloned()
    }

    pub(super) fn servers_at(&self, host: &Host) -> Vec<Arc<Server>> {
        let mut all: Vec<Arc<Server>> = self.servers().values().cloned().collect();
        all.retain(|server| server.state().host.address == host.address);
        all
    }

    pub(super) fn send(&self, news: News) {
        // Without a receiver, the next list shows it.
        self.news.send(news).ok();
    }

    pub(super) fn hosts(&self) -> MutexGuard<'_, HashMap<Address, Arc<Host>>> {
        mainstay_core::lock(&self.hosts)
    }

    pub(super) fn servers(&self) -> MutexGuard<'_, HashMap<ServerName, Arc<Server>>> {
        mainstay_core::lock(&self.servers)
    }

    pub(super) fn wanted(&self) -> MutexGuard<'_, BTreeSet<ServerName>> {
        mainstay_core::lock(&self.wanted)
    }
}

/// The address in a container's spec.
pub(super) fn address_of(container: &ContainerSpec) -> Result<Address, StartError> {
    let kind = container.engine;
    let none = || StartError::NoEngine { kind, tried: Vec::new() };
    let host = container.host.as_ref().ok_or_else(none)?;
    host.parse().map_err(|error: AddressError| StartError::Refused(error.to_string()))
}
