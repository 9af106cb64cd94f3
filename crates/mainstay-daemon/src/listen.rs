//! The listeners for MCP clients: one for all servers, and one for each server that has a port of
//! its own.
//!
//! An address that is taken keeps nothing else from working: it is tried again until it is free.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mainstay_proxy::Hubs;
use mainstay_proxy::front::http::{self, Allowed, Config, Limits, Scope};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How often a taken address is tried.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A listener that lives as long as this value, and drains when it is closed.
#[derive(Debug)]
pub(crate) struct Listener {
    addr: watch::Receiver<Option<SocketAddr>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens for all servers.
    pub(crate) fn for_all(addr: SocketAddr, hubs: Arc<Hubs>) -> Self {
        Self::spawn(addr, Scope::AllServers, hubs)
    }

    /// Listens for one server.
    pub(crate) fn for_one(port: u16, server: &str, hubs: Arc<Hubs>) -> Self {
        Self::spawn((Ipv4Addr::LOCALHOST, port).into(), Scope::One(server.to_owned()), hubs)
    }

    fn spawn(addr: SocketAddr, scope: Scope, hubs: Arc<Hubs>) -> Self {
        let (told, told_to) = watch::channel(None);
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let listener = tokio::select! {
                listener = bind(addr) => listener,
                _ = &mut stopped => return,
            };
            told.send_replace(listener.local_addr().ok());
            let config = Config {
                scope,
                allowed: Allowed::default(),
                limits: Limits::default(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            };
            // A sender that is gone stops it too.
            let stop = async { drop(stopped.await) };
            http::serve(listener, hubs, config, stop).await;
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

    /// Stops accepting, and lets what is being answered finish.
    pub(crate) async fn close(self) {
        self.stop.send(()).ok();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "a listener ended badly");
        }
    }
}

/// Whether a server could have this port now.
pub(crate) fn check(port: u16) -> std::io::Result<()> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop)
}

async fn bind(addr: SocketAddr) -> TcpListener {
    let mut told = false;
    loop {
        match TcpListener::bind(addr).await {
            Ok(listener) => return listener,
            Err(error) if told => tracing::debug!(%addr, %error, "still cannot listen"),
            Err(error) => {
                tracing::error!(%addr, %error, "cannot listen for MCP clients; trying again");
                told = true;
            }
        }
        sleep(TRY_AGAIN).await;
    }
}
