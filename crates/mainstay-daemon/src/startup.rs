//! The start of a daemon: opens the state, attaches to the servers that run, and listens.

pub(crate) mod dirs;
pub(crate) mod inherited;
pub(crate) mod preflight;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_api::{Around, Instance, Machine};
use mainstay_core::{ServerName, Wanted, WorkloadKind};
use mainstay_engine::{
    DockerConfig, DockerEngine, ProcessConfig, ProcessEngine, RemoteEngine, RunKey,
    newest_daemon_of_shims,
};
use mainstay_proxy::SessionIds;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::inherited::Inherited;
use crate::background::pass_on_news;
use crate::capacity::Capacity;
use crate::control::CommandLimits;
use crate::driver::Context;
use crate::engines::Engines;
use crate::entries::{Clients, ClientsConfig};
use crate::gateway::Gateway;
use crate::handover::{LifecycleRequests, relay};
use crate::holder_client::HolderClient;
use crate::listen::{self, Access, Listener, Sockets, own_addr};
use crate::registry::{OpenServer, Registry};
use crate::run_requests;
use crate::run_session::SessionFiles;
use crate::service::Service;
use crate::state::event_log::{self, EventLog};
use crate::state::schemas::{EVENTS, INTENT, SESSIONS};
use crate::state::session_store::SessionStore;
use crate::state::store::{self, Store, StoreError, Stored};
use crate::state::{session_key, stream_journal};
use crate::{
    CLIENTS_DIR, CONTAINERS, Config, Daemon, FreezeOnDrop, LOG_BYTES, LOG_KEEP, RunError, STREAMS,
    clock,
};

/// How many connections of `mainstay connect` wait to be served.
const HTTP_CONNECTIONS: usize = 64;

