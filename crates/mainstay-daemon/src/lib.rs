//! Wires it together: the driver of each server, the store of intent, the control API.
//!
//! Order at start: what the holder holds, log, store, engine, then every server with both facts at once
//! (what is wanted, what still runs), and only then the socket, so whoever gets through finds a
//! daemon that knows everything. Order at the end: stop accepting and give up the socket, then drain;
//! or, for a daemon that takes our place, stop accepting, let go of everything, and say so.

mod aside;
mod calls;
mod clients;
mod clock;
mod control;
mod driver;
mod engines;
mod flood;
mod gateway;
mod ground;
mod held;
mod journal;
mod legacy;
mod listen;
mod log;
mod random;
mod registry;
mod rehearse;
mod service;
mod session;
mod sessions;
mod snapshot;
mod store;
mod succession;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainstay_api::{Around, Instance, ListenAddr};
use mainstay_core::{RefreshMode, ServerName, Wanted};
use mainstay_engine::{
    DockerConfig, DockerEngine, EngineError, News, ProcessConfig, ProcessEngine, RemoteEngine,
    RunKey,
};
use mainstay_hold::holder::Order;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use clients::Clients;
use driver::Context;
use engines::{Engines, Home};
use gateway::Gateway;
use journal::Journal;
use listen::{Listener, Sockets, own_addr};
use registry::Registry;
use service::Service;
use session::Memory;
use sessions::Sessions;
use store::{Store, Stored};
use succession::{End, Succession, Wish};
use upkeep::{keep_entries, keep_watch, pass_on_news, sweep};

pub use ground::{RunError, prepare};
pub use held::{Held, Orders, TAKE_OVER};
pub use mainstay_engine::discover;
pub use rehearse::{RehearseError, rehearse};
pub use store::StoreError;

/// The store of intent, in the state directory.
const STATE: &str = "state.db";

/// The sessions of clients, in the state directory.
const SESSIONS: &str = "sessions.db";

/// The streams of requests in flight, in the run directory.
const STREAMS: &str = "streams";

/// What is known of containers, in the state directory.
const CONTAINERS: &str = "containers";

/// What we wrote into clients' files, in the state directory.
const CLIENTS_DIR: &str = "clients";

/// How many tasks are run at most before the sockets are looked at again: with many busy sessions all
/// of them, so that one look finds what came for any of them meanwhile.
const EVENT_INTERVAL: u32 = 512;

/// Commands that are served at the same time. Those who stay, as MCP clients do, are counted apart.
const CLIENTS: usize = 128;

/// How long the last answers may take when the daemon ends.
const DRAIN: Duration = Duration::from_secs(2);

/// When a server's log is rotated, and how many old ones are kept.
const LOG_BYTES: u64 = 5 * 1024 * 1024;
const LOG_KEEP: u32 = 2;

/// What a daemon needs to know.
#[derive(Debug)]
pub struct Config {
    /// Where it keeps its things.
    pub instance: Instance,
    /// Where it listens for MCP clients.
    pub listen: ListenAddr,
    /// Whether it logs to standard error rather than to its file.
    pub foreground: bool,
    /// Its environment, of which servers get a part.
    pub env: Vec<(OsString, OsString)>,
    /// This program, which is also the shim.
    pub exe: PathBuf,
    /// When entries in clients' files are refreshed, if a server does not say.
    pub refresh: RefreshMode,
    /// What is logged, in the notation of `tracing`.
    pub log_filter: Option<String>,
}

/// Whether a daemon could read the state of this instance. Changes nothing.
pub fn inspect(instance: &Instance) -> Result<(), RunError> {
    Ok(Store::inspect(&instance.state_dir.join(STATE))?)
}

/// Runs a daemon until it is told to end, or to give way to another one.
pub fn run(config: Config, held: Held, orders: Orders) -> Result<(), RunError> {
    log::set_up(&config).map_err(RunError::Log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(2))
        .event_interval(EVENT_INTERVAL)
        .build()
        .map_err(RunError::Runtime)?;
    let ended = runtime.block_on(live(config, held, orders));
    runtime.shutdown_timeout(DRAIN);
    ended
}

