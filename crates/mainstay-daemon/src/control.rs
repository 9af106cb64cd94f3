//! The control API on the unix socket.
//!
//! Only the user of the daemon may use it: the socket is private, and the peer's credentials are checked on every
//! connection. The daemon speaks first.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_api::{ApiError, ErrorKind, Frame, Hello, MAX_LINE, PROTOCOL, Request};
use mainstay_core::ServerName;
use mainstay_hold::limits::FAREWELL;
use mainstay_proxy::CatchPanic;
use serde::Serialize;
use serde_json::value::to_raw_value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::capacity::{Capacity, RequestKind};
use crate::handover::relay;
use crate::service::{Service, Watched};

mod line_client;

/// A client that sends no request within this time is disconnected.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A client that does not read its answer within this time is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves one client until its request is answered. Sets `received` when the request has arrived.
pub(crate) async fn serve_connection(
    stream: UnixStream,
    service: Arc<Service>,
    received: Arc<AtomicBool>,
) {
    let same_user = is_same_user(&stream);
    let (read, write) = stream.into_split();
    let mut peer = Peer { write };
    if !same_user {
        tracing::warn!("another user tried to reach the control socket");
        let message = "this daemon belongs to another user";
        let help = "set MAINSTAY_HOME to a directory of yours to run your own";
        // The peer may have disconnected.
        peer.fail(ApiError::new(ErrorKind::Invalid, message).with_help(help)).await.ok();
        return;
    }
    let hello = Hello { mainstay: env!("CARGO_PKG_VERSION").to_owned(), protocol: PROTOCOL };
    let outcome = async {
        peer.line(&hello).await?;
        let mut reader = BufReader::new(read);
        let Ok(Some(line)) =
            timeout(REQUEST_TIMEOUT, read_line(&mut reader)).await.unwrap_or(Ok(None))
        else {
            return Ok(());
        };
        received.store(true, Ordering::Relaxed);
        let request: Request = match serde_json::from_slice(&line) {
            Ok(request) => request,
            Err(error) => {
                let message = format!("the request cannot be understood: {error}");
                return peer.fail(ApiError::new(ErrorKind::Invalid, message)).await;
            }
        };
        if let Request::Http { name } = request {
            return serve_http(&service, &name, reader, peer).await;
        }
        if let Request::Connect { name, session, farewell } = request {
            let connected = line_client::serve(&service, (&name, session), farewell, reader, peer);
            return CatchPanic::new(connected).await.unwrap_or(Ok(()));
        }
        if let Request::Relay { streams } = request {
            let relays = service.gateway.servers.relays();
            let claimed = relay::claim(relays, &streams);
            let is_claimed = claimed.is_ok();
            peer.answer(claimed).await?;
            return if is_claimed { relay::receive(relays, streams, reader).await } else { Ok(()) };
        }
        let kind = RequestKind::of(&request);
        let _permit = match service.limits.admit(kind).await {
            Ok(permit) => permit,
            Err(error) => return peer.fail(error).await,
        };
        // Intent that is stored must also reach its driver, even if the client has disconnected. A panic in
        // between ends the daemon, and the next one reads what is stored.
        if let RequestKind::Change | RequestKind::Lifecycle = kind {
            return service.serve(request, &Watched::default(), &mut peer).await;
        }
        let is_for_a_server = matches!(request, Request::Call { .. } | Request::Tools { .. });
        let served = async {
            let watched = Watched::default();
            let cancelled = {
                let mut served = pin!(service.serve(request, &watched, &mut peer));
                tokio::select! {
                    done = &mut served => return done,
                    // The request is given up before its future is dropped, which would do so without a report.
                    () = disconnected(reader) => is_for_a_server.then(|| watched.cancel()),
                }
            };
            match cancelled {
                // A command that was cancelled may still read.
                Some(report) => peer.item(&report).await,
                None => Ok(()),
            }
        };
        CatchPanic::new(served).await.unwrap_or(Ok(()))
    };
    if let Err(error) = outcome.await {
        tracing::debug!(%error, "a client disconnected");
    }
}

/// Passes the connection to the HTTP listener.
async fn serve_http(
    service: &Service,
    name: &ServerName,
    reader: BufReader<OwnedReadHalf>,
    mut peer: Peer,
) -> io::Result<()> {
    if service.holder.is_draining() {
        // The client retries with the next daemon.
        return Ok(());
    }
    if let Err(error) = service.registry.get(name) {
        return peer.fail(error).await;
    }
    let Ok(room) = service.http.reserve().await else { return Ok(()) };
    peer.answer(Ok(())).await?;
    if let Ok(stream) = reader.into_inner().reunite(peer.write) {
        room.send(stream);
    }
    Ok(())
}

