//! One connection: TCP, TCP through TLS, or a unix socket.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

/// How long connections over unix sockets may idle.
const UNIX_IDLE: Duration = Duration::from_secs(120);

/// One connection. Dropping it closes it.
#[derive(Debug)]
pub(super) enum Conn {
    Plain {
        stream: TcpStream,
        /// Its local port.
        port: u16,
    },
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Conn {
    pub(super) fn plain(stream: TcpStream) -> Self {
        let port = stream.local_addr().map_or(0, |addr| addr.port());
        Self::Plain { stream, port }
    }

    /// Whether an idle connection is still open, without unexpected bytes.
    pub(super) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain { stream, .. } => is_silent(stream),
            // What was received before may wait in the decrypted.
            Self::Tls(stream) => is_drained(stream) && is_silent(stream.get_ref().0),
            Self::Unix(stream) => is_silent(stream),
        }
    }

    /// How long the connection may idle, if a TCP connection may for `keep`. The other end of a unix socket is Mainstay's own
    /// HTTP listener, which keeps idle connections for 5 minutes.
    pub(super) fn idle_limit(&self, keep: Duration) -> Duration {
        match self {
            Self::Plain { .. } | Self::Tls(_) => keep,
            Self::Unix(_) => UNIX_IDLE,
        }
    }

    /// The local port; 0 unless it is a plain TCP connection.
    pub(super) fn local_port(&self) -> u16 {
        match self {
            Self::Plain { port, .. } => *port,
            Self::Tls(_) | Self::Unix(_) => 0,
        }
    }

    /// Whether a failed write means that nothing was written. TLS has a buffer in between.
    pub(super) fn writes_directly(&self) -> bool {
        match self {
            Self::Plain { .. } | Self::Unix(_) => true,
            Self::Tls(_) => false,
        }
    }
}

/// Whether the kernel has nothing to read. The runtime learns of a closed connection only when it
/// next waits, so it cannot say.
fn is_silent(socket: &impl AsFd) -> bool {
    let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(socket, &mut [0; 1], look).err() == Some(Errno::AGAIN)
}

fn is_drained(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut byte = [0; 1];
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain { stream, .. } => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain { stream, .. } => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain { stream, .. } => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain { stream, .. } => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain { stream, .. } => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain { stream, .. } => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
