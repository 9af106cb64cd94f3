//! How the kernel describes TCP sockets: netlink `sock_diag`, and `/proc/net/tcp` for where netlink is blocked, as in some
//! sandboxes. Both show the sockets of this network namespace.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::record::if_exists;

/// Lengths of `struct nlmsghdr`, of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const REPLY: usize = 72;

/// Message types and flags.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_REQUEST_DUMP: u16 = 0x301;

/// The attribute for IPv6 sockets that refuse IPv4.
const INET_DIAG_SKV6ONLY: u16 = 11;

pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// The state of an open connection, of one that the other end has closed, and of a listening socket.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

/// A TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub(crate) ends: Ends,
    pub(crate) is_listening: bool,
    /// Whether it is an IPv6 socket that refuses IPv4. Not known from `/proc`.
    pub(crate) v6_only: bool,
    pub(crate) uid: u32,
    /// 0 if no process has the socket open; the uid is meaningless then.
    pub(crate) inode: u64,
    /// The bytes that were received and not read; of a listener, the connections that wait to be accepted.
    pub(crate) unread: u32,
}

/// The two addresses of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// What the kernel is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Query {
    /// The socket with these addresses, or the one that listens at the local address.
    Socket(Ends),
    /// All sockets of a family that listen on a port.
    Listeners { family: u8, port: u16 },
    /// All connections of a family that were made to a port of this machine and are not closed at both ends.
    Connections { family: u8, port: u16 },
}

/// A message of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Found(TcpSocket),
    Failed(Errno),
    /// The end of a list.
    Done,
}

pub(crate) fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?)
}

/// Asks the kernel, which replies synchronously.
pub(crate) fn send(socket: &OwnedFd, sequence: u32, query: Query) -> Result<(), Errno> {
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, &request(sequence, query), SendFlags::empty(), &kernel).map(drop)
}

/// Reads a packet: the replies to the request with this number.
pub(crate) fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    sequence: u32,
) -> Result<Vec<Reply>, Errno> {
    let (read, _) = rustix::net::recv(socket, &mut *buffer, RecvFlags::empty())?;
    replies(&buffer[..read], sequence)
}

