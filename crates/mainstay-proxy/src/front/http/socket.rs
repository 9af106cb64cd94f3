//! The sockets of clients: TCP, or the control socket of the daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};

/// A connection that can be passed on to another process.
pub(super) trait Socket:
    AsyncRead + AsyncWrite + AsFd + MaybeSocket + Unpin + Send + Sync + Sized + 'static
{
    fn from_fd(fd: OwnedFd) -> io::Result<Self>;

    fn into_fd(self) -> io::Result<OwnedFd>;

    /// Resolves when something can be written.
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Reads once there is something to read.
    fn receive(
        &self,
        bytes: &mut [u8],
        flags: RecvFlags,
    ) -> impl Future<Output = io::Result<usize>> + Send;

    /// Waits until there is something to read, which stays there. 0 means that the client has closed the connection.
    fn peek(&self) -> impl Future<Output = io::Result<usize>> + Send {
        async { self.receive(&mut [0], RecvFlags::PEEK).await }
    }
}

/// A connection that may be a socket.
pub(super) trait MaybeSocket {
    fn socket(&self) -> Option<BorrowedFd<'_>>;
}

macro_rules! socket {
    ($socket:ty, $std:ty) => {
        impl Socket for $socket {
            fn from_fd(fd: OwnedFd) -> io::Result<Self> {
                let socket = <$std>::from(fd);
                socket.set_nonblocking(true)?;
                Self::from_std(socket)
            }

            fn into_fd(self) -> io::Result<OwnedFd> {
                self.into_std().map(OwnedFd::from)
            }

            async fn writable(&self) -> io::Result<()> {
                self.writable().await
            }

            fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.try_write(bytes)
            }

            async fn receive(&self, bytes: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
                let mut receive = || Ok(recv(self, &mut *bytes, flags)?.0);
                self.async_io(Interest::READABLE, &mut receive).await
            }
        }

        impl MaybeSocket for $socket {
            fn socket(&self) -> Option<BorrowedFd<'_>> {
                Some(self.as_fd())
            }
        }
    };
}

socket!(TcpStream, std::net::TcpStream);
socket!(UnixStream, std::os::unix::net::UnixStream);

#[cfg(test)]
impl MaybeSocket for tokio::io::DuplexStream {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