/// Limits what is served over the control socket at the same time. Each kind has its own limit, so that none
/// can starve another.
#[derive(Debug)]
pub(crate) struct CommandLimits {
    pub(crate) capacity: Capacity,
    connected: Semaphore,
    followers: Semaphore,
    long: Semaphore,
    quick: Semaphore,
}

impl CommandLimits {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            connected: Semaphore::new(capacity.connected),
            followers: Semaphore::new(capacity.followers),
            long: Semaphore::new(capacity.long),
            quick: Semaphore::new(capacity.quick),
        }
    }

    /// Admits a command. A quick one waits for a permit; others are refused if there is none.
    async fn admit(&self, kind: RequestKind) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        let (permits, count, what) = match kind {
            RequestKind::Follow => {
                (&self.followers, self.capacity.followers, "followers of logs and events")
            }
            RequestKind::Long | RequestKind::Change => (&self.long, self.capacity.long, "commands"),
            RequestKind::Quick => return Ok(self.quick.acquire().await.ok()),
            RequestKind::Lifecycle | RequestKind::Connection => return Ok(None),
        };
        try_acquire(permits, count, what).map(Some)
    }

    /// Waits until all clients of `mainstay connect` 0.1.0 have disconnected, for at most [`FAREWELL`]. New ones must
    /// not be admitted any more.
    pub(crate) async fn all_disconnected(&self) {
        let all = u32::try_from(self.capacity.connected).unwrap_or(u32::MAX);
        if timeout(FAREWELL, self.connected.acquire_many(all)).await.is_err() {
            tracing::debug!("some clients have not read that another daemon takes over");
        }
    }
}

fn try_acquire<'a>(
    permits: &'a Semaphore,
    count: usize,
    what: &str,
) -> Result<SemaphorePermit<'a>, ApiError> {
    permits.try_acquire().map_err(|_| {
        let message = format!("the limit of {count} {what} is reached");
        let help = "end some of them, then try again";
        ApiError::new(ErrorKind::Unavailable, message).with_help(help)
    })
}

/// Connections that have not sent a request yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct PendingConnections(VecDeque<(AbortHandle, Arc<AtomicBool>)>);

impl PendingConnections {
    /// Adds a connection. If there are too many, the oldest ones are closed.
    pub(crate) fn add(&mut self, task: AbortHandle, received: Arc<AtomicBool>, limit: usize) {
        self.0.push_back((task, received));
        self.0.retain(|(task, received)| !task.is_finished() && !received.load(Ordering::Relaxed));
        let excess = self.0.len().saturating_sub(limit);
        for (oldest, _) in self.0.drain(..excess) {
            oldest.abort();
        }
    }
}

/// The writing half of a connection.
pub(crate) struct Peer {
    write: OwnedWriteHalf,
}

impl Peer {
    #[cfg(test)]
    pub(crate) fn over(write: OwnedWriteHalf) -> Self {
        Self { write }
    }

    /// Sends one item of a stream.
    pub(crate) async fn item(&mut self, item: &impl Serialize) -> io::Result<()> {
        self.items(std::slice::from_ref(item)).await
    }

    /// Sends items of a stream with one write.
    pub(crate) async fn items(&mut self, items: &[impl Serialize]) -> io::Result<()> {
        let mut lines = Vec::new();
        for item in items {
            serde_json::to_writer(&mut lines, &Frame::Item(to_raw_value(item)?))?;
            lines.push(b'\n');
        }
        self.write.write_all(&lines).await
    }

    /// Sends the answer or the error.
    pub(crate) async fn answer<T: Serialize>(
        &mut self,
        answer: Result<T, ApiError>,
    ) -> io::Result<()> {
        match answer {
            Ok(answer) => self.line(&Frame::Ok(to_raw_value(&answer)?)).await,
            Err(error) => self.fail(error).await,
        }
    }

    pub(crate) async fn fail(&mut self, error: ApiError) -> io::Result<()> {
        self.line(&Frame::Error(error)).await
    }

    async fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        // Only streamed items may wait for a user's pager.
        timeout(WRITE_TIMEOUT, self.write.write_all(&line)).await?
    }
}

fn is_same_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

async fn read_line(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINE as u64).read_until(b'\n', &mut line).await?;
    Ok((line.last() == Some(&b'\n')).then_some(line))
}

/// Resolves when the client has disconnected.
async fn disconnected(mut reader: BufReader<OwnedReadHalf>) {
    // A connection that fails has ended, too.
    drop(tokio::io::copy_buf(&mut reader, &mut tokio::io::sink()).await);
}
