//! How a daemon begins: everything is opened, and every server taken up.

pub(crate) mod dirs;
pub(crate) mod inherited;
pub(crate) mod preflight;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use mainstay_api::{Around, Instance, Machine};
use mainstay_core::{ServerName, Wanted};
use mainstay_engine::{
    DockerConfig, DockerEngine, News, ProcessConfig, ProcessEngine, RemoteEngine, RunKey,
    newest_daemon_of_shims,
};
use mainstay_proxy::SessionIds;
use tokio::net::UnixListener;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

use crate::capacity::Capacity;
use crate::control::CommandLimits;
use crate::driver::Context;
use crate::engines::{Engines, Home};
use crate::entries::{self, Clients};
use crate::gateway::Gateway;
use crate::handover::LifecycleRequest;
use crate::handover::relay;
use crate::holder_client::HolderClient;
use crate::listen::{self, Access, HttpListeners, Listener, Sockets, own_addr};
use crate::registry::Registry;
use crate::run_session::Memory;
use crate::service::Service;
use crate::state::event_log::{self, EventLog};
use crate::state::session_store::{self, SessionStore};
use crate::state::store::{self, Store, Stored};
use crate::state::{session_key, stream_journal};
use crate::{
    CLIENTS_DIR, CONTAINERS, Config, LOG_BYTES, LOG_KEEP, RunError, SESSIONS, STATE, STREAMS, clock,
};

/// How many connections of `mainstay connect` wait to be served.
const HTTP_CONNECTIONS: usize = 64;

/// What a daemon lives by.
pub(crate) struct Running {
    pub(crate) service: Arc<Service>,
    pub(crate) engines: Engines,
    /// The engines' news from the very beginning.
    pub(crate) news: Vec<broadcast::Receiver<News>>,
    pub(crate) sessions: SessionStore,
    /// Whether clients have sessions that nobody knows any more.
    pub(crate) sessions_lost: bool,
    pub(crate) front: HttpListeners,
    /// The control socket.
    pub(crate) commands: UnixListener,
}

/// Opens everything and takes up every server.
pub(crate) async fn start(
    config: Config,
    holder: HolderClient,
    lifecycle_requests: mpsc::Sender<LifecycleRequest>,
) -> Result<Running, RunError> {
    let instance = config.instance.clone();
    let [state, events, kept_sessions] =
        [STATE, store::EVENTS, SESSIONS].map(|name| instance.state_dir.join(name));
    if holder.circumstances().replacement_failed.is_some() {
        Store::undo_migration(&state)?;
        event_log::undo_migration(&events);
        session_store::undo_migration(&kept_sessions);
    }
    store::loss::refuse(&instance)?;
    let store = Store::open(&state)?;
    let instance_id = store.instance()?;
    let daemon = store.next_daemon(newest_seen(&instance, &store).await)?;
    let stored = store.load()?;
    let first = listen::first_addr(config.listen.first, &store, stored.is_empty())?;
    let listens = addresses(first, &config, &stored);
    let access = Access::new(&config.access);
    access.admit(store.load_tokens()?);
    let event_log = EventLog::open_or_do_without(&events)?;
    let known = event_log::earlier_runs(&events);
    let memory = Memory::open(instance.sessions_dir())
        .map_err(|source| RunError::directory(&instance.run_dir, source))?;
    let clients =
        Clients::open(surroundings(&config, &instance), store.clone(), event_log.clone())?;
    let (engines, containers) =
        open_engines(&config, &instance_id, daemon, in_containers(&stored), &memory).await?;
    let (sessions, kept) =
        SessionStore::open(&kept_sessions, &instance.run_dir.join(STREAMS), daemon);
    let sessions_lost = kept.lost;
    let keys = session_key::load(&instance.state_dir, &store);
    let ids = SessionIds::new(&keys.key, sessions.era()).recognising(keys.other.as_ref());
    let gateway = Gateway::new(event_log.clone(), Arc::new(sessions.clone()), kept, ids);
    let hubs = Arc::clone(&gateway.hubs);
    let sockets = Sockets::HolderClient(holder.clone());
    let context = Context {
        engines: engines.clone(),
        store,
        event_log,
        memory,
        hubs,
        clients,
        sockets,
        access,
        daemon,
        boot: Machine::current().boot.into(),
    };
    // Before the list, so that no end falls between the two.
    let news = engines.watch();
    let (mut all_inherited, mut unwanted) = inherited::sort_out(known, engines.list().await?);
    let forgotten =
        all_inherited.iter().map(|(name, inherited)| (name.clone(), inherited.last)).collect();
    let registry = Registry::new(context.clone(), gateway.clone(), forgotten);
    gateway.provide_from(&registry);
    // Nothing fails from here on. If this daemon cannot start, another one attaches to the servers and continues the
    // connections of clients.
    let commands = control_socket(&holder, &instance).await?;
    holder.take_connections();
    for server in stored {
        let name = server.spec.name.clone();
        let mut inherited = all_inherited.remove(&name).unwrap_or_default();
        let misplaced = inherited.take_misplaced(Home::of(&server.spec.workload));
        unwanted.extend(misplaced.map(|found| (found.home, RunKey::new(name, found.run))));
        registry.adopt(server, &inherited);
    }
    // Before anything is waited for, so that no run is entered before.
    registry.keep_orphans(all_inherited);
    gateway.restore(relay::Mark::is_set(&instance.run_dir));
    let survivors = registry.take_orphans().into_iter().filter_map(|(server, inherited)| {
        inherited.adopted.map(|found| (found.home, RunKey::new(server, found.run)))
    });
    unwanted.extend(survivors);
    sweep_runs(&context, &registry, unwanted).await;
    holder.release_others(&listens).await;
    let capacity = Capacity::of_this_process();
    let (http, connections) = mpsc::channel(HTTP_CONNECTIONS);
    let private = Listener::private(connections, capacity.connected, &context);
    let mut front = HttpListeners::new(first, &config.listen.more, private, &context);
    front.first.settle().await;
    let listen = front.first.watch();
    let watched = config.listen.more.iter().copied().zip(front.more.iter().map(Listener::watch));
    let watched = watched.collect();
    context.clients.listen_at(listen.clone());
    let started_at = clock::wall();
    let service = Service {
        instance,
        instance_id,
        started_at,
        context,
        containers,
        registry,
        gateway,
        listen,
        more: watched,
        limits: CommandLimits::new(capacity),
        http,
        holder,
        lifecycle_requests,
    };
    let service = Arc::new(service);
    Ok(Running { service, engines, news, sessions, sessions_lost, front, commands })
}

