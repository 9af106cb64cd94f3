//! A connection to a shim.
//!
//! The shim speaks first; then we give our number, by which it knows which of several daemons to obey.
//! Nothing here waits longer than [`ANSWER_TIMEOUT`] for a shim that does not answer: it may be stopped.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstay_hold::socket;
use mainstay_hold::wire::{Decoder, FromShim, OLDEST, ToShim, VERSION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep, timeout};

use crate::EngineError;

/// A shim that does not answer within this time does not answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long, and how often, a shim is tried whose queue of connections is full.
const CROWDED: Duration = Duration::from_secs(1);
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How much is read at a time.
const READ: usize = 64 * 1024;

/// What a shim says first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Greeting {
    pub(crate) server_pid: u32,
    pub(crate) started_unix_ms: u64,
    /// The oldest output it still has.
    pub(crate) out_start: u64,
    /// The last line that was written whole to the server.
    pub(crate) written: u64,
    /// Whether the server has exited already.
    pub(crate) exited: bool,
    /// The highest number of a daemon that it has seen.
    pub(crate) newest_daemon: u64,
}

impl Greeting {
    /// How long ago the server was started.
    pub(crate) fn age(&self) -> Duration {
        #[expect(clippy::disallowed_methods, reason = "the start was noted in wall time")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(Duration::from_millis(self.started_unix_ms))
    }
}

/// A connection on which the shim has greeted, and knows us.
#[derive(Debug)]
pub(crate) struct ShimLink {
    pub(crate) reader: ShimReader,
    pub(crate) writer: ShimWriter,
    /// What was heard while something else was waited for.
    heard: VecDeque<FromShim>,
}

/// The half that hears the shim.
#[derive(Debug)]
pub(crate) struct ShimReader {
    socket: OwnedReadHalf,
    decoder: Decoder<FromShim>,
    buffer: Vec<u8>,
}

/// The half that speaks to the shim.
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
            heard: VecDeque::new(),
        };
        let hello =
            timeout(ANSWER_TIMEOUT, link.next()).await.map_err(|_| EngineError::NoAnswer)??;
        let greeting = greeting(hello)?;
        // It goes out with whatever is said first.
        link.writer.put(&ToShim::Daemon { number: daemon });
        Ok((link, greeting))
    }

    pub(crate) async fn send(&mut self, message: &ToShim) -> Result<(), EngineError> {
        self.writer.put(message);
        self.writer.flush().await
    }

    /// Says this, if anything, and waits until the shim has taken in all that was said. Answers with
    /// the last words of the server; none when the shim has gone meanwhile.
    pub(crate) async fn confirm(
        &mut self,
        message: Option<&ToShim>,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let talk = async {
            if let Some(message) = message {
                self.writer.put(message);
            }
            match self.send(&ToShim::Tail).await {
                // A shim that refuses us does not wait for what we say, but has told why.
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
                    | FromShim::Gone { .. }) => self.heard.push_back(news),
                }
            }
            Ok(None)
        };
        timeout(ANSWER_TIMEOUT, talk).await.map_err(|_| EngineError::NoAnswer)?
    }

    /// Whether nothing is left of a run that has exited. The news of its end was asked for before; it
    /// stays to be heard.
    pub(crate) async fn is_over(&mut self) -> Result<bool, EngineError> {
        let exited =
            timeout(ANSWER_TIMEOUT, self.next()).await.map_err(|_| EngineError::NoAnswer)??;
        if let Some(FromShim::Refused { why }) = exited {
            return Err(EngineError::Refused(why));
        }
        self.heard.extend(exited);
        // The shim tells all that it can tell at once: what it has not told when it answers the next
        // question had not happened.
        let answered = self.confirm(None).await?.is_some();
        let gone = self.heard.iter().any(|frame| matches!(frame, FromShim::Gone { .. }));
        Ok(gone || !answered)
    }

    /// The next thing the shim says; none when it has hung up.
    pub(crate) async fn next(&mut self) -> Result<Option<FromShim>, EngineError> {
        match self.heard.pop_front() {
            Some(frame) => Ok(Some(frame)),
            None => self.reader.next().await,
        }
    }
}

/// A shim that is being overrun has no room for another connection for a moment, a stopped one has
/// none when enough have been tried.
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
            | FromShim::Tail { .. }),
        ) => Err(EngineError::Shim(format!("it began with {other:?}"))),
        None => {
            Err(EngineError::io("connecting to the shim")(io::ErrorKind::ConnectionRefused.into()))
        }
    }
}

impl ShimReader {
    /// The next thing the shim says; none when it has hung up.
    pub(crate) async fn next(&mut self) -> Result<Option<FromShim>, EngineError> {
        loop {
            let garbled = |error| EngineError::Shim(format!("it cannot be understood: {error}"));
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