/// Opens everything and resumes every server.
pub(crate) async fn build(config: Config, holder: HolderClient) -> Result<Daemon, RunError> {
    let instance = config.instance.clone();
    let [state, events, sessions] =
        [INTENT, EVENTS, SESSIONS].map(|schema| schema.path_in(&instance.state_dir));
    if holder.start_info().replacement_failed.is_some() {
        undo_migrations(&instance.state_dir)?;
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
    let event_log = EventLog::open_or_in_memory(&events)?;
    let known = event_log::earlier_runs(&events);
    let session_files = SessionFiles::open(instance.sessions_dir())
        .map_err(|source| RunError::directory(&instance.run_dir, source))?;
    let clients =
        Clients::open(clients_config(&config, &instance), store.clone(), event_log.clone())?;
    let (engines, containers) =
        open_engines(&config, &instance_id, daemon, in_containers(&stored), &session_files).await?;
    let (sessions, kept) = SessionStore::open(&sessions, &instance.run_dir.join(STREAMS), daemon);
    let sessions_lost = kept.lost;
    let keys = session_key::load(&instance.state_dir, &store);
    let ids = SessionIds::new(&keys.key, sessions.era()).recognising(keys.other.as_ref());
    let (to_registry, requests) = run_requests::channel();
    let gateway =
        Gateway::new(event_log.clone(), Arc::new(sessions.clone()), kept, ids, to_registry);
    let context = Context {
        engines: engines.clone(),
        store,
        event_log,
        session_files,
        servers: Arc::clone(&gateway.servers),
        clients,
        sockets: Sockets(Some(holder.clone())),
        access,
        daemon,
        is_successor: holder.start_info().standby,
        boot: Machine::current().boot.into(),
    };
    // Before the list, so that no end of a run is missed.
    let news = engines.watch();
    let inherited = inherited::sort_out(known, engines.list().await?);
    let earlier = inherited.0.iter().map(|(name, of_one)| (name.clone(), of_one.last)).collect();
    let (registry, ended) = Registry::new(context.clone(), opener(&gateway), earlier);
    // The last step that can fail: after it, only this daemon can attach to the servers and continue the connections of
    // clients.
    let control_socket = control_socket(&holder, &instance).await?;
    holder.take_connections();
    let relayed = relay::is_marked(&instance.run_dir);
    resume_servers(&context, &registry, &gateway, stored, inherited, relayed).await;
    holder.release_others(&listens).await;
    let capacity = Capacity::of_this_process();
    let (http, connections) = mpsc::channel(HTTP_CONNECTIONS);
    let mut listener = Listener::for_all(first, &context);
    let mut listeners = vec![Listener::private(connections, capacity.connected, &context)];
    let mut more = Vec::new();
    for addr in config.listen.more {
        let listener = Listener::for_all(addr, &context);
        more.push((addr, listener.watch()));
        listeners.push(listener);
    }
    listener.bind_attempted().await;
    let listen = listener.watch();
    listeners.push(listener);
    context.clients.listen_at(listen.clone());
    let pass_on = |news| pass_on_news(engines.clone(), news, registry.clone());
    let mut messengers: JoinSet<()> = news.into_iter().map(pass_on).collect();
    messengers.spawn(registry.clone().run(requests, ended));
    let (lifecycle_requests, inbox) = mpsc::channel(1);
    let service = Arc::new(Service {
        instance,
        instance_id,
        started_at: clock::wall(),
        context,
        containers,
        registry,
        gateway,
        listen,
        more,
        limits: CommandLimits::new(capacity),
        http,
        holder,
        lifecycle_requests,
    });
    Ok(Daemon {
        _freeze: FreezeOnDrop(Arc::clone(&service.gateway.servers)),
        service,
        exe: config.exe,
        sessions,
        sessions_lost,
        listeners,
        control_socket,
        requests: Some(LifecycleRequests::new(inbox)),
        messengers,
        command_tasks: JoinSet::new(),
        relay_mark: None,
    })
}

/// How the registry creates servers: it does not know the gateway.
fn opener(gateway: &Gateway) -> OpenServer {
    let gateway = gateway.clone();
    Arc::new(move |name, settings, driver| gateway.add(name, settings, driver))
}

/// Undoes the migrations of a newer program that failed afterwards.
fn undo_migrations(state_dir: &Path) -> Result<(), StoreError> {
    INTENT.undo_migration(&INTENT.path_in(state_dir))?;
    for schema in [EVENTS, SESSIONS] {
        // A daemon can start without either of them.
        if let Err(error) = schema.undo_migration(&schema.path_in(state_dir)) {
            tracing::error!(%error, "the {} from before the update cannot be restored", schema.what);
        }
    }
    Ok(())
}

/// Gives every server its driver and its sessions, and ends the runs that belong to no server. `relayed` says whether an
/// earlier daemon finishes calls.
async fn resume_servers(
    context: &Context,
    registry: &Registry,
    gateway: &Gateway,
    stored: Vec<Stored>,
    (mut inherited, mut unwanted): (HashMap<ServerName, Inherited>, Vec<(WorkloadKind, RunKey)>),
    relayed: bool,
) {
    for server in stored {
        let name = server.spec.name.clone();
        let mut of_one = inherited.remove(&name).unwrap_or_default();
        let misplaced = of_one.take_misplaced(server.spec.workload.kind());
        unwanted.extend(misplaced.map(|(engine, found)| (engine, RunKey::new(name, found.run))));
        registry.add(server, &of_one);
    }
    // Before the first await, so that no run is attached earlier.
    registry.keep_inherited(inherited);
    gateway.restore(relayed, |server, session| registry.resume_session_run(server, session));
    let orphans = registry.take_inherited().into_iter().filter_map(|(server, inherited)| {
        inherited.alive.map(|(engine, found)| (engine, RunKey::new(server, found.run)))
    });
    unwanted.extend(orphans);
    sweep_runs(context, registry, unwanted).await;
}

async fn control_socket(
    holder: &HolderClient,
    instance: &Instance,
) -> Result<UnixListener, RunError> {
    let bound = holder.listen_for_commands(&instance.run_dir).await;
    bound.map_err(|source| RunError::Socket { path: instance.socket(), source })
}

/// The highest number of an earlier daemon in the journal or in shims. Shims are asked only if the numbers in journal and
/// store differ: the store may be an older copy.
async fn newest_seen(instance: &Instance, store: &Store) -> u64 {
    let of_streams = stream_journal::newest_daemon(&instance.run_dir.join(STREAMS));
    if of_streams == Some(store.daemon()) {
        return store.daemon();
    }
    newest_daemon_of_shims(&instance.runs_dir()).await.max(of_streams.unwrap_or_default())
}

/// All engines, and again the one for containers, which can also pull images.
async fn open_engines(
    config: &Config,
    instance_id: &str,
    daemon: u64,
    wanted: BTreeSet<ServerName>,
    session_files: &SessionFiles,
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
    let elsewhere =
        session_files.remote_runs().into_iter().map(|(key, at)| (key, clock::since(at)));
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

fn clients_config(config: &Config, instance: &Instance) -> ClientsConfig {
    let env = config
        .env
        .iter()
        .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value.to_str()?.to_owned())));
    let env: BTreeMap<String, String> = env.collect();
    let home = env.get("HOME").map(PathBuf::from).unwrap_or_default();
    ClientsConfig {
        state_dir: instance.state_dir.join(CLIENTS_DIR),
        exe: config.exe.clone(),
        home: env.get("MAINSTAY_HOME").filter(|home| !home.is_empty()).map(PathBuf::from),
        refresh: config.refresh,
        around: Around { home, env },
    }
}

/// The servers that are to run in containers. Containers of others are removed.
fn in_containers(stored: &[Stored]) -> BTreeSet<ServerName> {
    let specs = stored.iter().map(|server| &server.spec);
    let contained = specs.filter(|spec| spec.workload.kind() == WorkloadKind::Container);
    contained.map(|spec| spec.name.clone()).collect()
}

/// Ends runs that belong to no server that is on. This is concurrent: there may be many runs of ended sessions, and ending
/// one takes time.
async fn sweep_runs(context: &Context, registry: &Registry, unwanted: Vec<(WorkloadKind, RunKey)>) {
    let mut sweeps = JoinSet::new();
    for (engine, key) in unwanted {
        let (context, known) = (context.clone(), registry.get(&key.server).is_ok());
        sweeps.spawn(async move { sweep_run(&context, engine, &key, known).await });
    }
    sweeps.join_all().await;
}

/// Also removes the container of a server that is not known. A failure does not prevent the start: the engine itself
/// sweeps such runs, too.
async fn sweep_run(context: &Context, kind: WorkloadKind, key: &RunKey, known: bool) {
    let (server, run) = (&key.server, key.run);
    tracing::warn!(%server, %run, "ending a run that belongs to no server");
    let engine = context.engines.at(kind);
    let mut swept = engine.kill(key).await;
    if swept.is_ok() && kind == WorkloadKind::Container && !known {
        swept = engine.forget(server).await;
    }
    if let Err(error) = swept {
        tracing::warn!(%server, %run, %error, "cannot end the run; it keeps running for now");
    }
    context.session_files.remove(key);
}
