//! Connections, from their beginning to the end of their listener.

use std::io::{self, ErrorKind};
use std::net;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, warn};

use super::caller::{Caller, CallerLookup};
use super::connections::Connections;
use super::eviction::{SWEEP, TICK};
use super::io::Io;
use super::way_in::WayIn;
use super::{Config, Front, handle, reap};
use crate::catch_panic::CaughtByExecutor;
use crate::front::Core;

/// How long to wait when a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The same after connections were evicted.
const ACCEPT_AGAIN_SOON: Duration = Duration::from_millis(5);

/// How long connections may take to come to rest before another daemon takes over. That is longer than the
/// core takes to settle and freeze.
const COME_TO_REST: Duration = Duration::from_millis(900);

/// An idle connection that is handed to the next daemon.
type Rested = Option<TcpStream>;

/// How a listener ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// Requests in flight may finish for [`Limits::drain`](super::Limits::drain), then they are given up.
    Finish,
    /// Another daemon takes over, and goes on with what is written down. Whoever says so closes the core's
    /// door at once and has the core frozen shortly after ([`Hubs::hand_over`](crate::Hubs::hand_over)), at
    /// which the streams end; a core that is not frozen takes what is then dropped for given up.
    HandOver,
}

/// Serves new connections, and those that another daemon had, until it is to stop. Gives back the
/// connections that are at rest then, if another daemon takes over. Nothing of a request is lost on them:
/// what their clients have sent is not read yet.
pub async fn serve<C: Core>(
    listener: TcpListener,
    inherited: Vec<net::TcpStream>,
    core: Arc<C>,
    config: Config,
    stop: impl Future<Output = Drain>,
) -> Vec<net::TcpStream> {
    let mut callers = CallerLookup::new(config.callers.clone(), listener.local_addr().ok());
    let front = Arc::new(Front::new(core, config));
    let mut connections = Connections::new(&front.config.budget);
    let mut start = |connections: &mut Connections<_>, socket: TcpStream, is_used: bool| {
        let caller = callers.caller(socket.local_addr()?, socket.peer_addr()?);
        // If the peer has disconnected, another process may have reused its address: drop the connection.
        socket.peer_addr()?;
        let way = connections.way_in(front.core.door());
        if is_used {
            way.mark_used();
        }
        let serve = connection(Arc::clone(&front), caller, Arc::clone(&way), socket);
        connections.add(way, CaughtByExecutor::new(serve));
        io::Result::Ok(())
    };
    for socket in inherited {
        if let Err(error) = adopt(socket).and_then(|socket| start(&mut connections, socket, true)) {
            debug!(%error, "connection lost between two daemons");
        }
    }
    let mut stop = pin!(stop);
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let drain = loop {
        if connections.must_evict() {
            // New connections are read first. A client that has sent its request must not lose its connection
            // to one that is idle.
            yield_now().await;
        }
        let can_accept = connections.can_accept();
        tokio::select! {
            drain = &mut stop => break drain,
            accepted = listener.accept(), if can_accept => match accepted {
                Ok((socket, _)) => {
                    let nodelay = socket.set_nodelay(true);
                    let started = nodelay.and_then(|()| start(&mut connections, socket, false));
                    if let Err(error) = started {
                        debug!(%error, "connection lost before it was used");
                    }
                }
                Err(error) => accept_failed(&error, &mut connections).await,
            },
            Some(_) = connections.next_end(), if !connections.is_empty() => {
                reap(&mut front.held());
            }
            // While the budget is used up, this also notices that other listeners have released connections.
            _ = sweep.tick(), if !connections.is_empty() || !can_accept => {
                yield_now().await;
                connections.sweep();
            }
            // More connections may be evicted then.
            () = sleep(TICK), if !can_accept => {}
        }
    };
    drop(listener);
    front.end(connections, drain).await
}

impl<C: Core> Front<C> {
    async fn end(&self, mut connections: Connections<Rested>, drain: Drain) -> Vec<net::TcpStream> {
        self.ending.send_replace(Some(drain));
        let mut at_rest = Vec::new();
        let drained = async {
            while let Some(ended) = connections.next_end().await {
                at_rest.extend(ended.ok().flatten());
            }
        };
        let limit = match drain {
            Drain::Finish => self.config.limits.drain,
            Drain::HandOver => COME_TO_REST,
        };
        if timeout(limit, drained).await.is_err() {
            warn!(connections = connections.len(), "requests cut at the end");
        }
        connections.shutdown().await;
        // Without connections nobody commits a request any more, and nobody waits for one.
        let mut held = std::mem::take(&mut *self.held());
        held.shutdown().await;
        at_rest.into_iter().filter_map(|socket| socket.into_std().ok()).collect()
    }
}

/// Serves one connection. Gives it back if it is at rest when another daemon takes over.
pub(super) async fn connection<C, T>(
    front: Arc<Front<C>>,
    caller: Caller,
    way: Arc<WayIn>,
    stream: T,
) -> Option<T>
where
    C: Core,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| handle(&front, caller, &way, request));
    let io = Io::new(stream, Arc::clone(&way));
    let mut served = http1::Builder::new()
        // A client that closes its side has gone: what it asked for is given up at once. No client
        // of MCP shuts down only its sending side.
        .half_close(false)
        .max_buf_size(front.config.limits.head)
        // The buffer may grow slightly beyond `max_buf_size`.
        .max_header_size(front.config.limits.head)
        .serve_connection(io, service);
    let drain = tokio::select! {
        biased;
        outcome = &mut served => {
            if let Err(error) = outcome {
                debug!(%error, "connection broken");
            }
            return None;
        }
        drain = front.ended() => drain,
    };
    match drain {
        Drain::Finish => {
            Pin::new(&mut served).graceful_shutdown();
            if let Err(error) = served.await {
                debug!(%error, "connection broken");
            }
            None
        }
        // hyper would wait for its first request. When room is scarce, one that was never used is evicted first, and
        // the next daemon could not tell it from the others.
        Drain::HandOver if !way.was_read() => {
            let activity = way.activity();
            let is_wanted = activity.used || activity.is_fresh();
            let is_kept = is_wanted || !front.config.budget.is_nearly_full();
            is_kept.then(|| served.into_parts().io.into_inner())
        }
        Drain::HandOver => {
            tokio::select! {
                _ = &mut served => return None,
                // hyper would drop half a head.
                () = way.at_rest() => {}
            }
            Pin::new(&mut served).graceful_shutdown();
            let parts = served.without_shutdown().await.ok()?;
            // What hyper has read is lost to others.
            let is_kept = parts.read_buf.is_empty() && !way.ends_with_response();
            is_kept.then(|| parts.io.into_inner())
        }
    }
}

fn adopt(socket: net::TcpStream) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}

async fn accept_failed(error: &io::Error, connections: &mut Connections<Rested>) {
    match error.kind() {
        // The client's own doing.
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset => {}
        _ => {
            // Most likely out of file descriptors.
            let closed = connections.evict_for_descriptors();
            warn!(%error, closed, "connection not accepted");
            let again = if closed > 0 { ACCEPT_AGAIN_SOON } else { ACCEPT_AGAIN };
            sleep(again).await;
        }
    }
}
