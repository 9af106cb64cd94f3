//! The listeners for MCP clients: one for all servers, and one for each server with its own port.
//!
//! An address in use is retried until it is free, and everything else works meanwhile. The holder owns the sockets, so
//! that they outlive this daemon.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mainstay_api::Listen;
use mainstay_hold::limits::FIRST_LISTENER;
use mainstay_hold::listeners;
use mainstay_hold::socket_owners::SocketOwners;
use mainstay_proxy::front::http::{
    self, Allowed, Callers, Config, ConnectionBudget, Drain, Limits, ListenerKind, Scope, Token,
};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::driver::Context;
use crate::holder_client::HolderClient;
use crate::state::store::{Store, StoreError, StoredToken};

/// The ports to choose from if another user has the default port.
const OTHER_PORTS: std::ops::Range<u16> = 7434..7534;

/// Names of this machine inside containers. Requests with a token may use them.
const CONTAINER_HOSTS: [&str; 2] = ["host.docker.internal", "host.containers.internal"];

/// The delay before an address in use is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Where listeners come from: the holder, which keeps them open when this daemon dies. Tests have none, and bind
/// themselves.
#[derive(Clone)]
pub(crate) struct Sockets(pub(crate) Option<HolderClient>);

impl Sockets {
    async fn listen(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        match &self.0 {
            Some(holder) => holder.listen(addr).await,
            None => TcpListener::bind(addr).await,
        }
    }

    /// Resolves when a listener has to stop: its handle was dropped, or the daemon drains.
    async fn stop(&self, mut handle: watch::Receiver<()>) -> Drain {
        let draining = async {
            match &self.0 {
                Some(holder) => holder.draining().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = async { while handle.changed().await.is_ok() {} } => Drain::Finish,
            how = draining => how,
        }
    }
}

/// Which callers listeners serve.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) callers: Callers,
    pub(crate) allowed: Allowed,
    /// Locked while tokens are stored and applied, so that no older list replaces a newer one.
    pub(crate) token_lock: Arc<tokio::sync::Mutex<()>>,
}

impl Access {
    /// Without tokens.
    pub(crate) fn new(settings: &crate::AccessSettings) -> Self {
        let hosts = CONTAINER_HOSTS.map(str::to_owned).into_iter();
        Self {
            callers: Callers {
                uid: own_uid(),
                admit_root: settings.admit_root,
                allow_other_users: settings.allow_other_users,
                tokens: Arc::default(),
            },
            allowed: Allowed { hosts: hosts.chain(settings.allowed_hosts.clone()).collect() },
            token_lock: Arc::default(),
        }
    }

    /// Replaces the tokens that admit callers.
    pub(crate) fn admit(&self, tokens: Vec<StoredToken>) {
        let token = |stored: StoredToken| Token {
            digest: stored.digest,
            server: stored.info.server.map(|server| server.to_string()),
        };
        self.callers.tokens.replace(tokens.into_iter().map(token).collect());
    }
}

impl Default for Access {
    fn default() -> Self {
        Self::new(&crate::AccessSettings::default())
    }
}

/// The state of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerState {
    /// Not bound yet.
    No,
    /// Binding failed, and is retried. The owner is the process of this user that has the address.
    Failed { addr: SocketAddr, why: io::ErrorKind, owner: Option<u32> },
    /// Bound to this address.
    At(SocketAddr),
    /// A process of another user has the address.
    Taken { addr: SocketAddr, uid: u32 },
}

impl ListenerState {
    /// The address, while it is bound.
    pub(crate) fn addr(self) -> Option<SocketAddr> {
        match self {
            Self::At(addr) => Some(addr),
            Self::No | Self::Failed { .. } | Self::Taken { .. } => None,
        }
    }

    /// Why it does not listen, for users.
    pub(crate) fn problem(self) -> Option<String> {
        match self {
            Self::No | Self::At(_) => None,
            Self::Failed { addr, owner: Some(pid), .. } => {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
                let name = name.map(|name| format!("`{}`", name.trim_end()));
                let name = name.unwrap_or_else(|| "another program".to_owned());
                Some(format!("{addr} is in use by {name} (pid {pid})"))
            }
            Self::Failed { addr, why, owner: None } => {
                Some(format!("{addr} cannot be used: {why}"))
            }
            Self::Taken { addr, uid } => {
                Some(format!("{addr} belongs to another user of this machine (uid {uid})"))
            }
        }
    }
}