fn request(sequence: u32, query: Query) -> [u8; HEADER + REQUEST] {
    let mut message = [0; HEADER + REQUEST];
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    let (flags, family, states) = match query {
        Query::Socket(Ends { local, .. }) => {
            (NLM_F_REQUEST, if local.is_ipv4() { AF_INET } else { AF_INET6 }, u32::MAX)
        }
        Query::Listeners { family, .. } => (NLM_F_REQUEST_DUMP, family, 1 << LISTEN),
        Query::Connections { family, .. } => {
            (NLM_F_REQUEST_DUMP, family, 1 << ESTABLISHED | 1 << CLOSE_WAIT)
        }
    };
    put(0, &u32::try_from(HEADER + REQUEST).expect("it is short").to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &flags.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    put(HEADER, &[family, IPPROTO_TCP]);
    put(HEADER + 4, &states.to_ne_bytes());
    // `struct inet_diag_sockid`
    match query {
        Query::Socket(Ends { local, remote }) => {
            for (port, ip, end) in [(8, 12, local), (10, 28, remote)] {
                put(HEADER + port, &end.port().to_be_bytes());
                match end.ip() {
                    IpAddr::V4(addr) => put(HEADER + ip, &addr.octets()),
                    IpAddr::V6(addr) => put(HEADER + ip, &addr.octets()),
                }
            }
            // Any cookie.
            put(HEADER + 48, &[0xff; 8]);
        }
        Query::Listeners { port, .. } | Query::Connections { port, .. } => {
            put(HEADER + 8, &port.to_be_bytes());
        }
    }
    message
}

fn replies(mut packet: &[u8], sequence: u32) -> Result<Vec<Reply>, Errno> {
    let mut replies = Vec::new();
    while packet.len() >= HEADER {
        let length = bytes_at(packet, 0).map(u32::from_ne_bytes).unwrap_or_default();
        let length = usize::try_from(length).unwrap_or_default();
        let Some(message) = packet.get(..length).filter(|message| message.len() >= HEADER) else {
            return Err(Errno::BADMSG);
        };
        let is_reply = bytes_at(message, 8).map(u32::from_ne_bytes) == Some(sequence);
        match bytes_at(message, 4).map(u16::from_ne_bytes) {
            _ if !is_reply => {}
            Some(NLMSG_DONE) => replies.push(Reply::Done),
            Some(NLMSG_ERROR) => {
                let code = bytes_at(message, HEADER).map(i32::from_ne_bytes).unwrap_or_default();
                let error = Errno::from_raw_os_error(code.saturating_neg().max(1));
                replies.push(Reply::Failed(error));
            }
            Some(SOCK_DIAG_BY_FAMILY) => {
                replies.extend(tcp_socket(&message[HEADER..]).map(Reply::Found));
            }
            _ => {}
        }
        // Messages are aligned to 4 bytes.
        packet = packet.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(replies)
}

/// Parses `struct inet_diag_msg` and its attributes.
fn tcp_socket(body: &[u8]) -> Option<TcpSocket> {
    let end = |port: usize, ip: usize| {
        let port = u16::from_be_bytes(bytes_at(body, port)?);
        let ip: IpAddr = match *body.first()? {
            AF_INET => bytes_at::<4>(body, ip)?.into(),
            AF_INET6 => bytes_at::<16>(body, ip)?.into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    };
    Some(TcpSocket {
        ends: Ends { local: end(4, 8)?, remote: end(6, 24)? },
        is_listening: *body.get(1)? == LISTEN,
        v6_only: attribute(body.get(REPLY..)?, INET_DIAG_SKV6ONLY) == Some(1),
        uid: u32::from_ne_bytes(bytes_at(body, 64)?),
        inode: u32::from_ne_bytes(bytes_at(body, 68)?).into(),
        unread: u32::from_ne_bytes(bytes_at(body, 56)?),
    })
}

/// The first byte of an attribute.
fn attribute(mut all: &[u8], wanted: u16) -> Option<u8> {
    loop {
        let length = usize::from(u16::from_ne_bytes(bytes_at(all, 0)?));
        if u16::from_ne_bytes(bytes_at(all, 2)?) == wanted {
            return all.get(4).copied().filter(|_| length > 4);
        }
        all = all.get(length.max(4).next_multiple_of(4)..)?;
    }
}

/// All TCP sockets, from `/proc`.
pub(crate) fn in_proc() -> io::Result<Vec<TcpSocket>> {
    in_tables("/proc/net")
}

/// All TCP sockets in the network namespace of a process.
pub(crate) fn in_namespace_of(pid: u32) -> io::Result<Vec<TcpSocket>> {
    in_tables(&format!("/proc/{pid}/net"))
}

fn in_tables(dir: &str) -> io::Result<Vec<TcpSocket>> {
    let mut found: Vec<_> = rows(&fs::read_to_string(format!("{dir}/tcp"))?).collect();
    // It does not exist on a machine without IPv6.
    if let Some(table) = if_exists(fs::read_to_string(format!("{dir}/tcp6")))? {
        found.extend(rows(&table));
    }
    Ok(found)
}

fn rows(table: &str) -> impl Iterator<Item = TcpSocket> {
    table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let ends =
            Ends { local: table_addr(columns.next()?)?, remote: table_addr(columns.next()?)? };
        let is_listening = u8::from_str_radix(columns.next()?, 16).ok()? == LISTEN;
        let (_, unread) = columns.next()?.split_once(':')?;
        let unread = u32::from_str_radix(unread, 16).ok()?;
        let mut columns = columns.skip(2);
        let uid = columns.next()?.parse().ok()?;
        let inode = columns.nth(1)?.parse().ok()?;
        Some(TcpSocket { ends, is_listening, v6_only: false, uid, inode, unread })
    })
}

/// Parses an address of the table: 32-bit words in native byte order.
fn table_addr(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut octets = [0; 16];
    for (at, octets) in octets.chunks_exact_mut(4).enumerate().take(ip.len() / 8) {
        let word = u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?;
        octets.copy_from_slice(&word.to_ne_bytes());
    }
    let ip: IpAddr = match ip.len() {
        8 => bytes_at::<4>(&octets, 0)?.into(),
        32 => octets.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn bytes_at<const N: usize>(of: &[u8], at: usize) -> Option<[u8; N]> {
    of.get(at..at + N)?.try_into().ok()
}

/// Whether it may work in a moment.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    shortages.map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ipv6_only_sockets_are_distinguished_from_dual_stack_ones() {
        let v6_only = |only: u8| {
            let mut body = vec![0; REPLY];
            (body[0], body[1]) = (AF_INET6, LISTEN);
            for attribute in [[1_u8, 0], [11, only]] {
                body.extend(5_u16.to_ne_bytes());
                body.extend(u16::from(attribute[0]).to_ne_bytes());
                body.extend([attribute[1], 0, 0, 0]);
            }
            tcp_socket(&body).map(|found| found.v6_only)
        };
        assert_eq!((v6_only(0), v6_only(1)), (Some(false), Some(true)));
    }

    #[test]
    fn truncated_replies_are_errors_or_empty() {
        let mut message = vec![0; HEADER];
        message[..4].copy_from_slice(&100_u32.to_ne_bytes());
        assert_eq!(replies(&message, 0), Err(Errno::BADMSG));
        for length in 0..REPLY {
            assert_eq!(tcp_socket(&vec![AF_INET; length]), None);
        }
        assert_eq!(rows("x\n 0: 0100007F:1F40").count(), 0);
    }

    proptest! {
        #[test]
        fn malformed_messages_and_tables_are_tolerated(
            message in prop::collection::vec(any::<u8>(), 0..200),
            table in "[ 0-9A-F:\n]{0,300}",
        ) {
            let sequence = bytes_at(&message, 8).map_or(0, u32::from_ne_bytes);
            drop(replies(&message, sequence));
            rows(&table).count();
        }
    }
}
