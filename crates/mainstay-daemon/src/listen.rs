//! The listeners for MCP clients: one for all servers, and one for each server that has a port of
//! its own.
//!
//! An address that is taken keeps nothing else from working: it is tried again until it is free. The
//! sockets are the holder's, so that they outlive this daemon.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mainstay_proxy::front::http::{
    self, Allowed, Callers, Config, ConnectionBudget, Drain, Limits, Scope, Token,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::driver::Context;
use crate::held::Held;
use crate::store::StoredToken;

/// Names of this machine inside containers. Requests with a token may use them.
const CONTAINER_HOSTS: [&str; 2] = ["host.docker.internal", "host.containers.internal"];

/// How often a taken address is tried.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Where listeners come from.
#[derive(Clone)]
pub(crate) enum Sockets {
    /// From the holder, with whom they stay when this daemon dies.
    Held(Held),
    /// From the system.
    #[cfg(test)]
    Own,
}

impl Sockets {
    async fn listen(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        match self {
            Self::Held(held) => held.listen(addr).await,
            #[cfg(test)]
            Self::Own => TcpListener::bind(addr).await,
        }
    }

    fn connections(&self, addr: SocketAddr) -> Vec<TcpStream> {
        match self {
            Self::Held(held) => held.connections(addr),
            #[cfg(test)]
            Self::Own => Vec::new(),
        }
    }

    /// The connection budget that all listeners share.
    fn connection_budget(&self) -> Arc<ConnectionBudget> {
        match self {
            Self::Held(held) => held.connection_budget(),
            #[cfg(test)]
            Self::Own => ConnectionBudget::new(1024),
        }
    }

    fn pass_on(&self, addr: SocketAddr, connections: &[TcpStream]) {
        match self {
            Self::Held(held) => held.pass_on(addr, connections),
            #[cfg(test)]
            Self::Own => {}
        }
    }

    /// Resolves when another daemon goes on with them.
    async fn giving_way(&self) {
        match self {
            Self::Held(held) => held.giving_way().await,
            #[cfg(test)]
            Self::Own => std::future::pending().await,
        }
    }

    async fn release(&self, addr: SocketAddr) {
        match self {
            Self::Held(held) => held.release(addr).await,
            #[cfg(test)]
            Self::Own => {}
        }
    }
}

/// Which callers listeners serve.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) callers: Callers,
    pub(crate) allowed: Allowed,
    /// Held while tokens are stored and applied, so that no older list replaces a newer one.
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
}

impl Access {
    /// From the settings, without tokens.
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
            changing: Arc::default(),
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

/// A listener that lives as long as this value, and drains when it is closed.
#[derive(Debug)]
pub(crate) struct Listener {
    addr: watch::Receiver<Option<SocketAddr>>,
    /// Its drop stops it.
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
        let sockets = context.sockets.clone();
        let hubs = Arc::clone(&context.hubs);
        let Access { callers, allowed, changing: _ } = context.access.clone();
        let (told, told_to) = watch::channel(None);
        let (stop, stopped) = watch::channel(());
        let task = tokio::spawn(async move {
            let stop = || told_to_stop(stopped.clone(), &sockets);
            let Some(listener) = bind(addr, &sockets, stop()).await else { return };
            told.send_replace(listener.local_addr().ok());
            let config = Config {
                scope,
                callers,
                allowed,
                limits: Limits::default(),
                budget: sockets.connection_budget(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            };
            let inherited = sockets.connections(addr);
            let serve = http::serve(listener, inherited, hubs, config, stop());
            // At once, because nobody is to wait in the queue of a listener that is not served.
            let release = async {
                match stop().await {
                    Drain::Finish => sockets.release(addr).await,
                    Drain::HandOver => {}
                }
            };
            let (at_rest, ()) = tokio::join!(serve, release);
            sockets.pass_on(addr, &at_rest);
        });
        Self { addr: told_to, stop, task }
    }

    /// Where it listens, for those who want to be told.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.addr.clone()
    }

    /// Waits a moment for the address, so that whoever asks next is told it.
    pub(crate) async fn settle(&mut self) {
        const MOMENT: Duration = Duration::from_millis(200);
        // A taken address is told in the log, and tried again.
        drop(timeout(MOMENT, self.addr.wait_for(Option::is_some)).await);
    }

    /// Stops accepting now, and lets what is being answered finish while this is awaited.
    pub(crate) fn close(self) -> impl Future<Output = ()> {
        drop(self.stop);
        finished(self.task)
    }

    /// Waits for the end of a listener that [gives way](Held::give_way).
    pub(crate) async fn given_way(self) {
        finished(self.task).await;
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The address of a server's own port.
pub(crate) fn own_addr(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Whether a server could have this port now.
pub(crate) fn check(port: u16) -> io::Result<()> {
    std::net::TcpListener::bind(own_addr(port)).map(drop)
}

async fn finished(listener: JoinHandle<()>) {
    if let Err(error) = listener.await {
        tracing::error!(%error, "a listener ended badly");
    }
}

/// Resolves when a listener is to end, and tells how.
async fn told_to_stop(stopped: watch::Receiver<()>, sockets: &Sockets) -> Drain {
    tokio::select! {
        () = gone(stopped) => Drain::Finish,
        () = sockets.giving_way() => Drain::HandOver,
    }
}

/// Resolves when the sender is gone.
async fn gone(mut sender: watch::Receiver<()>) {
    while sender.changed().await.is_ok() {}
}

/// Tries until it has the address, or is to stop. An attempt that was begun is seen through, so that no
/// listener is left with the holder that nobody knows of.
async fn bind(
    addr: SocketAddr,
    sockets: &Sockets,
    stop: impl Future<Output = Drain>,
) -> Option<TcpListener> {
    let mut stop = pin!(stop);
    let mut told = false;
    loop {
        match sockets.listen(addr).await {
            Ok(listener) => return Some(listener),
            Err(error) if told => tracing::debug!(%addr, %error, "still cannot listen"),
            Err(error) => {
                tracing::error!(%addr, %error, "cannot listen for MCP clients; trying again");
                told = true;
            }
        }
        tokio::select! {
            () = sleep(TRY_AGAIN) => {}
            Drain::Finish | Drain::HandOver = &mut stop => return None,
        }
    }
}