/// A listener that lives as long as this value, and drains when it is closed.
#[derive(Debug)]
pub(crate) struct Listener {
    state: watch::Receiver<ListenerState>,
    /// Dropping it stops the listener.
    stop: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens for all servers.
    pub(crate) fn for_all(addr: SocketAddr, context: &Context) -> Self {
        Self::spawn(addr, Scope::AllServers, context)
    }

    /// Listens for one server.
    pub(crate) fn for_one(port: u16, server: &str, context: &Context) -> Self {
        Self::spawn(own_addr(port), Scope::One(server.to_owned()), context)
    }

    fn spawn(addr: SocketAddr, scope: Scope, context: &Context) -> Self {
        let (sockets, servers) = (context.sockets.clone(), Arc::clone(&context.servers));
        let budget = sockets.0.as_ref().map(HolderClient::connection_budget);
        let config = Config {
            store: sockets.0.as_ref().and_then(|holder| holder.store(addr)),
            ..config(scope, budget.unwrap_or_else(|| ConnectionBudget::new(64)), context)
        };
        let (state_sender, state) = watch::channel(ListenerState::No);
        let (stop, stopped) = watch::channel(());
        let task = tokio::spawn(async move {
            let stop = || sockets.stop(stopped.clone());
            let Some(listener) = bind(addr, &sockets, &state_sender, stop()).await else { return };
            if let Ok(addr) = listener.local_addr() {
                state_sender.send_replace(ListenerState::At(addr));
            }
            let Some(holder) = sockets.0.as_ref() else {
                http::serve(listener, Vec::new(), servers, config, stop()).await;
                return;
            };
            let inherited = holder.connections(addr);
            let serve = http::serve(listener, inherited, servers, config, stop());
            // At once, so that no client waits in the queue of a listener that is not served.
            let release = async {
                match stop().await {
                    Drain::Finish => holder.release(addr).await,
                    Drain::HandOver | Drain::Leave => {}
                }
            };
            let (left, ()) = tokio::join!(serve, release);
            holder.pass_on(addr, &left);
        });
        Self { state, stop, task }
    }