async fn live(config: Config, held: Held, mut orders: Orders) -> Result<(), RunError> {
    if held.circumstances().standby && !await_turn(&config.instance, &held, &mut orders).await? {
        return Ok(());
    }
    tell_of_the_last(&held);
    let (exe, run_dir) = (config.exe.clone(), config.instance.run_dir.clone());
    let (tell, mut wishes) = mpsc::channel(1);
    let Awake { service, engines, news, sessions, sessions_lost, front } =
        wake(config, held.clone(), tell).await?;
    let registry = service.registry.clone();
    let mut messengers = JoinSet::new();
    for news in news {
        messengers.spawn(pass_on_news(engines.clone(), news, registry.clone()));
    }
    let listener = held
        .listen_for_commands(&run_dir)
        .await
        .map_err(|source| RunError::Socket { path: service.instance.socket(), source })?;
    held.ready().map_err(RunError::Holder)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "daemon ready");
    let mut clients = JoinSet::new();
    let how = tokio::select! {
        how = until_told(&mut wishes, &mut orders, &held, &exe) => how,
        () = accept(&listener, &service, &mut clients) => End::KeepServers,
        () = keep_watch(&engines, &registry) => End::KeepServers,
        () = sweep(&service.gateway) => End::KeepServers,
        () = keep_entries(&registry, service.listen.clone(), sessions_lost) => End::KeepServers,
        () = held.pulse() => End::KeepServers,
    };
    drop(listener);
    match how {
        End::KeepServers | End::EndServers => {
            let drained = front.close();
            held.ending().await;
            drained.await;
        }
        End::GiveWay => {
            held.give_way();
            service.gateway.hubs.hand_over().await;
            front.given_way().await;
        }
    }
    registry.close().await;
    tracing::info!(?how, "daemon ends");
    if how == End::EndServers {
        registry.retire().await;
    }
    messengers.abort_all();
    drop(wishes);
    if how == End::GiveWay {
        clients.abort_all();
    }
    let drained = async { while clients.join_next().await.is_some() {} };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::debug!("some clients were still listening");
    }
    service.context.clients.end().await;
    service.context.journal.close();
    service.gateway.note_use();
    sessions.close();
    if how == End::GiveWay {
        held.yielded().map_err(RunError::Holder)?;
    }
    Ok(())
}

/// Prepares to take the place of the daemon that serves, and waits until it has given way. False if
/// it goes on instead.
async fn await_turn(
    instance: &Instance,
    held: &Held,
    orders: &mut Orders,
) -> Result<bool, RunError> {
    inspect(instance)?;
    held.prepared().map_err(RunError::Holder)?;
    loop {
        match orders.next().await {
            Order::Go => {
                held.take_connections();
                return Ok(true);
            }
            // The daemon that serves looks after that, and there is nobody to ask for our turn.
            Order::HolderGone => return Ok(false),
            Order::GiveWay | Order::NotReplaced(_) => {}
        }
    }
}

/// Tells in the log why there is a new daemon at all.
fn tell_of_the_last(held: &Held) {
    let told = held.circumstances();
    if let Some(why) = &told.replacement_failed {
        tracing::error!(why, "another daemon was to take over, and could not");
    }
    if let Some(words) = &told.last_words {
        tracing::error!(words, "the last daemon died");
    }
}

/// What a daemon lives by.
struct Awake {
    service: Arc<Service>,
    engines: Engines,
    /// The engines' news from the very beginning.
    news: Vec<broadcast::Receiver<News>>,
    sessions: Sessions,
    /// Whether clients have sessions that nobody knows any more.
    sessions_lost: bool,
    front: Listener,
}

/// Opens everything and takes up every server.
async fn wake(config: Config, held: Held, wishes: mpsc::Sender<Wish>) -> Result<Awake, RunError> {
    let instance = config.instance.clone();
    let store = Store::open(&instance.state_dir.join(STATE))?;
    let instance_id = store.instance()?;
    let daemon = store.next_daemon()?;
    let stored = store.load()?;
    let listens = addresses(&config, &stored);
    let events = instance.state_dir.join(store::EVENTS);
    let journal = Journal::open(&events)?;
    let known = journal::known(&events);
    let memory = Memory::open(instance.sessions_dir())
        .map_err(|source| RunError::directory(&instance.run_dir, source))?;
    let clients = Clients::open(surroundings(&config, &instance), store.clone(), journal.clone())?;
    let env = config.env.clone();
    let engine = ProcessEngine::open(ProcessConfig {
        shim: config.exe,
        runs_dir: instance.runs_dir(),
        logs_dir: instance.logs_dir(),
        instance: instance_id.clone(),
        daemon,
        env: config.env,
        log_max_bytes: LOG_BYTES,
        log_keep: LOG_KEEP,
    })
    .await?;
    let containers = Arc::new(
        DockerEngine::open(DockerConfig {
            instance: instance_id.clone(),
            wanted: in_containers(&stored),
            records_dir: instance.state_dir.join(CONTAINERS),
            logs_dir: instance.logs_dir(),
            env,
            log_max_bytes: LOG_BYTES,
            log_keep: LOG_KEEP,
        })
        .await?,
    );
    let engines = Engines {
        process: Arc::new(engine),
        container: Arc::<DockerEngine>::clone(&containers),
        remote: Arc::new(RemoteEngine::default()),
    };
    let (sessions, kept) =
        Sessions::open(&instance.state_dir.join(SESSIONS), &instance.run_dir.join(STREAMS), daemon);
    let sessions_lost = kept.lost;
    let gateway = Gateway::new(journal.clone(), Arc::new(sessions.clone()), kept);
    let hubs = Arc::clone(&gateway.hubs);
    let sockets = Sockets::Held(held.clone());
    let context = Context {
        engines: engines.clone(),
        store,
        journal,
        memory,
        hubs,
        clients,
        sockets,
        daemon,
    };
    // Before the list, so that no end falls between the two.
    let news = engines.watch();
    let (mut legacies, mut unwanted) = legacy::sort_out(known, engines.list().await?);
    let forgotten = legacies.iter().map(|(name, legacy)| (name.clone(), legacy.last)).collect();
    let registry = Registry::new(context.clone(), gateway.clone(), forgotten);
    gateway.provide_from(&registry);
    for server in stored {
        let name = server.spec.name.clone();
        let mut legacy = legacies.remove(&name).unwrap_or_default();
        let misplaced = legacy.take_misplaced(Home::of(&server.spec.workload));
        unwanted.extend(misplaced.map(|found| (found.home, RunKey::new(name, found.run))));
        registry.adopt(server, &legacy);
    }
    // Before anything is waited for, so that no run is entered before.
    gateway.restore();
    for (server, legacy) in legacies {
        let survivor = legacy.survivor;
        unwanted.extend(survivor.map(|found| (found.home, RunKey::new(server, found.run))));
    }
    for (home, key) in unwanted {
        sweep_run(&context, home, &key, registry.get(&key.server).is_ok()).await;
    }
    held.release_others(&listens).await;
    let (addr, hubs) = (config.listen.socket_addr(), Arc::clone(&gateway.hubs));
    let mut front = Listener::for_all(addr, context.sockets.clone(), hubs);
    front.settle().await;
    let listen = front.watch();
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
        connected: control::seats(),
        held,
        wishes,
    };
    let service = Arc::new(service);
    Ok(Awake { service, engines, news, sessions, sessions_lost, front })
}

