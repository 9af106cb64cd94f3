//! Wires it together: the driver of each server, the store of intent, the control API.
//!
//! Order at start: what the holder holds, log, store, engine, then every server with both facts at once
//! (what is wanted, what still runs), and only then the socket, so whoever gets through finds a
//! daemon that knows everything. Order at the end: stop accepting and give up the socket, then drain;
//! or, for a daemon that takes our place, stop accepting, let go of everything, and say so.

mod background;
mod blocking;
mod capacity;
mod clock;
mod control;
mod driver;
mod engines;
mod entries;
mod gateway;
mod handover;
mod holder_client;
mod listen;
mod log;
mod random;
mod registry;
mod run_session;
mod service;
mod snapshot;
mod startup;
mod state;

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstay_api::{Instance, Listen};
use mainstay_core::RefreshMode;
use mainstay_engine::EngineError;
use mainstay_hold::holder::HolderEvent;
use mainstay_proxy::front::http::Drain;
use mainstay_proxy::{Hubs, RelayedCall};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use background::{keep_entries, keep_watch, pass_on_news, sweep, trim_heap};
use handover::{Ending, make_room, relay, until_told};
use service::Service;
use startup::{Running, dirs, start};
use state::event_log::EventLog;
use state::session_store::SessionStore;
use state::store::{self, Store};

pub use holder_client::{HolderClient, HolderEvents, TAKE_OVER};
pub use mainstay_engine::discover;
pub use startup::dirs::{RunError, prepare, record};
pub use startup::preflight::{PreflightError, preflight};
pub use state::store::{Restored, StoreError, restore};

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

/// How long servers may take for the last answers when they are to end with the daemon.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How often the control socket is looked for.
const SOCKET_CHECK: Duration = Duration::from_secs(1);

/// How long the last words to clients may take when the daemon ends.
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
    pub listen: Listen,
    /// Which callers it serves.
    pub access: AccessSettings,
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

/// Which callers are served besides the daemon's own user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessSettings {
    /// Whether root is served without a token.
    pub admit_root: bool,
    /// Whether all local users are served without a token.
    pub allow_other_users: bool,
    /// Hosts that requests with a token may name, in addition to loopback and IP addresses.
    pub allowed_hosts: Vec<String>,
}

impl Default for AccessSettings {
    fn default() -> Self {
        Self { admit_root: true, allow_other_users: false, allowed_hosts: Vec::new() }
    }
}

/// Whether a daemon could read the state of this instance. Changes nothing.
pub fn inspect(instance: &Instance) -> Result<(), RunError> {
    store::loss::refuse(instance)?;
    Ok(Store::inspect(&instance.state_dir.join(STATE))?)
}

/// Runs a daemon until it is told to end, or to give way to another one.
pub fn run(
    config: Config,
    holder: HolderClient,
    holder_events: HolderEvents,
) -> Result<(), RunError> {
    let log = log::set_up(&config).map_err(RunError::Log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking::MAX_THREADS)
        .thread_keep_alive(Duration::from_secs(2))
        .event_interval(EVENT_INTERVAL)
        .build()
        .map_err(RunError::Runtime)?;
    let ended = runtime.block_on(live(config, holder, holder_events));
    runtime.shutdown_timeout(DRAIN);
    log.flush();
    ended
}

async fn live(
    config: Config,
    holder: HolderClient,
    mut holder_events: HolderEvents,
) -> Result<(), RunError> {
    if holder.circumstances().standby && !await_turn(&config, &holder, &mut holder_events).await? {
        return Ok(());
    }
    tell_of_the_last(&holder);
    let (exe, run_dir) = (config.exe.clone(), config.instance.run_dir.clone());
    let (tell, mut lifecycle_requests) = mpsc::channel(1);
    let Running { service, engines, news, sessions, sessions_lost, front, commands } =
        start(config, holder.clone(), tell).await?;
    let _frozen = Frozen(&service.gateway.hubs);
    let (registry, store) = (service.registry.clone(), service.context.store.clone());
    let mut messengers = JoinSet::new();
    for news in news {
        messengers.spawn(pass_on_news(engines.clone(), news, registry.clone()));
    }
    if let Err(error) = holder.ready().await {
        // Its end is the first order that comes, and another one is started then.
        tracing::warn!(%error, "the holder does not hear that this daemon serves");
    }
    let hubs = Arc::clone(&service.gateway.hubs);
    messengers.spawn(async move { relay::give_up_unclaimed(hubs.relays()).await });
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "daemon ready");
    holder.kill_outdated_holder().await;
    store.secure_later();
    let mut clients = JoinSet::new();
    let how = tokio::select! {
        how = until_told(&mut lifecycle_requests, &mut holder_events, &holder, &service.gateway.hubs, &store, &exe) => {
            how
        }
        never = accept(commands, &holder, &service, &sessions, &mut clients) => match never {},
        never = keep_watch(&engines, &registry) => match never {},
        never = sweep(&service.gateway) => match never {},
        never = trim_heap() => match never {},
        never = keep_entries(&registry, service.listen.clone(), sessions_lost) => match never {},
        never = holder.pulse() => match never {},
    };
    if how == Ending::Replaced {
        // Exit as after a kill: the later daemon has taken over and must not be disturbed.
        return Err(RunError::Replaced);
    }
    service.gateway.note_use();
    let mut to_finish = Vec::new();
    match how {
        Ending::Replaced => {}
        Ending::EndServers => {
            let drained = front.close();
            holder.ending().await;
            // Those of lines and of commands, which the listener does not know.
            let answered = timeout(LAST_ANSWERS, service.gateway.hubs.answered());
            let (_late, ()) = tokio::join!(answered, drained);
        }
        Ending::KeepServers | Ending::GiveWay => {
            let stays = how == Ending::GiveWay;
            holder.give_way(if stays { Drain::HandOver } else { Drain::Leave });
            let ending = async {
                if how == Ending::KeepServers {
                    holder.ending().await;
                }
            };
            // The intake gate is closed at once, whatever the holder takes.
            (to_finish, ()) = tokio::join!(service.gateway.hubs.hand_over(stays), ending);
            front.given_way().await;
        }
    }
    registry.close().await;
    tracing::info!(?how, "daemon ends");
    if how == Ending::EndServers {
        registry.retire().await;
    }
    messengers.abort_all();
    drop(lifecycle_requests);
    if how == Ending::GiveWay {
        service.limits.all_left().await;
        // Commands wait for the next daemon as long as they may.
        clients.abort_all();
    }
    let drained = async { while clients.join_next().await.is_some() {} };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::debug!("some clients were still listening");
    }
    service.context.clients.end().await;
    if !service.context.memory.finish(DRAIN).await {
        tracing::warn!(
            "the disk does not answer; sessions with servers may have to be opened again"
        );
    }
    close_files(service.context.event_log.clone(), sessions).await;
    if how == Ending::GiveWay {
        registry.abandon();
        engines.abandon();
        // The next daemon has to know of it before it begins.
        let _mark = relay::Mark::set(&run_dir, !to_finish.is_empty());
        make_room(&holder, &exe).await?;
        holder.let_go_of_all();
        finish_calls(&service.instance, to_finish).await;
    }
    Ok(())
}

