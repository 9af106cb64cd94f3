//! Looks up the owner of a TCP socket on this machine.
//!
//! TCP has no `SO_PEERCRED`, but any process may ask the kernel for the owner of a socket in its network namespace.
//! Sockets in other namespaces and on other machines are not found.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::sock_diag::{self, Ends, Query, Reply, TcpSocket, is_shortage};

/// How many packets are read per request: a reply to an earlier request may still be queued.
const PACKETS: usize = 4;

/// Looks up socket owners.
#[derive(Debug)]
pub struct SocketOwners {
    source: Source,
    /// The number of the last request.
    sequence: u32,
}

#[derive(Debug)]
enum Source {
    Netlink(OwnedFd),
    /// Until netlink can be tried.
    Proc {
        listener: SocketAddr,
    },
    ProcOnly,
}

impl SocketOwners {
    /// Uses netlink, or `/proc` if netlink does not report this listener.
    pub fn new(listener: SocketAddr) -> Self {
        let mut opened = Self { source: Source::Proc { listener }, sequence: 0 };
        opened.try_netlink();
        opened
    }

    /// Switches to netlink if it reports the listener. If descriptors are scarce, the next lookup tries again.
    fn try_netlink(&mut self) {
        let Source::Proc { listener } = self.source else { return };
        match sock_diag::open() {
            Ok(socket) => {
                let mut tried = Self { source: Source::Netlink(socket), sequence: 0 };
                if tried.listener(listener).is_none() {
                    tried.source = Source::ProcOnly;
                }
                *self = tried;
            }
            Err(error) if is_shortage(&error) => {}
            Err(_) => self.source = Source::ProcOnly,
        }
    }

    /// The owner of the other end of a connection, if a local process still has it open.
    pub fn peer(&mut self, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        let ends = canonical(Ends { local: peer, remote: local });
        let found = self.find(ends).ok().flatten()?;
        (!found.is_listening && found.inode != 0).then_some(found.uid)
    }

    /// The user who listens at an address.
    pub fn listener(&mut self, addr: SocketAddr) -> Option<u32> {
        let local = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        // No peer has such an address, so nothing but a listener is found.
        let remote = SocketAddr::new(unspecified(local.ip()), 0);
        let found = self.find(Ends { local, remote }).ok().flatten()?;
        (found.is_listening && found.inode != 0).then_some(found.uid)
    }

    fn find(&mut self, ends: Ends) -> io::Result<Option<TcpSocket>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.try_netlink();
        match &self.source {
            Source::Netlink(socket) => Ok(ask(socket, self.sequence, ends)?),
            Source::Proc { .. } | Source::ProcOnly => {
                Ok(sock_diag::in_proc()?.into_iter().find(|found| is_at(found, ends)))
            }
        }
    }
}

fn ask(socket: &OwnedFd, sequence: u32, ends: Ends) -> Result<Option<TcpSocket>, Errno> {
    sock_diag::send(socket, sequence, Query::Socket(ends))?;
    let mut buffer = [0; 1024];
    for _ in 0..PACKETS {
        for reply in sock_diag::receive(socket, &mut buffer, sequence)? {
            match reply {
                // A listener may be bound to a wildcard address.
                Reply::Found(found) if found.is_listening || canonical(found.ends) == ends => {
                    return Ok(Some(found));
                }
                Reply::Found(_) | Reply::Done => {}
                Reply::Failed(Errno::NOENT) => return Ok(None),
                Reply::Failed(error) => return Err(error),
            }
        }
    }
    Err(Errno::BADMSG)
}

/// Whether a socket of the table has these addresses, or listens at the local one.
fn is_at(found: &TcpSocket, ends: Ends) -> bool {
    let any = SocketAddr::new(unspecified(ends.local.ip()), ends.local.port());
    let listens = found.is_listening && canonical(found.ends) == Ends { local: any, ..ends };
    canonical(found.ends) == ends || listens
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Maps IPv4-mapped IPv6 addresses to IPv4, by which both kinds of sockets are found.
fn canonical(Ends { local, remote }: Ends) -> Ends {
    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    Ends { local: canonical(local), remote: canonical(remote) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn us() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// A listener, and both ends of a connection to it.
    fn connected(at: &str) -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind(at).unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = if at.starts_with("127") { "127.0.0.1" } else { "::1" };
        let client = TcpStream::connect((host, port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        (listener, client, server)
    }

    fn sources(listener: SocketAddr) -> [SocketOwners; 2] {
        let netlink = SocketOwners::new(listener);
        assert!(matches!(netlink.source, Source::Netlink(_)), "this kernel has sock_diag");
        [netlink, SocketOwners { source: Source::ProcOnly, sequence: 0 }]
    }

    #[test]
    fn the_owner_of_a_peer_and_of_a_listener_is_found() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let (listener, _client, server) = connected(at);
            let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
            for mut owners in sources(listener.local_addr().unwrap()) {
                assert_eq!(owners.peer(local, peer), Some(us()), "{at} {owners:?}");
                assert_eq!(owners.listener(local), Some(us()), "{at} {owners:?}");
                assert_eq!(owners.listener(peer), None, "nobody listens at {at} {owners:?}");
            }
        }
    }

    /// A dual-stack listener reports IPv4 peers with mapped IPv6 addresses.
    #[test]
    fn a_mapped_address_is_an_ipv4_address() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, peer) = listener.accept().unwrap();
        assert!(peer.is_ipv6(), "{peer}");
        for mut owners in sources(listener.local_addr().unwrap()) {
            // The client has an IPv4 socket, so it is in the IPv4 table.
            assert_eq!(owners.peer(server.local_addr().unwrap(), peer), Some(us()), "{owners:?}");
        }
        drop(client);
    }

    /// Java clients use an IPv6 socket.
    #[test]
    fn a_client_may_use_an_ipv6_socket_for_ipv4() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        let _client = TcpStream::connect((mapped, port)).unwrap();
        let (server, peer) = listener.accept().unwrap();
        assert!(peer.is_ipv4(), "{peer}");
        for mut owners in sources(listener.local_addr().unwrap()) {
            assert_eq!(owners.peer(server.local_addr().unwrap(), peer), Some(us()), "{owners:?}");
        }
    }

    #[test]
    fn a_peer_that_has_closed_has_no_owner() {
        let (listener, client, server) = connected("127.0.0.1:0");
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        drop(client);
        for mut owners in sources(listener.local_addr().unwrap()) {
            assert_eq!(owners.peer(local, peer), None, "{owners:?}");
        }
    }

    /// If the peer is gone, the kernel returns a listener at its port.
    #[test]
    fn a_listener_at_the_port_of_a_peer_is_not_the_peer() {
        let (listener, client, server) = connected("127.0.0.1:0");
        let local = server.local_addr().unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        for mut owners in sources(listener.local_addr().unwrap()) {
            assert_eq!(owners.peer(local, other.local_addr().unwrap()), None, "{owners:?}");
        }
        drop(client);
    }
}
