//! Connections, from their beginning to the end of their listener.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, warn};

use super::caller::Caller;
use super::connection_state::ConnectionState;
use super::connections::Connections;
use super::eviction::{SWEEP, TICK};
use super::interrupted;
use super::io::Io;
use super::listener::{Listener, PrivateListener, PublicListener};
use super::socket::{MaybeSocket, Socket};
use super::store::{IDLE, Interrupted, MAX_DATA, RESPONSE, STREAMING, StoredConnection};
use super::unfinished::{self, Finished, Framing, UnfinishedResponse};
use super::{Config, Front, handle};
use crate::Servers;
use crate::catch_panic::CaughtByExecutor;

/// How long to wait when a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The same after connections were evicted.
const ACCEPT_AGAIN_SOON: Duration = Duration::from_millis(5);

/// A connection that is passed on to the next daemon, with the response that is not finished, if any.
pub(super) type Left<T> = Option<(T, Option<Box<UnfinishedResponse>>)>;

/// The same, between daemons.
#[derive(Debug)]
pub struct PassedOn {
    /// Nothing that the client has sent on it is read, apart from the request of the response.
    pub socket: OwnedFd,
    /// What is left to do on it.
    pub pending: Pending,
    stored: Option<Box<dyn StoredConnection>>,
    /// How many bytes were written to it.
    written: u64,
}

impl PassedOn {
    /// A connection that was passed on to this daemon, to which so many bytes were written.
    pub fn new(socket: OwnedFd, pending: Pending, written: u64) -> Self {
        Self { socket, pending, stored: None, written }
    }

    /// The same, with the copy of it that survives this daemon.
    #[must_use]
    pub fn stored(self, stored: Box<dyn StoredConnection>) -> Self {
        let (kind, data) = self.pending.encode(self.written);
        stored.record(kind, 0, &data);
        Self { stored: Some(stored), ..self }
    }
}

/// What one daemon leaves to the next one on a connection.
#[derive(Debug)]
pub enum Pending {
    /// Nothing: all requests were answered.
    Nothing,
    /// A response that is not finished.
    Response(UnfinishedResponse),
    /// What the daemon was doing when it was killed.
    Interrupted(Interrupted),
}

impl Pending {
    /// As it is recorded for the daemon after this one, if so many bytes were written to the connection: the kind of
    /// state, and its data.
    pub(super) fn encode(&self, written: u64) -> (u8, Vec<u8>) {
        match self {
            Self::Nothing => (IDLE, Vec::new()),
            Self::Response(response) => match response.encode() {
                data if data.len() <= MAX_DATA => (RESPONSE, data),
                _ => (STREAMING, Vec::new()),
            },
            Self::Interrupted(state) => state.encode(written),
        }
    }