/// Writes the last events and uses of sessions to disk, unless that takes too long.
async fn close_files(event_log: EventLog, sessions: SessionStore) {
    let closed = tokio::task::spawn_blocking(move || {
        event_log.close();
        sessions.close();
    });
    if timeout(DRAIN, closed).await.is_err() {
        tracing::warn!(
            "the disk does not answer; the last events and uses of sessions may be lost"
        );
    }
}

/// Finishes calls for the daemon that has taken over, until a signal.
async fn finish_calls(instance: &Instance, calls: Vec<RelayedCall>) {
    let mut term = signal(SignalKind::terminate()).expect("the runtime handles signals");
    let socket = instance.socket();
    tokio::select! {
        () = relay::finish(&socket, calls) => {}
        _ = term.recv() => {}
    }
}

/// Freezes the sessions when it is dropped: whatever is dropped after it, by an error too, was not given up by
/// its client, and the next daemon goes on with it.
struct Frozen<'a>(&'a Hubs);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.freeze();
    }
}

/// Prepares to take the place of the daemon that serves, and waits until it has given way. False if
/// it goes on instead.
async fn await_turn(
    config: &Config,
    holder: &HolderClient,
    holder_events: &mut HolderEvents,
) -> Result<bool, RunError> {
    inspect(&config.instance)?;
    dirs::check_room(&config.instance)?;
    let state = config.instance.state_dir.join(STATE);
    let addr = match config.listen.first {
        Some(addr) => addr,
        None => Store::port_in(&state)?.map_or(Listen::DEFAULT, listen::own_addr),
    };
    holder.check(addr).map_err(|source| RunError::Listen { addr, source })?;
    holder.prepared().map_err(RunError::Holder)?;
    loop {
        match holder_events.next().await {
            HolderEvent::Go => return Ok(true),
            // The daemon that serves looks after that, and there is nobody to ask for our turn.
            HolderEvent::HolderGone | HolderEvent::Disconnected => return Ok(false),
            HolderEvent::GiveWay
            | HolderEvent::NotReplaced(_)
            | HolderEvent::HolderReexecuted(_) => {}
        }
    }
}

/// Tells in the log why there is a new daemon at all.
fn tell_of_the_last(holder: &HolderClient) {
    let told = holder.circumstances();
    if let Some(why) = &told.replacement_failed {
        tracing::error!(why, "another daemon was to take over, and could not");
    }
    if let Some(words) = &told.last_output {
        tracing::error!(words, "the last daemon died");
    }
}

/// Accepts clients until it is dropped. A control socket that was removed is bound again.
async fn accept(
    mut listener: UnixListener,
    holder: &HolderClient,
    service: &Arc<Service>,
    sessions: &SessionStore,
    clients: &mut JoinSet<()>,
) -> Infallible {
    let mut pending = control::PendingConnections::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            rebound = rebound(holder, &service.instance) => {
                listener = rebound;
                sessions.restore_journal();
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                let received = Arc::default();
                let client = control::converse(stream, service.clone(), Arc::clone(&received));
                pending.add(clients.spawn(client), received, service.limits.pending);
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

/// Waits until the control socket or the run directory was removed, makes it again and returns the new socket.
async fn rebound(holder: &HolderClient, instance: &Instance) -> UnixListener {
    loop {
        tokio::time::sleep(SOCKET_CHECK).await;
        // A disk that does not respond says nothing about the socket.
        if tokio::fs::try_exists(instance.socket()).await.unwrap_or(true) {
            continue;
        }
        tracing::warn!(socket = %instance.socket().display(), "the control socket was removed");
        if let Err(error) = prepare(instance) {
            tracing::error!(%error, "the run directory cannot be made again");
            continue;
        }
        match holder.listen_for_commands(&instance.run_dir).await {
            Ok(listener) => return listener,
            Err(error) => tracing::error!(%error, "the control socket cannot be bound again"),
        }
    }
}

impl From<EngineError> for RunError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}
