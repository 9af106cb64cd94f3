//! The sources of connections, and the identification of their callers.

use std::future::pending;
use std::io;

use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;

use super::Config;
use super::caller::{Caller, CallerLookup};
use super::socket::Socket;

/// A source of connections.
pub(super) trait Listener {
    type Socket: Socket;

    async fn accept(&mut self) -> io::Result<Self::Socket>;

    /// A connection that would be lost with the listener.
    fn next_left(&mut self) -> Option<Self::Socket>;

    /// Identifies the caller of a connection. Fails if it is closed.
    fn caller(&mut self, socket: &Self::Socket) -> io::Result<Caller>;
}

/// A TCP port.
pub(super) struct PublicListener {
    listener: TcpListener,
    callers: CallerLookup,
}

impl PublicListener {
    pub(super) fn new(listener: TcpListener, config: &Config) -> Self {
        let callers = CallerLookup::new(config.callers.clone(), listener.local_addr().ok());
        Self { listener, callers }
    }
}

impl Listener for PublicListener {
    type Socket = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let (socket, _) = self.listener.accept().await?;
        // It fails only on a connection that is closed, which the lookup of the caller finds out.
        socket.set_nodelay(true).ok();
        Ok(socket)
    }

    /// The next daemon accepts what is left.
    fn next_left(&mut self) -> Option<TcpStream> {
        None
    }

    fn caller(&mut self, socket: &TcpStream) -> io::Result<Caller> {
        let caller = self.callers.caller(socket.local_addr()?, socket.peer_addr()?);
        // If the peer has disconnected, another process may have reused its address: drop the connection.
        socket.peer_addr()?;
        Ok(caller)
    }
}

/// The control socket, which checks its callers itself.
pub(super) struct PrivateListener(pub(super) mpsc::Receiver<UnixStream>);

impl Listener for PrivateListener {
    type Socket = UnixStream;

    async fn accept(&mut self) -> io::Result<UnixStream> {
        match self.0.recv().await {
            Some(socket) => Ok(socket),
            None => pending().await,
        }
    }

    fn next_left(&mut self) -> Option<UnixStream> {
        self.0.close();
        self.0.try_recv().ok()
    }

    fn caller(&mut self, _: &UnixStream) -> io::Result<Caller> {
        Ok(Caller::Trusted)
    }
}
