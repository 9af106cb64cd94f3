//! Wires it together: the driver of each server, the store of intent, the control API.
//!
//! A daemon is built ([`startup`]), serves, and drains ([`handover`]). The control socket is opened when intent and
//! running processes of every server are known, so every command finds a complete daemon.

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
mod run_requests;
mod run_session;
mod service;
mod snapshot;
mod startup;
mod state;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstay_api::{Instance, Listen};
use mainstay_core::RefreshMode;
use mainstay_hold::limits::FLUSH;
use mainstay_proxy::Servers;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use background::{keep_entries, keep_watch, sweep, trim_heap};
use handover::{Ending, LifecycleRequests, relay};
use listen::Listener;
use service::Service;
use state::schemas::INTENT;
use state::session_store::SessionStore;
use state::store::{self, Store};

pub use holder_client::{HolderClient, HolderEvents, TAKE_OVER};
pub use mainstay_engine::discover;
pub use startup::dirs::{RunError, prepare, record};
pub use startup::preflight::{PreflightError, preflight};
pub use state::store::{Restored, StoreError, restore};

/// The streams of requests in flight, in the run directory.
const STREAMS: &str = "streams";

/// The records of containers, in the state directory.
const CONTAINERS: &str = "containers";

/// The ledger of entries in clients' files, in the state directory.
const CLIENTS_DIR: &str = "clients";

/// How many tasks are polled before the sockets are polled again. With many busy sessions that is all of them, so that
/// one poll of the sockets finds the data for all of them.
const EVENT_INTERVAL: u32 = 512;

/// How often the control socket is checked.
const SOCKET_CHECK: Duration = Duration::from_secs(1);

/// When a server's log is rotated, and how many old ones are kept.
const LOG_BYTES: u64 = 5 * 1024 * 1024;
const LOG_KEEP: u32 = 2;

/// The settings of a daemon.
#[derive(Debug)]
pub struct Config {
    /// Its directories.
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
    /// When entries in clients' files are refreshed, unless a server has its own setting.
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
    Ok(Store::inspect(&INTENT.path_in(&instance.state_dir))?)
}

/// Runs a daemon until it ends or has handed over to another one.
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
    let ended = runtime.block_on(run_to_end(config, holder, holder_events));
    runtime.shutdown_timeout(FLUSH);
    log.flush();
    ended
}

async fn run_to_end(
    config: Config,
    holder: HolderClient,
    mut holder_events: HolderEvents,
) -> Result<(), RunError> {
    let standby = holder.start_info().standby;
    if standby && !handover::prepare(&config, &holder, &mut holder_events).await? {
        return Ok(());
    }
    let mut daemon = startup::build(config, holder).await?;
    let (ending, since) = daemon.serve(&mut holder_events).await;
    daemon.drain(ending, since).await
}

/// Everything that a daemon owns.
struct Daemon {
    /// The first field, so that it is dropped before the others.
    _freeze: FreezeOnDrop,
    service: Arc<Service>,
    exe: PathBuf,
    sessions: SessionStore,
    /// Whether clients have sessions that are no longer known.
    sessions_lost: bool,
    /// Those for all servers, and the one for `mainstay connect`. Empty when they are closed.
    listeners: Vec<Listener>,
    control_socket: UnixListener,
    /// `None` when they are refused.
    requests: Option<LifecycleRequests>,
    /// Pass news from engines to drivers, and requests of sessions to the registry.
    messengers: JoinSet<()>,
    /// One per command that is being served.
    command_tasks: JoinSet<()>,
    /// Open while this daemon finishes calls for the next one.
    relay_mark: Option<File>,
}

/// Freezes the sessions when it is dropped, also by an error: requests that are dropped afterwards were not given up by
/// their clients, and the next daemon continues them.
struct FreezeOnDrop(Arc<Servers>);

impl Drop for FreezeOnDrop {
    fn drop(&mut self) {
        self.0.freeze();
    }
}

impl Daemon {
    /// Serves until something ends the daemon: how it ends, and since when.
    async fn serve(&mut self, holder_events: &mut HolderEvents) -> (Ending, Instant) {
        let service = &self.service;
        let holder = &service.holder;
        log_last_daemon(holder);
        if let Err(error) = holder.ready().await {
            // The first event reports its end, and another holder is started then.
            tracing::warn!(%error, "cannot report to the holder that this daemon serves");
        }
        let servers = Arc::clone(&service.gateway.servers);
        self.messengers.spawn(async move { relay::give_up_unclaimed(servers.relays()).await });
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        tracing::info!(version, pid, "daemon ready");
        holder.kill_outdated_holder().await;
        service.context.store.secure_later();
        let requests = self.requests.as_mut().expect("they are taken when the daemon ends");
        let (listen, lost) = (service.listen.clone(), self.sessions_lost);
        let (socket, tasks) = (&mut self.control_socket, &mut self.command_tasks);
        tokio::select! {
            ending = requests.until_ending(holder_events, service, &self.exe) => ending,
            never = accept(socket, service, &self.sessions, tasks) => match never {},
            never = keep_watch(&service.context.engines, &service.registry) => match never {},
            never = sweep(&service.gateway) => match never {},
            never = trim_heap() => match never {},
            never = keep_entries(&service.registry, listen, lost) => match never {},
            never = holder.pulse() => match never {},
        }
    }
}

fn log_last_daemon(holder: &HolderClient) {
    let start = holder.start_info();
    if let Some(why) = &start.replacement_failed {
        tracing::error!(why, "the last reload or update was rolled back");
    }
    if let Some(last_output) = &start.last_output {
        tracing::error!(last_output, "the last daemon died");
    }
}

/// Accepts commands until it is dropped. A control socket that was removed is bound again.
async fn accept(
    listener: &mut UnixListener,
    service: &Arc<Service>,
    sessions: &SessionStore,
    tasks: &mut JoinSet<()>,
) -> Infallible {
    let mut pending = control::PendingConnections::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            rebound = rebound(service) => {
                *listener = rebound;
                sessions.restore_journal();
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                let received = Arc::default();
                let client =
                    control::serve_connection(stream, service.clone(), Arc::clone(&received));
                pending.add(tasks.spawn(client), received, service.limits.capacity.pending);
            }
            Err(error) => {
                // Most likely out of descriptors; some may be closed soon.
                tracing::error!(%error, "cannot accept a client");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// Waits until the control socket or the run directory was removed, creates it again and returns the new socket.
async fn rebound(service: &Service) -> UnixListener {
    let instance = &service.instance;
    loop {
        tokio::time::sleep(SOCKET_CHECK).await;
        // An error, such as of a disk that does not respond, does not mean that the socket was removed.
        if tokio::fs::try_exists(instance.socket()).await.unwrap_or(true) {
            continue;
        }
        tracing::warn!(socket = %instance.socket().display(), "the control socket was removed");
        if let Err(error) = prepare(instance) {
            tracing::error!(%error, "cannot create the run directory again");
            continue;
        }
        match service.holder.listen_for_commands(&instance.run_dir).await {
            Ok(listener) => return listener,
            Err(error) => tracing::error!(%error, "cannot bind the control socket again"),
        }
    }
}
