//! A connection to a shim.
//!
//! The shim sends the first message; then this daemon sends its number, by which the shim knows which of several
//! daemons to obey. Nothing here waits longer than [`SHIM_ANSWER`] for a shim that does not answer: it may be stopped.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstay_core::watchdog::ReadPosition;
use mainstay_hold::limits::SHIM_ANSWER;
use mainstay_hold::socket;
use mainstay_hold::wire::{Decoder, Frame, FromShim, OLDEST, ToShim, VERSION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep, timeout};

use crate::EngineError;

/// How long, and how often, a connection is retried if the shim's queue of connections is full.
const CROWDED: Duration = Duration::from_secs(1);
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How much is read at a time.
const READ: usize = 64 * 1024;

/// The first message of a shim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Greeting {
    pub(crate) server_pid: u32,
    pub(crate) started_unix_ms: u64,
    /// The offset of the oldest output it still has.
    pub(crate) out_start: u64,
    /// The last line that was written whole to the server.
    pub(crate) written: u64,
    /// Whether the server has exited already.
    pub(crate) exited: bool,
    /// The highest daemon number that it has seen.
    pub(crate) newest_daemon: u64,
}

impl Greeting {
    /// How long ago the server was started.
    pub(crate) fn age(&self) -> Duration {
        #[expect(clippy::disallowed_methods, reason = "the start was recorded in wall time")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(Duration::from_millis(self.started_unix_ms))
    }
}

/// A connection after the exchange of greetings.
#[derive(Debug)]
pub(crate) struct ShimLink {
    pub(crate) reader: ShimReader,
    pub(crate) writer: ShimWriter,
    /// Messages that arrived during [`Self::confirm`].
    pending: VecDeque<FromShim>,
}

#[derive(Debug)]
pub(crate) struct ShimReader {
    socket: OwnedReadHalf,
    decoder: Decoder<FromShim>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct ShimWriter {
    socket: OwnedWriteHalf,
    buffer: Vec<u8>,
}

impl ShimLink {
    /// Connects as the daemon of this number.
    pub(crate) async fn connect(dir: &Path, daemon: u64) -> Result<(Self, Greeting), EngineError> {
        let stream = reach(dir).await?;
        let (read, write) = stream.into_split();
        let mut link = Self {
            reader: ShimReader { socket: read, decoder: Decoder::default(), buffer: Vec::new() },
            writer: ShimWriter { socket: write, buffer: Vec::new() },
            pending: VecDeque::new(),
        };
        let hello =
            timeout(SHIM_ANSWER, link.next()).await.map_err(|_| EngineError::NoAnswer)??;
        let greeting = greeting(hello)?;
        // It is sent with the first message.
        link.writer.put(&ToShim::Daemon { number: daemon });
        Ok((link, greeting))
    }

    pub(crate) async fn send(&mut self, message: &ToShim) -> Result<(), EngineError> {
        self.writer.put(message);
        self.writer.flush().await
    }

    /// Sends a message, if any, and waits until the shim has processed it. Returns
    /// the last standard error of the server; none if the shim has ended meanwhile.
    pub(crate) async fn confirm(
        &mut self,
        message: Option<&ToShim>,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let talk = async {
            if let Some(message) = message {
                self.writer.put(message);
            }
            match self.send(&ToShim::Tail).await {
                // A shim that refuses this daemon closes the connection after sending why.
                Err(error) if !error.is_gone() => return Err(error),
                Ok(()) | Err(_) => {}
            }
            while let Some(frame) = self.reader.next().await? {
                match frame {
                    FromShim::Tail { stderr } => return Ok(Some(stderr)),
                    FromShim::Refused { why } => return Err(EngineError::Refused(why)),
                    news @ (FromShim::Hello { .. }
                    | FromShim::Output { .. }
                    | FromShim::Closed
                    | FromShim::Written { .. }
                    | FromShim::Exited { .. }
                    | FromShim::Unread { .. }
                    | FromShim::Gone { .. }) => self.pending.push_back(news),
                }
            }
            Ok(None)
        };
        timeout(SHIM_ANSWER, talk).await.map_err(|_| EngineError::NoAnswer)?
    }

    /// How far the server has read its input; none if the shim cannot tell.
    pub(crate) async fn count_unread(&mut self) -> Result<Option<ReadPosition>, EngineError> {
        self.confirm(Some(&ToShim::CountUnread)).await?;
        // An older shim skips the request.
        let counted = |frame: &FromShim| match frame {
            FromShim::Unread { read_through: line, bytes: unread } => {
                Some(ReadPosition { line: *line, unread: *unread })
            }
            _ => None,
        };
        let counted = self.pending.iter().rev().find_map(counted);
        Ok(counted.filter(|position| position.line < u64::MAX))
    }

