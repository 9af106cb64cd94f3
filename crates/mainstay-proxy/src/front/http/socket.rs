//! The sockets of clients: TCP, or the control socket of the daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
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

    /// Whether [`Self::refuse`] has an effect: the client is `mainstay connect`.
    fn can_refuse(&self) -> bool {
        false
    }

    /// Ends a connection on which no response is open, so that its client knows that requests which were not read have
    /// had no effect: from now on it cannot send any, and what it has sent is answered with the status 425.
    fn refuse(&self) {}
}

const REFUSAL: &[u8] = b"HTTP/1.1 425 Too Early\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

fn refuse(socket: &UnixStream) {
    let mut unread = [0; 4096];
    let (mut has_request, flags) = (false, RecvFlags::DONTWAIT);
    // The order matters: nothing can arrive after the last look.
    if shutdown(socket, Shutdown::Read).is_ok() {
        while recv(socket, &mut unread, flags).is_ok_and(|(count, _)| count > 0) {
            has_request = true;
        }
    }
    if has_request {
        // A client that does not read has no use for it.
        socket.try_write(REFUSAL).ok();
    }
}

macro_rules! socket {
    ($socket:ty, $std:ty $(, $refuse:ident)?) => {
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

            $(
                fn can_refuse(&self) -> bool {
                    true
                }

                fn refuse(&self) {
                    $refuse(self);
                }
            )?
        }
    };
}

socket!(TcpStream, std::net::TcpStream);
socket!(UnixStream, std::os::unix::net::UnixStream, refuse);

#[cfg(test)]
impl MaybeSocket for tokio::io::DuplexStream {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_client_knows_that_an_unread_request_has_had_no_effect() {
        for request in ["", "POST /time/mcp HTTP/1.1\r\n"] {
            let (mut client, daemon) = UnixStream::pair().unwrap();
            client.write_all(request.as_bytes()).await.unwrap();
            daemon.refuse();
            let later = client.write_all(b"POST").await.unwrap_err();
            assert_eq!(later.kind(), io::ErrorKind::BrokenPipe);
            drop(daemon);
            let mut response = String::new();
            client.read_to_string(&mut response).await.unwrap();
            let expected = if request.is_empty() { "" } else { "HTTP/1.1 425 Too Early\r\n" };
            assert_eq!(response.split_inclusive('\n').next().unwrap_or_default(), expected);
        }
    }
}
