//! The client's end of the control socket.
//!
//! The daemon speaks first. Until its hello has come no byte of a request is written, so that whatever
//! goes wrong before it can be tried again without harm; whatever goes wrong after it cannot. With
//! the listeners in the holder's hands a connection may stand while no daemon is there: then the
//! hello is late, and waited for as long as the socket itself would be.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
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

/// How long a daemon that is not there yet, or just being replaced, is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// Between two tries.
    pub every: Duration,
    /// In all.
    pub total: Duration,
}

impl Default for Grace {
    fn default() -> Self {
        Self { every: Duration::from_millis(200), total: Duration::from_secs(8) }
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The socket could not be reached.
    #[error("the daemon cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It was reached, but did not say hello in time.
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
    /// The answer makes no sense.
    #[error("the daemon's answer cannot be read")]
    Garbled(#[source] serde_json::Error),
    /// The daemon answered with an error.
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl CallError {
    /// Whether it means that nobody holds the socket at this moment, so that somebody may come.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Unreachable(error) => is_transient(error.kind()),
            Self::NoHello
            | Self::Skew { .. }
            | Self::Unsent(_)
            | Self::Cut(_)
            | Self::Garbled(_)
            | Self::Api(_) => false,
        }
    }

    /// Whether somebody holds the socket but no daemon has said hello, so that one may.
    fn is_silence(&self) -> bool {
        match self {
            Self::NoHello => true,
            Self::Unreachable(_)
            | Self::Skew { .. }
            | Self::Unsent(_)
            | Self::Cut(_)
            | Self::Garbled(_)
            | Self::Api(_) => false,
        }
    }
}

/// Whether a socket that cannot be connected to for this reason may soon be one that can: its file is
/// not there, or nobody listens.
pub fn is_transient(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Connects and waits for the hello. A daemon that is not there and one that closes the connection
/// before its hello are waited for within `grace`; every other error is final at once, also one
/// that the daemon gives in place of its hello. No byte of a request has been written by then, so
/// trying again is always safe.
pub async fn connect_with_restart_grace(
    dial: Dial<'_>,
    grace: Grace,
) -> Result<Connection, CallError> {
    connect_while(dial, grace, |error| error.is_absence() || error.is_silence()).await
}

/// The same, for those who know what to do when nobody holds the socket: only the hello is waited
/// for, and an absence is told at once.
pub async fn connect_if_present(dial: Dial<'_>, grace: Grace) -> Result<Connection, CallError> {
    connect_while(dial, grace, CallError::is_silence).await
}

/// Tries again as long as the grace lasts and the error is one that passes.
async fn connect_while(
    dial: Dial<'_>,
    grace: Grace,
    passes: impl Fn(&CallError) -> bool,
) -> Result<Connection, CallError> {
    let deadline = Instant::now() + grace.total;
    loop {
        let next_try = Instant::now() + grace.every;
        let greeted = match dial() {
            // Whoever is met at the last moment gets the time to say it.
            Ok(stream) => Connection::greet(stream, deadline.max(next_try)).await,
            Err(error) => Err(undialled(error)),
        };
        match greeted {
            Err(error) if passes(&error) && Instant::now() < deadline => {
                sleep_until(next_try.min(deadline)).await;
            }
            Ok(_) | Err(_) => return greeted,
        }
    }
}

/// What it means that the socket could not be connected to. A queue that is full of connections
/// shows that somebody holds the socket and nobody serves it: what is missing is the hello.
fn undialled(error: io::Error) -> CallError {
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
        // A daemon that does not serve this peer says so in place of its hello.
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

    /// What the daemon said first.
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
        let () = self.exchange(&request, |_: Vec<serde_json::Value>| Ok(())).await?;
        // The daemon sends nothing before the first request.
        Ok(self.stream.into_inner())
    }

    /// Sends the request, hands the items to `each` as they come, those that came together in one go,
    /// and reads the answer.
    pub async fn stream<I: DeserializeOwned, T: DeserializeOwned>(
        mut self,
        request: &Request,
        each: impl FnMut(Vec<I>) -> io::Result<()>,
    ) -> Result<T, CallError> {
        self.exchange(request, each).await
    }

    async fn exchange<I: DeserializeOwned, T: DeserializeOwned>(
        &mut self,
        request: &Request,
        mut each: impl FnMut(Vec<I>) -> io::Result<()>,
    ) -> Result<T, CallError> {
        let cut = |error| CallError::Cut(Some(error));
        let mut line = serde_json::to_vec(request).map_err(CallError::Garbled)?;
        line.push(b'\n');
        if line.len() > MAX_LINE {
            let message =
                format!("the request is too large: {} bytes, at most {MAX_LINE} fit", line.len());
            return Err(ApiError::new(ErrorKind::Invalid, message).into());
        }
        // A request is a whole line, so half of one is none.
        self.stream.write_all(&line).await.map_err(CallError::Unsent)?;
        let mut items = Vec::new();
        loop {
            if !items.is_empty() && !self.stream.buffer().contains(&b'\n') {
                each(std::mem::take(&mut items)).map_err(cut)?;
            }
            let line = read_line(&mut self.stream).await.map_err(cut)?;
            let line = line.ok_or(CallError::Cut(None))?;
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

/// A whole line, or none at the end. Half a line at the end counts as none.
async fn read_line(stream: &mut BufReader<UnixStream>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let limit = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    stream.take(limit).read_until(b'\n', &mut line).await?;
    Ok((line.last() == Some(&b'\n')).then_some(line))
}

#[cfg(test)]
mod tests;