async fn control_socket(
    holder: &HolderClient,
    instance: &Instance,
) -> Result<UnixListener, RunError> {
    let bound = holder.listen_for_commands(&instance.run_dir).await;
    bound.map_err(|source| RunError::Socket { path: instance.socket(), source })
}

/// The highest number of an earlier daemon that anything but the store knows. Shims are asked only if the journal of
/// streams was not left by the daemon that the store names: the store may be an older copy.
async fn newest_seen(instance: &Instance, store: &Store) -> u64 {
    let of_streams = stream_journal::newest_daemon(&instance.run_dir.join(STREAMS));
    if of_streams == Some(store.daemon()) {
        return store.daemon();
    }
    newest_daemon_of_shims(&instance.runs_dir()).await.max(of_streams.unwrap_or_default())
}

/// All engines, and the one of containers once more, for what only that can do.
async fn open_engines(
    config: &Config,
    instance_id: &str,
    daemon: u64,
    wanted: BTreeSet<ServerName>,
    memory: &Memory,
) -> Result<(Engines, Arc<DockerEngine>), RunError> {
    let instance = &config.instance;
    let process = ProcessEngine::open(ProcessConfig {
        shim: config.exe.clone(),
        runs_dir: instance.runs_dir(),
        logs_dir: instance.logs_dir(),
        instance: instance_id.to_owned(),
        daemon,
        env: config.env.clone(),
        log_max_bytes: LOG_BYTES,
        log_keep: LOG_KEEP,
    });
    let containers = DockerEngine::open(DockerConfig {
        instance: instance_id.to_owned(),
        wanted,
        records_dir: instance.state_dir.join(CONTAINERS),
        logs_dir: instance.logs_dir(),
        env: config.env.clone(),
        log_max_bytes: LOG_BYTES,
        log_keep: LOG_KEEP,
    });
    let (process, containers) = (process?, Arc::new(containers.await?));
    let elsewhere = memory.elsewhere().into_iter().map(|(key, at)| (key, clock::since(at)));
    let engines = Engines {
        process: Arc::new(process),
        container: Arc::<DockerEngine>::clone(&containers),
        remote: Arc::new(RemoteEngine::resumed(elsewhere)),
    };
    Ok((engines, containers))
}

/// Where this daemon listens for MCP clients.
fn addresses(first: SocketAddr, config: &Config, stored: &[Stored]) -> Vec<SocketAddr> {
    let on = stored.iter().filter(|server| server.wanted == Wanted::On);
    let own = on.filter_map(|server| server.spec.proxy.port).map(own_addr);
    own.chain([first]).chain(config.listen.more.iter().copied()).collect()
}

/// What clients' entries depend on.
fn surroundings(config: &Config, instance: &Instance) -> entries::Surroundings {
    let env = config
        .env
        .iter()
        .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value.to_str()?.to_owned())));
    let env: BTreeMap<String, String> = env.collect();
    let home = env.get("HOME").map(PathBuf::from).unwrap_or_default();
    entries::Surroundings {
        state_dir: instance.state_dir.join(CLIENTS_DIR),
        exe: config.exe.clone(),
        home: env.get("MAINSTAY_HOME").filter(|home| !home.is_empty()).map(PathBuf::from),
        refresh: config.refresh,
        around: Around { home, env },
    }
}

/// The servers that are to run in containers. What is left of the containers of others is swept.
fn in_containers(stored: &[Stored]) -> BTreeSet<ServerName> {
    let specs = stored.iter().map(|server| &server.spec);
    let contained = specs.filter(|spec| Home::of(&spec.workload) == Home::Container);
    contained.map(|spec| spec.name.clone()).collect()
}

/// Ends runs that nobody wants, all at once: those of ended sessions may be many, and an engine takes a while for each.
async fn sweep_runs(context: &Context, registry: &Registry, unwanted: Vec<(Home, RunKey)>) {
    let mut sweeps = JoinSet::new();
    for (home, key) in unwanted {
        let (context, known) = (context.clone(), registry.get(&key.server).is_ok());
        sweeps.spawn(async move { sweep_run(&context, home, &key, known).await });
    }
    sweeps.join_all().await;
}

/// Ends a run that nobody wants. If its server is not known either, nothing of its container is left.
/// A failure is no reason not to start: the engine itself sweeps what nobody wants, too.
async fn sweep_run(context: &Context, home: Home, key: &RunKey, known: bool) {
    let (server, run) = (&key.server, key.run);
    tracing::warn!(%server, %run, "ending a run that nobody wants");
    let engine = context.engines.at(home);
    let mut swept = engine.kill(key).await;
    if swept.is_ok() && home == Home::Container && !known {
        swept = engine.forget(server).await;
    }
    if let Err(error) = swept {
        tracing::warn!(%server, %run, %error, "the run stays for now");
    }
    context.memory.forget(key);
}
