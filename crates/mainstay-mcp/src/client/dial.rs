//! Making connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;

use super::conn::Conn;
use super::error::SendError;
use super::resolve::resolve;
use super::target::Place;
use super::tls::Trust;

/// How long one address may take to accept.
const CONNECT: Duration = Duration::from_secs(2);
/// How often a server on this machine is tried that does not accept connections because its queue of them is full. It is observed
/// as one that does not answer, so it is given up as unreachable only after two minutes.
const LOCAL_TRIES: u32 = 60;
/// How long the server may take to prove who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Makes connections to one server. Nothing of a request is sent here.
#[derive(Debug)]
pub(super) struct Dialer {
    place: Place,
    tls: Option<(ServerName<'static>, Trust)>,
    /// The address that accepted last.
    last: Mutex<Option<SocketAddr>>,
}

impl Dialer {
    pub(super) fn new(place: Place, tls: Option<(ServerName<'static>, Trust)>) -> Self {
        Self { place, tls, last: Mutex::new(None) }
    }

    /// Connects to the address that accepted last time, or else to the first one that does.
    pub(super) async fn dial(&self) -> Result<Conn, SendError> {
        let known = preferring(self.last(), self.candidates().await?);
        let tries = if known.iter().all(|addr| addr.ip().is_loopback()) { LOCAL_TRIES } else { 1 };
        let mut reached = self.reach(&known).await;
        for _ in 1..tries {
            match reached {
                Err(ref error) if is_late(error) => reached = self.reach(&known).await,
                Ok(_) | Err(_) => break,
            }
        }
        let stream = reached?;
        // It fails only on a connection that is gone already, which the first write finds out.
        stream.set_nodelay(true).ok();
        let Some((name, trust)) = &self.tls else { return Ok(Conn::plain(stream)) };
        let secured = secure(name, trust, stream).await;
        secured.map_err(|source| SendError::Tls { name: name.to_str().into_owned(), source })
    }

    /// At least one address.
    async fn candidates(&self) -> Result<Vec<SocketAddr>, SendError> {
        let (host, port) = match &self.place {
            Place::Addrs(addrs) => return Ok(addrs.clone()),
            Place::Name { host, port } => (host, *port),
        };
        let found = resolve(host, port).await;
        found.map_err(|source| SendError::Resolve { host: host.clone(), source })
    }

    async fn reach(&self, addrs: &[SocketAddr]) -> Result<TcpStream, SendError> {
        let mut first_error = None;
        for &addr in addrs {
            match timeout(CONNECT, TcpStream::connect(addr)).await.unwrap_or_else(|_| late()) {
                Ok(stream) => {
                    *mainstay_core::lock(&self.last) = Some(addr);
                    return Ok(stream);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let source = first_error.expect("there is at least one address");
        Err(SendError::Connect { tried: addrs.to_vec(), source })
    }

    fn last(&self) -> Option<SocketAddr> {
        *mainstay_core::lock(&self.last)
    }
}

async fn secure(name: &ServerName<'static>, trust: &Trust, stream: TcpStream) -> io::Result<Conn> {
    let connector = trust.connector().await?;
    let handshake = connector.connect(name.clone(), stream);
    let stream = timeout(HANDSHAKE, handshake).await.unwrap_or_else(|_| late())?;
    Ok(Conn::Tls(Box::new(stream)))
}

fn late<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}

fn is_late(error: &SendError) -> bool {
    matches!(error, SendError::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut)
}

/// Moves one address to the front, if it is among them.
fn preferring(first: Option<SocketAddr>, mut addrs: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if let Some(at) = addrs.iter().position(|addr| Some(*addr) == first) {
        addrs[..=at].rotate_right(1);
    }
    addrs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_accepted_last_comes_first() {
        let addrs = |ports: &[u16]| -> Vec<SocketAddr> {
            ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
        };
        for (first, expected) in [(1, [1, 2, 3]), (2, [2, 1, 3]), (3, [3, 1, 2]), (4, [1, 2, 3])] {
            let first = addrs(&[first])[0];
            assert_eq!(preferring(Some(first), addrs(&[1, 2, 3])), addrs(&expected));
        }
        assert_eq!(preferring(None, addrs(&[2, 1])), addrs(&[2, 1]));
    }
}
