//! Looks up the owner of a TCP socket on this machine.
//!
//! TCP has no `SO_PEERCRED`, but any process may ask the kernel for the owner of a socket in its network
//! namespace (netlink `sock_diag`). Where that is blocked, as in some sandboxes, `/proc/net/tcp` has the same
//! information. Sockets in other namespaces and on other machines are not found.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Lengths of `struct nlmsghdr`, of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const REPLY: usize = 72;

/// Message types and flags.
const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// The state of a listening socket, and a mask of all states.
const LISTEN: u8 = 10;
const ALL_STATES: u32 = u32::MAX;

/// How many replies are read per request: a reply to an earlier request may still be queued.
const REPLIES: usize = 4;

/// Looks up socket owners.
#[derive(Debug)]
pub struct SockDiag {
    source: Source,
    /// The sequence number of the last request.
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

/// A socket that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    is_listening: bool,
    uid: u32,
    /// 0 if no process has the socket open; the uid is meaningless then.
    inode: u64,
}

/// The two addresses of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends {
    local: SocketAddr,
    remote: SocketAddr,
}

impl SockDiag {
    /// Uses netlink, or `/proc` if netlink does not report this listener.
    pub fn new(listener: SocketAddr) -> Self {
        let mut opened = Self { source: Source::Proc { listener }, sequence: 0 };
        opened.try_netlink();
        opened
    }

    /// Switches to netlink if it reports the listener. If descriptors are scarce, the next lookup tries again.
    fn try_netlink(&mut self) {
        let Source::Proc { listener } = self.source else { return };
        let unusable = match netlink() {
            Ok(socket) => {
                let mut tried = Self { source: Source::Netlink(socket), sequence: 0 };
                if tried.listener(listener).is_some() {
                    return *self = tried;
                }
                true
            }
            Err(error) => {
                let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
                !error.raw_os_error().is_some_and(|code| shortages.contains(&code))
            }
        };
        if unusable {
            tracing::debug!("sock_diag is not available; reading /proc/net/tcp instead");
            self.source = Source::ProcOnly;
        }
    }

    /// The owner of the other end of a connection, if a local process still has it open.
    pub fn peer(&mut self, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        let ends = Ends { local: canonical(peer), remote: canonical(local) };
        let found = self.find(ends).ok().flatten()?;
        (!found.is_listening && found.inode != 0).then_some(found.uid)
    }

    /// The user who listens at an address.
    pub fn listener(&mut self, addr: SocketAddr) -> Option<u32> {
        let local = canonical(addr);
        // No peer has such an address, so nothing but a listener is found.
        let remote = match local {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let found = self.find(Ends { local, remote }).ok().flatten()?;
        (found.is_listening && found.inode != 0).then_some(found.uid)
    }

    fn find(&mut self, ends: Ends) -> io::Result<Option<Found>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.try_netlink();
        match &self.source {
            Source::Netlink(socket) => ask(socket, self.sequence, ends),
            Source::Proc { .. } | Source::ProcOnly => {
                // An IPv6 socket may have IPv4 addresses, and the machine may have no IPv6.
                let find = |file| find_in_table(&fs::read_to_string(file).ok()?, ends);
                Ok(["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(find))
            }
        }
    }
}

fn netlink() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?)
}