/// Where this daemon listens for MCP clients.
fn addresses(config: &Config, stored: &[Stored]) -> Vec<SocketAddr> {
    let on = stored.iter().filter(|server| server.wanted == Wanted::On);
    let own = on.filter_map(|server| server.spec.proxy.port).map(own_addr);
    own.chain([config.listen.socket_addr()]).collect()
}

/// What clients' entries depend on.
fn surroundings(config: &Config, instance: &Instance) -> clients::Surroundings {
    let env = config
        .env
        .iter()
        .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value.to_str()?.to_owned())));
    let env: BTreeMap<String, String> = env.collect();
    let home = env.get("HOME").map(PathBuf::from).unwrap_or_default();
    clients::Surroundings {
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

/// Ends when a signal, a client or the holder says so. A signal leaves the servers up: whoever sends it
/// (a service manager, a shutdown) starts us again or ends them too.
async fn until_told(
    wishes: &mut mpsc::Receiver<Wish>,
    orders: &mut Orders,
    held: &Held,
    exe: &Path,
) -> End {
    let listen = |kind| signal(kind).expect("the runtime handles signals");
    let (mut term, mut int) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()));
    let mut asked: Option<Succession> = None;
    loop {
        tokio::select! {
            wish = wishes.recv() => match wish {
                None => return End::KeepServers,
                Some(Wish::End { keep_servers: true }) => return End::KeepServers,
                Some(Wish::End { keep_servers: false }) => return End::EndServers,
                Some(Wish::Succeed(succession)) => {
                    let exe = succession.exe.as_deref().unwrap_or(exe);
                    match held.replace(exe, succession.fallback.as_deref()) {
                        Ok(()) => asked = Some(succession),
                        Err(error) => succession.refuse(&error.to_string()),
                    }
                }
            },
            order = orders.next() => match order {
                Order::Go => {}
                Order::GiveWay => {
                    if let Some(asked) = asked {
                        asked.grant().await;
                    }
                    return End::GiveWay;
                }
                Order::NotReplaced(why) => {
                    tracing::error!(why, "another daemon was to take over, and could not");
                    if let Some(asked) = asked.take() {
                        asked.refuse(&why);
                    }
                }
                Order::HolderGone => {
                    if let Some(asked) = asked.take() {
                        asked.refuse("the holder of the listeners died meanwhile");
                    }
                    let (held, exe) = (held.clone(), exe.to_owned());
                    // It ends by itself, at the latest with this daemon.
                    drop(tokio::spawn(async move { held.replace_holder(&exe).await }));
                }
            },
            _ = term.recv() => return End::KeepServers,
            _ = int.recv() => return End::KeepServers,
        }
    }
}

/// Accepts clients until it is dropped.
async fn accept(listener: &UnixListener, service: &Arc<Service>, clients: &mut JoinSet<()>) {
    let commands = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let permit = Arc::clone(&commands).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                clients.spawn(control::converse(stream, service.clone(), permit));
            }
            Err(error) => {
                // Out of descriptors, most likely: others may be closed in a moment.
                tracing::error!(%error, "cannot accept a client");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while clients.try_join_next().is_some() {}
    }
}

impl From<EngineError> for RunError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> Self {
        Self::Runtime(error)
    }
}