    /// Reads what was recorded by another daemon of a connection to which so many bytes were written. `None` if it
    /// cannot be continued.
    pub fn decode(state: &[u8], written: u64) -> Option<Self> {
        match state {
            [RESPONSE, data @ ..] => UnfinishedResponse::decode(data).map(Self::Response),
            state => Interrupted::decode(state, written).map(Self::Interrupted),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// Requests in flight may finish for [`Limits::drain`](super::Limits::drain), then they are given up.
    Finish,
    /// Another daemon takes over, and continues what is journaled. The caller closes the
    /// intake gate at once and has the servers frozen shortly after ([`Servers::hand_over`](Servers::hand_over)), at
    /// which the streams end; servers that are not frozen take what is then dropped for given up.
    HandOver,
    /// The same, but there is no other daemon yet: connections are closed, and streams end with the advice to
    /// reconnect soon.
    Leave,
}

/// Serves new connections, and those that another daemon had, until it is to stop. Returns the connections that
/// are idle then, or in the middle of a response, if another daemon takes over.
pub async fn serve(
    listener: TcpListener,
    inherited: Vec<PassedOn>,
    servers: Arc<Servers>,
    config: Config,
    stop: impl Future<Output = Drain>,
) -> Vec<PassedOn> {
    let listener = PublicListener::new(listener, &config);
    serve_at(listener, inherited, servers, config, stop).await
}

/// The same, for connections of this user that came to the control socket.
pub async fn serve_private(
    connections: mpsc::Receiver<UnixStream>,
    inherited: Vec<PassedOn>,
    servers: Arc<Servers>,
    config: Config,
    stop: impl Future<Output = Drain>,
) -> Vec<PassedOn> {
    serve_at(PrivateListener(connections), inherited, servers, config, stop).await
}

async fn serve_at<L: Listener>(
    mut listener: L,
    inherited: Vec<PassedOn>,
    servers: Arc<Servers>,
    config: Config,
    stop: impl Future<Output = Drain>,
) -> Vec<PassedOn> {
    let front = Arc::new(Front::new(servers, config));
    let mut connections = Connections::new(&front.config);
    let start = |connections: &mut Connections<_>, socket: L::Socket, caller, history: History| {
        let conn = connections.connection_state(front.servers.intake_gate());
        if let (History::New, Some(store)) = (&history, &front.config.store) {
            conn.store(&**store, socket.as_fd());
        }
        let (shared, for_task) = (Arc::clone(&front), Arc::clone(&conn));
        match history {
            History::New => {
                let serve = connection(shared, caller, for_task, socket, Bytes::new());
                connections.add(conn, CaughtByExecutor::new(serve));
            }
            History::Used(pending, stored, written) => {
                conn.mark_used(written);
                if let Some(stored) = stored {
                    conn.mark_stored(stored, &pending);
                }
                let serve = inherited_connection(shared, caller, for_task, socket, pending);
                connections.add(conn, CaughtByExecutor::new(serve));
            }
        }
    };
    for PassedOn { socket, pending, stored, written } in inherited {
        let history = History::Used(pending, stored, written);
        let adopt = |socket: L::Socket| Ok((listener.caller(&socket)?, socket));
        match L::Socket::from_fd(socket).and_then(adopt) {
            Ok((caller, socket)) => start(&mut connections, socket, caller, history),
            Err(error) => debug!(%error, "connection lost between two daemons"),
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
                Ok(socket) => match listener.caller(&socket) {
                    Ok(caller) => start(&mut connections, socket, caller, History::New),
                    Err(error) => debug!(%error, "connection lost before it was used"),
                },
                Err(error) => accept_failed(&error, &mut connections).await,
            },
            Some(_) = connections.next_end(), if !connections.is_empty() => {}
            // While the budget is used up, this also notices that other listeners have released connections.
            _ = sweep.tick(), if !connections.is_empty() || !can_accept => {
                yield_now().await;
                connections.sweep();
            }
            // More connections may be evicted then.
            () = sleep(TICK), if !can_accept => {}
        }
    };
    while let Some(socket) = listener.next_left() {
        if let Ok(caller) = listener.caller(&socket) {
            start(&mut connections, socket, caller, History::New);
        }
    }
    drop(listener);
    front.end(connections, drain).await
}

impl Front {
    async fn end<T: Socket>(
        &self,
        mut connections: Connections<Left<T>>,
        drain: Drain,
    ) -> Vec<PassedOn> {
        match drain {
            Drain::Finish => {}
            Drain::HandOver => self.servers.intake_gate().close_for_successor(),
            Drain::Leave => self.servers.intake_gate().close(),
        }
        self.ending.send_replace(Some(drain));
        let mut left = Vec::new();
        let drained = async {
            while let Some(ended) = connections.next_end().await {
                left.extend(ended.ok().flatten());
            }
        };
        let limit = match drain {
            Drain::Finish => self.config.limits.drain,
            Drain::HandOver | Drain::Leave => self.config.limits.hand_over,
        };
        if timeout(limit, drained).await.is_err() {
            warn!(connections = connections.len(), "requests cut at the end");
        }
        connections.shutdown().await;
        if drain == Drain::Leave {
            let unused = left.iter().filter(|(_, response)| response.is_none());
            unused.for_each(|(socket, _): &(T, _)| socket.refuse());
        }
        let passed_on = |(socket, response): (T, Option<Box<_>>)| {
            let pending = response.map_or(Pending::Nothing, |it| Pending::Response(*it));
            Some(PassedOn::new(socket.into_fd().ok()?, pending, 0))
        };
        left.into_iter().filter_map(passed_on).collect()
    }
}

/// What is known of a connection when it is started.
enum History {
    New,
    /// Another daemon has written so many bytes to it, and may have left something to do.
    Used(Pending, Option<Box<dyn StoredConnection>>, u64),
}

/// Serves one connection of another daemon, which may have left something to be done first.
async fn inherited_connection<T: Socket>(
    front: Arc<Front>,
    caller: Caller,
    conn: Arc<ConnectionState>,
    socket: T,
    pending: Pending,
) -> Left<T> {
    let finished = match pending {
        Pending::Nothing => Finished::Reusable,
        Pending::Response(response) => unfinished::finish(&front, &conn, &socket, response).await,
        Pending::Interrupted(Interrupted::Reading(read)) => {
            return connection(front, caller, conn, socket, read).await;
        }
        Pending::Interrupted(state) => interrupted::answer(&socket, &conn, &state).await,
    };
    match finished {
        Finished::Reusable => {}
        Finished::Close => return None,
        Finished::Left(response) => return Some((socket, Some(response))),
    }
    connection(front, caller, conn, socket, Bytes::new()).await
}

/// Serves one connection, of which an earlier daemon may have read the start of a request. Returns it if it is
/// idle when another daemon takes over, or in the middle of a response that the other daemon can finish.
pub(super) async fn connection<T>(
    front: Arc<Front>,
    caller: Caller,
    conn: Arc<ConnectionState>,
    stream: T,
    reread: Bytes,
) -> Left<T>
where
    T: AsyncRead + AsyncWrite + MaybeSocket + Unpin + Send + 'static,
{
    let can_refuse = stream.can_refuse();
    let service = service_fn(|request| handle(&front, caller, &conn, request));
    let io = Io::new(stream, Arc::clone(&conn), front.config.store.clone(), reread);
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
            conn.end_with_listener();
            Pin::new(&mut served).graceful_shutdown();
            if let Err(error) = served.await {
                debug!(%error, "connection broken");
            }
            None
        }
        // hyper would wait for its first request. When room is scarce, one that was never used is evicted first, and
        // the next daemon could not distinguish it from the others.
        Drain::Leave if !conn.was_read() => {
            can_refuse.then(|| (served.into_parts().io.into_inner(), None))
        }
        Drain::HandOver if !conn.was_read() => {
            let activity = conn.activity();
            let is_wanted = activity.used || activity.is_fresh();
            let is_kept = is_wanted || !front.config.budget.is_nearly_full();
            is_kept.then(|| (served.into_parts().io.into_inner(), None))
        }
        Drain::HandOver | Drain::Leave => {
            tokio::select! {
                _ = &mut served => return None,
                // hyper would drop half a head.
                () = conn.at_rest() => {}
            }
            Pin::new(&mut served).graceful_shutdown();
            let is_finished = poll_fn(|cx| {
                if let Poll::Ready(outcome) = Pin::new(&mut served).poll(cx) {
                    return Poll::Ready(outcome.map(|()| true));
                }
                // When a body has nothing more, hyper writes all that it had. If the client does not read, that takes
                // longer.
                let is_left = conn.is_response_left() && !conn.is_blocked();
                if is_left { Poll::Ready(Ok(false)) } else { Poll::Pending }
            });
            let is_finished = is_finished.await.ok()?;
            let (parts, response) = (served.into_parts(), conn.take_unfinished());
            // What hyper has read is lost to others.
            let is_kept = parts.read_buf.is_empty()
                && !(is_finished && conn.framing() == Framing::UntilClose);
            is_kept.then(|| (parts.io.into_inner(), response))
        }
    }
}

async fn accept_failed<T: Send + 'static>(error: &io::Error, connections: &mut Connections<T>) {
    match error.kind() {
        // The client has disconnected.
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