/// Asks the kernel, which replies synchronously.
fn ask(socket: &OwnedFd, sequence: u32, ends: Ends) -> io::Result<Option<Found>> {
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, &request(sequence, ends), SendFlags::empty(), &kernel)?;
    let mut buffer = [0_u8; 1024];
    for _ in 0..REPLIES {
        let (read, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
        match reply(&buffer[..read], sequence, ends) {
            Reply::Other => {}
            Reply::Found(found) => return Ok(Some(found)),
            Reply::Failed(Errno::NOENT) => return Ok(None),
            Reply::Failed(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// The request for one socket.
fn request(sequence: u32, ends: Ends) -> [u8; HEADER + REQUEST] {
    let mut message = [0; HEADER + REQUEST];
    let length = u32::try_from(message.len()).expect("it is short");
    put(&mut message, 0, &length.to_ne_bytes());
    put(&mut message, 4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&mut message, 6, &NLM_F_REQUEST.to_ne_bytes());
    put(&mut message, 8, &sequence.to_ne_bytes());
    let body = &mut message[HEADER..];
    body[0] = if ends.local.is_ipv4() { AF_INET } else { AF_INET6 };
    body[1] = IPPROTO_TCP;
    put(body, 4, &ALL_STATES.to_ne_bytes());
    put(body, 8, &identity(ends));
    // Any cookie.
    put(body, 48, &[0xff; 8]);
    message
}

/// `struct inet_diag_sockid` up to the interface.
fn identity(ends: Ends) -> [u8; 36] {
    let mut id = [0; 36];
    put(&mut id, 0, &ends.local.port().to_be_bytes());
    put(&mut id, 2, &ends.remote.port().to_be_bytes());
    for (at, ip) in [(4, ends.local.ip()), (20, ends.remote.ip())] {
        match ip {
            IpAddr::V4(ip) => put(&mut id, at, &ip.octets()),
            IpAddr::V6(ip) => put(&mut id, at, &ip.octets()),
        }
    }
    id
}

/// A parsed message of the kernel.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Found(Found),
    Failed(Errno),
    /// A reply to another request.
    Other,
}

fn reply(message: &[u8], sequence: u32, ends: Ends) -> Reply {
    let u16_at = |at| bytes_at(message, at).map(u16::from_ne_bytes);
    let u32_at = |at| bytes_at(message, at).map(u32::from_ne_bytes);
    if u32_at(8) != Some(sequence) {
        return Reply::Other;
    }
    match u16_at(4) {
        Some(NLMSG_ERROR) => {
            let code = bytes_at(message, HEADER).map(i32::from_ne_bytes).unwrap_or_default();
            Reply::Failed(Errno::from_raw_os_error(code.saturating_neg()))
        }
        Some(SOCK_DIAG_BY_FAMILY) if message.len() >= HEADER + REPLY => {
            let body = &message[HEADER..];
            let is_listening = body[1] == LISTEN;
            // A listener may be bound to a wildcard address.
            if !is_listening && ends_of(body) != Some(ends) {
                return Reply::Other;
            }
            let (uid, inode) = (u32_at(HEADER + 64), u32_at(HEADER + 68));
            let (Some(uid), Some(inode)) = (uid, inode) else { return Reply::Other };
            Reply::Found(Found { is_listening, uid, inode: inode.into() })
        }
        _ => Reply::Other,
    }
}

/// The addresses in a reply. An IPv6 socket may have IPv4 addresses.
fn ends_of(body: &[u8]) -> Option<Ends> {
    let end = |port: usize, ip: usize| {
        let port = u16::from_be_bytes(bytes_at(body, port)?);
        let ip: IpAddr = match *body.first()? {
            AF_INET => bytes_at::<4>(body, ip)?.into(),
            AF_INET6 => bytes_at::<16>(body, ip)?.into(),
            _ => return None,
        };
        Some(canonical(SocketAddr::new(ip, port)))
    };
    Some(Ends { local: end(4, 8)?, remote: end(6, 24)? })
}

/// Finds a socket in the text of `/proc/net/tcp` or `tcp6`.
fn find_in_table(table: &str, ends: Ends) -> Option<Found> {
    let any = SocketAddr::new(unspecified(ends.local.ip()), ends.local.port());
    let rows = table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (local, remote) = (table_addr(columns.next()?)?, table_addr(columns.next()?)?);
        let is_listening = u8::from_str_radix(columns.next()?, 16).ok()? == LISTEN;
        let mut columns = columns.skip(3);
        let uid = columns.next()?.parse().ok()?;
        let inode = columns.nth(1)?.parse().ok()?;
        Some((Ends { local, remote }, Found { is_listening, uid, inode }))
    });
    let listens = |row: &Ends| row.remote == ends.remote && (row.local == any);
    let mut fitting =
        rows.filter(|(row, found)| *row == ends || found.is_listening && listens(row));
    fitting.next().map(|(_, found)| found)
}

/// Parses an address of the table: 32-bit words in native byte order.
fn table_addr(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let mut octets = [0; 16];
            for (at, octets) in octets.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(at)?);
            }
            octets.into()
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Maps an IPv4-mapped IPv6 address to IPv4, by which both kinds of sockets are found.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

fn bytes_at<const N: usize>(of: &[u8], at: usize) -> Option<[u8; N]> {
    of.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

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

    fn sources(listener: SocketAddr) -> [SockDiag; 2] {
        let netlink = SockDiag::new(listener);
        assert!(matches!(netlink.source, Source::Netlink(_)), "this kernel has sock_diag");
        [netlink, SockDiag { source: Source::ProcOnly, sequence: 0 }]
    }

    #[test]
    fn the_owner_of_a_peer_and_of_a_listener_is_found() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let (listener, _client, server) = connected(at);
            let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
            for mut diag in sources(listener.local_addr().unwrap()) {
                assert_eq!(diag.peer(local, peer), Some(us()), "{at} {diag:?}");
                assert_eq!(diag.listener(local), Some(us()), "{at} {diag:?}");
                assert_eq!(diag.listener(peer), None, "nobody listens at {at} {diag:?}");
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
        for mut diag in sources(listener.local_addr().unwrap()) {
            // The client has an IPv4 socket, so it is in the IPv4 table.
            assert_eq!(diag.peer(server.local_addr().unwrap(), peer), Some(us()), "{diag:?}");
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
        for mut diag in sources(listener.local_addr().unwrap()) {
            assert_eq!(diag.peer(server.local_addr().unwrap(), peer), Some(us()), "{diag:?}");
        }
    }

    #[test]
    fn a_peer_that_has_closed_has_no_owner() {
        let (listener, client, server) = connected("127.0.0.1:0");
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        drop(client);
        for mut diag in sources(listener.local_addr().unwrap()) {
            assert_eq!(diag.peer(local, peer), None, "{diag:?}");
        }
    }

    /// If the peer is gone, the kernel returns a listener at its port.
    #[test]
    fn a_listener_at_the_port_of_a_peer_is_not_the_peer() {
        let (listener, client, server) = connected("127.0.0.1:0");
        let local = server.local_addr().unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        for mut diag in sources(listener.local_addr().unwrap()) {
            assert_eq!(diag.peer(local, other.local_addr().unwrap()), None, "{diag:?}");
        }
        drop(client);
    }

    proptest! {
        #[test]
        fn short_messages_are_rejected(
            message in prop::collection::vec(any::<u8>(), 0..200), sequence: u32,
        ) {
            let ends = Ends {
                local: "127.0.0.1:1".parse().unwrap(),
                remote: "127.0.0.1:2".parse().unwrap(),
            };
            if let Reply::Found(_) = reply(&message, sequence, ends) {
                prop_assert!(message.len() >= HEADER + REPLY);
            }
        }

        #[test]
        fn malformed_tables_are_tolerated(table in "[ 0-9A-F:\n]{0,300}") {
            let ends = Ends {
                local: "[::1]:1".parse().unwrap(),
                remote: "[::1]:2".parse().unwrap(),
            };
            find_in_table(&table, ends);
        }
    }
}
