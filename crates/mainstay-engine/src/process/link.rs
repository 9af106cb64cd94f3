//! A connection to a shim.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstay_hold::socket;
use mainstay_hold::wire::{Decoder, FromShim, ToShim, VERSION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::EngineError;

/// A shim that does not greet within this time is not one.
const GREETING: Duration = Duration::from_secs(5);

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
}

impl Greeting {
    /// How long ago the server was started.
    pub(crate) fn age(&self) -> Duration {
        #[expect(clippy::disallowed_methods, reason = "the start was noted in wall time")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(Duration::from_millis(self.started_unix_ms))
    }
}

/// A connection on which the shim has greeted.
#[derive(Debug)]
pub(crate) struct ShimLink {
    pub(crate) reader: ShimReader,
    pub(crate) writer: ShimWriter,
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
    pub(crate) async fn connect(dir: &Path) -> Result<(Self, Greeting), EngineError> {
        let stream = socket::connect(dir, socket::SHIM)
            .and_then(|stream| {
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream)
            })
            .map_err(EngineError::io("connecting to the shim"))?;
        let (read, write) = stream.into_split();
        let mut link = Self {
            reader: ShimReader { socket: read, decoder: Decoder::default(), buffer: Vec::new() },
            writer: ShimWriter { socket: write, buffer: Vec::new() },
        };
        let hello = timeout(GREETING, link.next()).await.map_err(|_| {
            EngineError::Shim(format!("it did not greet within {} s", GREETING.as_secs()))
        })??;
        match hello {
            Some(FromShim::Hello { version, .. }) if version != VERSION => Err(EngineError::Shim(
                format!("it speaks version {version} of its protocol, this daemon {VERSION}"),
            )),
            Some(FromShim::Hello {
                server_pid,
                started_unix_ms,
                out_start,
                written,
                exited,
                ..
            }) => Ok((link, Greeting { server_pid, started_unix_ms, out_start, written, exited })),
            Some(other) => Err(EngineError::Shim(format!("it began with {other:?}"))),
            None => Err(EngineError::io("connecting to the shim")(
                io::ErrorKind::ConnectionRefused.into(),
            )),
        }
    }

    pub(crate) async fn send(&mut self, message: &ToShim) -> Result<(), EngineError> {
        self.writer.put(message);
        self.writer.flush().await
    }

    pub(crate) async fn next(&mut self) -> Result<Option<FromShim>, EngineError> {
        self.reader.next().await
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

/// Whether a connection failed because no shim is there.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