    /// Serves the connections of `mainstay connect`, which arrive at the control socket: at most `limit` at a time.
    pub(crate) fn private(
        connections: mpsc::Receiver<UnixStream>,
        limit: usize,
        context: &Context,
    ) -> Self {
        let (sockets, servers) = (context.sockets.clone(), Arc::clone(&context.servers));
        let config = Config {
            kind: ListenerKind::Private,
            ..config(Scope::AllServers, ConnectionBudget::new(limit), context)
        };
        let (_, state) = watch::channel(ListenerState::No);
        let (stop, stopped) = watch::channel(());
        let task = tokio::spawn(async move {
            let inherited = sockets.0.as_ref().map(HolderClient::private_connections);
            let (inherited, stop) = (inherited.unwrap_or_default(), sockets.stop(stopped));
            let left = http::serve_private(connections, inherited, servers, config, stop).await;
            if let Some(holder) = sockets.0.as_ref() {
                holder.pass_on_private(&left);
            }
        });
        Self { state, stop, task }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<ListenerState> {
        self.state.clone()
    }

    /// Waits for the first attempt to bind, but not for long. An address in use is logged and retried.
    pub(crate) async fn bind_attempted(&mut self) {
        let attempted = self.state.wait_for(|state| *state != ListenerState::No);
        drop(timeout(FIRST_LISTENER, attempted).await);
    }

    /// Stops accepting now. The future resolves when requests in progress are answered.
    pub(crate) fn close(self) -> impl Future<Output = ()> {
        drop(self.stop);
        finished(self.task)
    }

    /// Waits until a listener has [passed its connections on](HolderClient::close_intake).
    pub(crate) async fn drained(self) {
        finished(self.task).await;
    }
}

fn config(scope: Scope, budget: Arc<ConnectionBudget>, context: &Context) -> Config {
    let Access { callers, allowed, .. } = context.access.clone();
    Config {
        scope,
        callers,
        allowed,
        limits: Limits::default(),
        kind: ListenerKind::Public,
        budget,
        store: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The address of a server's own port.
pub(crate) fn own_addr(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The address for all servers: the configured one, or the port of this instance on loopback. The port is
/// chosen once: the default, unless another local user has it.
pub(crate) fn first_addr(
    asked: Option<SocketAddr>,
    store: &Store,
    is_new: bool,
) -> Result<SocketAddr, StoreError> {
    if let Some(addr) = asked {
        return Ok(addr);
    }
    if let Some(port) = store.port()? {
        return Ok(own_addr(port));
    }
    // Servers that are older than this choice have the default port in clients' files.
    let keeps_default = !is_new || other_owner(Listen::DEFAULT).is_none();
    let port = choose_port(keeps_default, |port| check(port).is_ok());
    store.choose_port(port)?;
    Ok(own_addr(port))
}

/// The default port, or a free one.
fn choose_port(keeps_default: bool, is_free: impl Fn(u16) -> bool) -> u16 {
    let other = || OTHER_PORTS.clone().find(|port| is_free(*port));
    let other = if keeps_default { None } else { other() };
    other.unwrap_or(Listen::DEFAULT.port())
}

/// The user who listens at an address, if that is known to be another one.
fn other_owner(addr: SocketAddr) -> Option<u32> {
    SocketOwners::new(addr).listener(addr).filter(|uid| *uid != own_uid())
}

/// A process that listens at an address, if this user can see it.
async fn owner_of(addr: SocketAddr) -> Option<u32> {
    let find = move || {
        let listeners = listeners::at_port(addr.port()).ok()?;
        let accepting = listeners::Listener::accepting(&listeners, addr.ip());
        let inodes = accepting.into_iter().map(|listener| listener.inode).collect();
        listeners::owners(&inodes).ok()?.first().copied()
    };
    tokio::task::spawn_blocking(find).await.ok().flatten()
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a server could have this port now.
pub(crate) fn check(port: u16) -> io::Result<()> {
    std::net::TcpListener::bind(own_addr(port)).map(drop)
}

async fn finished(listener: JoinHandle<()>) {
    if let Err(error) = listener.await {
        tracing::error!(%error, "a listener panicked");
    }
}

/// Retries until the address is bound or `stop` resolves. An attempt that has begun is completed, so that the holder
/// keeps no listener that no daemon uses.
async fn bind(
    addr: SocketAddr,
    sockets: &Sockets,
    state: &watch::Sender<ListenerState>,
    stop: impl Future<Output = Drain>,
) -> Option<TcpListener> {
    let mut stop = pin!(stop);
    let mut logged = false;
    loop {
        let error = match sockets.listen(addr).await {
            Ok(listener) => return Some(listener),
            Err(error) => error,
        };
        if !std::mem::replace(&mut logged, true) {
            tracing::error!(%addr, %error, "cannot listen for MCP clients; retrying");
        }
        let found = if let Some(uid) = other_owner(addr) {
            ListenerState::Taken { addr, uid }
        } else {
            let is_taken = error.kind() == io::ErrorKind::AddrInUse;
            let owner = if is_taken { owner_of(addr).await } else { None };
            ListenerState::Failed { addr, why: error.kind(), owner }
        };
        state.send_if_modified(|state| std::mem::replace(state, found) != found);
        tokio::select! {
            () = sleep(RETRY) => {}
            _ = &mut stop => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_user_gets_another_port() {
        assert_eq!(choose_port(true, |_| true), 7433);
        assert_eq!(choose_port(false, |_| true), 7434);
        assert_eq!(choose_port(false, |port| port > 7440), 7441);
        assert_eq!(choose_port(false, |_| false), 7433, "it is retried until it is free");
    }

    #[test]
    fn the_port_is_chosen_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let asked = own_addr(7999);
        assert_eq!(first_addr(Some(asked), &store, true).unwrap(), asked);
        assert_eq!(store.port().unwrap(), None, "a configured address is not stored");
        store.choose_port(7450).unwrap();
        for is_new in [true, false] {
            assert_eq!(first_addr(None, &store, is_new).unwrap(), own_addr(7450));
        }
    }
}