    /// Whether nothing is left of a run that has exited. `Watch` must have been sent before; the messages about the
    /// end stay pending.
    pub(crate) async fn is_over(&mut self) -> Result<bool, EngineError> {
        let exited =
            timeout(SHIM_ANSWER, self.next()).await.map_err(|_| EngineError::NoAnswer)??;
        if let Some(FromShim::Refused { why }) = exited {
            return Err(EngineError::Refused(why));
        }
        self.pending.extend(exited);
        // The shim sends all it knows before it answers: if `Gone` has not arrived, the run was not gone.
        let answered = self.confirm(None).await?.is_some();
        let gone = self.pending.iter().any(|frame| matches!(frame, FromShim::Gone { .. }));
        Ok(gone || !answered)
    }

    /// The next message; none if the shim has closed the connection.
    pub(crate) async fn next(&mut self) -> Result<Option<FromShim>, EngineError> {
        match self.pending.pop_front() {
            Some(frame) => Ok(Some(frame)),
            None => self.reader.next().await,
        }
    }
}

/// A busy shim has no room for another connection for a moment. A stopped one has
/// none after many attempts.
async fn reach(dir: &Path) -> Result<UnixStream, EngineError> {
    let failed = || EngineError::io("connecting to the shim");
    let give_up = Instant::now() + CROWDED;
    let stream = loop {
        match socket::connect(dir, socket::SHIM) {
            Ok(stream) => break stream,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failed()(error)),
            Err(_) if Instant::now() >= give_up => return Err(EngineError::NoAnswer),
            Err(_) => sleep(TRY_AGAIN).await,
        }
    };
    stream.set_nonblocking(true).map_err(failed())?;
    UnixStream::from_std(stream).map_err(failed())
}

fn greeting(hello: Option<FromShim>) -> Result<Greeting, EngineError> {
    match hello {
        Some(FromShim::Hello { version, .. }) if !(OLDEST..=VERSION).contains(&version) => {
            Err(EngineError::Shim(format!(
                "it speaks version {version} of its protocol, this daemon {OLDEST} to {VERSION}"
            )))
        }
        Some(FromShim::Hello {
            server_pid,
            started_unix_ms,
            out_start,
            written,
            exited,
            newest_daemon,
            ..
        }) => {
            Ok(Greeting { server_pid, started_unix_ms, out_start, written, exited, newest_daemon })
        }
        Some(FromShim::Refused { why }) => Err(EngineError::Refused(why)),
        Some(
            other @ (FromShim::Output { .. }
            | FromShim::Closed
            | FromShim::Written { .. }
            | FromShim::Exited { .. }
            | FromShim::Gone { .. }
            | FromShim::Unread { .. }
            | FromShim::Tail { .. }),
        ) => Err(EngineError::Shim(format!("it began with {other:?}"))),
        None => {
            Err(EngineError::io("connecting to the shim")(io::ErrorKind::ConnectionRefused.into()))
        }
    }
}

impl ShimReader {
    /// The next message; none if the shim has closed the connection.
    pub(crate) async fn next(&mut self) -> Result<Option<FromShim>, EngineError> {
        loop {
            let garbled =
                |error| EngineError::Shim(format!("its message cannot be decoded: {error}"));
            if let Some(frame) = self.decoder.next().map_err(garbled)? {
                return Ok(Some(frame));
            }
            self.buffer.clear();
            self.buffer.reserve(READ);
            match self.socket.read_buf(&mut self.buffer).await {
                Ok(0) => return Ok(None),
                Ok(_) => self.decoder.push(&self.buffer),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(EngineError::io("reading from the shim")(error)),
            }
            // An idle connection keeps no buffer: there are as many as there are servers.
            self.buffer = Vec::new();
        }
    }
}

impl ShimWriter {
    /// Queues a message; [`ShimWriter::flush`] sends all that are queued in one go.
    pub(crate) fn put(&mut self, message: &ToShim) {
        message.encode(&mut self.buffer);
    }

    pub(crate) async fn flush(&mut self) -> Result<(), EngineError> {
        let done = self.socket.write_all(&self.buffer).await;
        self.buffer.clear();
        self.buffer.shrink_to(READ);
        done.map_err(EngineError::io("writing to the shim"))
    }
}
