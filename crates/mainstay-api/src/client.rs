//! The client's end of the control socket.
//!
//! The daemon speaks first. No byte of a request is written before its hello, so a failure before the hello can be
//! retried safely, and a failure after it cannot. The holder owns the listener, so a connection may be accepted while
//! no daemon runs: then the client waits for the hello as long as it would wait for the socket.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::pin;
use std::time::Duration;

use mainstay_core::ServerName;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{ApiError, ErrorKind, Frame, Hello, MAX_LINE, PROTOCOL, Request};

/// How much is read at a time.
const READ: usize = 64 * 1024;

/// Opens the control socket.
pub type Dial<'a> = &'a (dyn Fn() -> io::Result<StdStream> + Send + Sync);

/// How long to wait for a daemon that is being started or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// The delay between two attempts.
    pub every: Duration,
    /// The total time.
    pub total: Duration,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The socket could not be reached.
    #[error("the daemon cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It accepted the connection, but sent no hello in time.
    #[error("the daemon accepted the connection but did not answer")]
    NoHello,
    /// It speaks another protocol.
    #[error(
        "the daemon (version {daemon}) uses protocol {theirs}, and this program protocol {ours}"
    )]
    Skew {
        /// The daemon's version.
        daemon: String,
        /// The daemon's protocol.
        theirs: u32,
        /// This program's protocol.
        ours: u32,
    },
    /// The connection ended before the whole request was written, so it was not carried out.
    #[error("the daemon closed the connection before it received the request")]
    Unsent(#[source] io::Error),
    /// The connection ended before the answer.
    #[error("the connection to the daemon closed in the middle of the request")]
    Cut(#[source] Option<io::Error>),
    /// The answer cannot be parsed.
    #[error("the daemon's answer cannot be read")]
    Garbled(#[source] serde_json::Error),
    /// The daemon answered with an error.
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl CallError {
    /// Whether no process listens on the socket, so that a daemon may be started.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Unreachable(error) if is_transient(error.kind()))
    }
}

/// Whether a failed connection to a socket may succeed soon: its file does not exist, or no process listens.
pub fn is_transient(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Connects and waits for the hello. Retries within `grace` while no process listens or the connection closes before
/// the hello; every other error is final, also one that the daemon sends instead of its hello.
pub async fn connect_with_restart_grace(
    dial: Dial<'_>,
    grace: Grace,
) -> Result<Connection, CallError> {
    connect_while(dial, grace, |error| error.is_absence() || matches!(error, CallError::NoHello))
        .await
}

/// Like [`connect_with_restart_grace`], but fails at once if no process listens.
pub async fn connect_if_present(dial: Dial<'_>, grace: Grace) -> Result<Connection, CallError> {
    connect_while(dial, grace, |error| matches!(error, CallError::NoHello)).await
}

async fn connect_while(
    dial: Dial<'_>,
    grace: Grace,
    is_retried: impl Fn(&CallError) -> bool,
) -> Result<Connection, CallError> {
    let deadline = Instant::now() + grace.total;
    loop {
        let next_try = Instant::now() + grace.every;
        let greeted = match dial() {
            // A connection that is accepted at the last moment still gets time for its hello.
            Ok(stream) => Connection::greet(stream, deadline.max(next_try)).await,
            Err(error) => Err(dial_error(error)),
        };
        match greeted {
            Err(error) if is_retried(&error) && Instant::now() < deadline => {
                sleep_until(next_try.min(deadline)).await;
            }
            Ok(_) | Err(_) => return greeted,
        }
    }
}

/// A full queue of connections means that the holder listens and no daemon accepts: the hello is missing.
fn dial_error(error: io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::WouldBlock => CallError::NoHello,
        _ => CallError::Unreachable(error),
    }
}

/// A connection on which the daemon has said hello. It carries one request.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
    hello: Hello,
}

impl Connection {
    async fn greet(stream: StdStream, deadline: Instant) -> Result<Self, CallError> {
        stream.set_nonblocking(true).map_err(CallError::Unreachable)?;
        let stream = UnixStream::from_std(stream).map_err(CallError::Unreachable)?;
        let mut stream = BufReader::with_capacity(READ, stream);
        let Ok(Ok(Some(line))) = timeout_at(deadline, read_line(&mut stream)).await else {
            return Err(CallError::NoHello);
        };
        // A daemon that does not serve this peer sends an error instead of its hello.
        if let Ok(Frame::Error(refusal)) = serde_json::from_slice(&line) {
            return Err(refusal.into());
        }
        let hello: Hello = serde_json::from_slice(&line).map_err(CallError::Garbled)?;
        if hello.protocol != PROTOCOL {
            return Err(CallError::Skew {
                daemon: hello.mainstay,
                theirs: hello.protocol,
                ours: PROTOCOL,
            });
        }
        Ok(Self { stream, hello })
    }

    /// The first line of the daemon.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sends the request and reads its answer.
    pub async fn call<T: DeserializeOwned>(self, request: &Request) -> Result<T, CallError> {
        self.stream(request, |_: Vec<serde_json::Value>| Ok(())).await
    }

    /// Turns the connection into one that carries HTTP to a server; see [`Request::Http`].
    pub async fn http(mut self, name: ServerName) -> Result<UnixStream, CallError> {
        let request = Request::Http { name };
        let ignore = |_: Vec<serde_json::Value>| Ok(());
        let () = self.exchange(&request, ignore, std::future::pending()).await?;
        // The daemon sends nothing before the first request.
        Ok(self.stream.into_inner())
    }

    /// Sends the request, passes items to `each` in batches as they arrive, and reads the answer.
    pub async fn stream<I: DeserializeOwned, T: DeserializeOwned>(
        mut self,
        request: &Request,
        each: impl FnMut(Vec<I>) -> io::Result<()>,
    ) -> Result<T, CallError> {
        self.exchange(request, each, std::future::pending()).await
    }

    /// The same until `stop`. Then the daemon learns that nobody waits for the answer any more; it may send last items, and
    /// [`CallError::Cut`] follows.
    pub async fn stream_until<I: DeserializeOwned, T: DeserializeOwned>(
        mut self,
        request: &Request,
        each: impl FnMut(Vec<I>) -> io::Result<()>,
        stop: impl Future<Output = ()>,
    ) -> Result<T, CallError> {
        self.exchange(request, each, stop).await
    }

    async fn exchange<I: DeserializeOwned, T: DeserializeOwned>(
        &mut self,
        request: &Request,
        mut each: impl FnMut(Vec<I>) -> io::Result<()>,
        stop: impl Future<Output = ()>,
    ) -> Result<T, CallError> {
        let mut stop = pin!(stop);
        let mut is_stopped = false;
        let cut = |error| CallError::Cut(Some(error));
        let mut line = serde_json::to_vec(request).map_err(CallError::Garbled)?;
        line.push(b'\n');
        if line.len() > MAX_LINE {
            let message =
                format!("the request is too large: {} bytes, the limit is {MAX_LINE}", line.len());
            return Err(ApiError::new(ErrorKind::Invalid, message).into());
        }
        // A daemon ignores an incomplete line.
        self.stream.write_all(&line).await.map_err(CallError::Unsent)?;
        let mut items = Vec::new();
        loop {
            if !items.is_empty() && !self.stream.buffer().contains(&b'\n') {
                each(std::mem::take(&mut items)).map_err(cut)?;
            }
            let mut line = Vec::new();
            loop {
                tokio::select! {
                    read = append_line(&mut self.stream, &mut line) => break read.map_err(cut)?,
                    () = &mut stop, if !is_stopped => {
                        is_stopped = true;
                        // It fails if the daemon has closed the connection, which is read next.
                        self.stream.shutdown().await.ok();
                    }
                }
            }
            let line = complete(line).ok_or(CallError::Cut(None))?;
            let frame = serde_json::from_slice(&line).map_err(CallError::Garbled)?;
            if !matches!(frame, Frame::Item(_)) && !items.is_empty() {
                each(std::mem::take(&mut items)).map_err(cut)?;
            }
            match frame {
                Frame::Item(item) => {
                    items.push(serde_json::from_str(item.get()).map_err(CallError::Garbled)?);
                }
                Frame::Ok(answer) => {
                    return serde_json::from_str(answer.get()).map_err(CallError::Garbled);
                }
                Frame::Error(error) => return Err(error.into()),
            }
        }
    }
}

/// A complete line; `None` at the end of the connection, even after an incomplete line.
async fn read_line(stream: &mut BufReader<UnixStream>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    append_line(stream, &mut line).await?;
    Ok(complete(line))
}

/// Reads the rest of a line. What was read stays in `line` if this is cancelled.
async fn append_line(stream: &mut BufReader<UnixStream>, line: &mut Vec<u8>) -> io::Result<()> {
    let limit = u64::try_from(MAX_LINE.saturating_sub(line.len())).unwrap_or(u64::MAX);
    stream.take(limit).read_until(b'\n', line).await?;
    Ok(())
}

fn complete(line: Vec<u8>) -> Option<Vec<u8>> {
    (line.last() == Some(&b'\n')).then_some(line)
}

#[cfg(test)]
mod tests;
