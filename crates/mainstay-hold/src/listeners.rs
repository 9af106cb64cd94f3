//! The TCP sockets that listen on this machine, and the processes that have them open.
//!
//! The kernel lists listening sockets by port (netlink `sock_diag`). Where netlink is blocked, as in some
//! sandboxes, `/proc/net/tcp` has the same information. A socket is identified by its inode, which
//! `/proc/PID/fd` names too.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::procfs;
use crate::record::if_exists;

/// Lengths of `struct nlmsghdr`, of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const REPLY: usize = 72;

/// Message types and flags.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;

/// The attribute for IPv6 sockets that refuse IPv4.
const INET_DIAG_SKV6ONLY: u16 = 11;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// The state of a listening socket.
const LISTEN: u8 = 10;

/// Larger than any message of a dump.
const BUFFER: usize = 32 * 1024;

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The address that it is bound to, which may be a wildcard.
    pub ip: IpAddr,
    /// Whether it is an IPv6 socket that refuses IPv4.
    pub v6_only: bool,
    /// What identifies it.
    pub inode: u64,
    /// The user who created it.
    pub uid: u32,
}

impl Listener {
    /// Which of these sockets accept a connection to an address of this machine. There are several if they
    /// share the address (`SO_REUSEPORT`).
    ///
    /// As in the kernel, a specific address wins over a wildcard, and then an IPv4 socket over an IPv6 one.
    pub fn accepting(all: &[Self], to: IpAddr) -> Vec<&Self> {
        let rank = |listener: &Self| match (listener.ip, to) {
            (ip, to) if ip == to => Some(0),
            (IpAddr::V6(ip), IpAddr::V4(_)) if ip.to_ipv4_mapped().map(IpAddr::V4) == Some(to) => {
                Some(1)
            }
            (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(_)) => Some(2),
            (IpAddr::V6(ip), IpAddr::V6(_)) if ip.is_unspecified() => Some(2),
            (IpAddr::V6(ip), IpAddr::V4(_)) if ip.is_unspecified() && !listener.v6_only => Some(3),
            (IpAddr::V4(_) | IpAddr::V6(_), _) => None,
        };
        let best = all.iter().filter_map(rank).min();
        all.iter().filter(|listener| best.is_some() && rank(listener) == best).collect()
    }
}

/// The sockets that listen on a port, in our network namespace.
pub fn at_port(port: u16) -> io::Result<Vec<Listener>> {
    match dump(port) {
        Err(error) if !is_shortage(&error) => tables(port),
        listed => listed,
    }
}

/// The inodes of the sockets that a process has open. Fails for processes of other users.
pub fn sockets_of(pid: u32) -> io::Result<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor that was closed meanwhile is none of its sockets.
        let Ok(link) = fs::read_link(entry?.path()) else { continue };
        let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
        inodes.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
    }
    Ok(inodes)
}

/// The processes that have one of these sockets open, as far as this user can see.
///
/// Reads the descriptors of all processes, so async code should call it on a thread for blocking work.
pub fn owners(inodes: &BTreeSet<u64>) -> io::Result<Vec<u32>> {
    let owns = |pid: &u32| sockets_of(*pid).is_ok_and(|found| !found.is_disjoint(inodes));
    Ok(procfs::pids()?.filter(owns).collect())
}

/// Lists the sockets through netlink.
fn dump(port: u16) -> io::Result<Vec<Listener>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    let family = AddressFamily::NETLINK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, protocol)?;
    let mut listed = Vec::new();
    let mut buffer = vec![0; BUFFER];
    for (sequence, family) in [(1, AF_INET), (2, AF_INET6)] {
        match dump_family(&socket, sequence, family, port, &mut buffer, &mut listed) {
            // A machine without IPv6.
            Err(Errno::NOENT | Errno::AFNOSUPPORT) if family == AF_INET6 => {}
            dumped => dumped?,
        }
    }
    Ok(listed)
}

fn dump_family(
    socket: &OwnedFd,
    sequence: u32,
    family: u8,
    port: u16,
    buffer: &mut [u8],
    listed: &mut Vec<Listener>,
) -> Result<(), Errno> {
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, &request(sequence, family, port), SendFlags::empty(), &kernel)?;
    loop {
        // The kernel replies synchronously.
        let (read, _) = rustix::net::recv(socket, &mut *buffer, RecvFlags::empty())?;
        if read_dump(&buffer[..read], sequence, port, listed)? {
            return Ok(());
        }
    }
}

fn request(sequence: u32, family: u8, port: u16) -> [u8; HEADER + REQUEST] {
    let mut message = [0; HEADER + REQUEST];
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &u32::try_from(HEADER + REQUEST).expect("it is short").to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST_DUMP.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    put(HEADER, &[family, IPPROTO_TCP]);
    put(HEADER + 4, &(1_u32 << LISTEN).to_ne_bytes());
    put(HEADER + 8, &port.to_be_bytes());
    message
}

/// Reads one packet of a dump. Returns whether the dump is complete.
fn read_dump(
    mut packet: &[u8],
    sequence: u32,
    port: u16,
    listed: &mut Vec<Listener>,
) -> Result<bool, Errno> {
    while packet.len() >= HEADER {
        let length = bytes_at(packet, 0).map(u32::from_ne_bytes).unwrap_or_default();
        let length = usize::try_from(length).unwrap_or_default();
        let Some(message) = packet.get(..length).filter(|message| message.len() >= HEADER) else {
            return Err(Errno::BADMSG);
        };
        let is_reply = bytes_at(message, 8).map(u32::from_ne_bytes) == Some(sequence);
        match bytes_at(message, 4).map(u16::from_ne_bytes) {
            _ if !is_reply => {}
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let code = bytes_at(message, HEADER).map(i32::from_ne_bytes).unwrap_or_default();
                return Err(Errno::from_raw_os_error(code.saturating_neg().max(1)));
            }
            Some(SOCK_DIAG_BY_FAMILY) => listed.extend(listener(&message[HEADER..], port)),
            _ => {}
        }
        // Messages are aligned to 4 bytes.
        packet = packet.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Parses `struct inet_diag_msg` and its attributes.
fn listener(body: &[u8], port: u16) -> Option<Listener> {
    let ip: IpAddr = match *body.first()? {
        AF_INET => bytes_at::<4>(body, 8)?.into(),
        AF_INET6 => bytes_at::<16>(body, 8)?.into(),
        _ => return None,
    };
    let listens = body.get(1) == Some(&LISTEN) && u16::from_be_bytes(bytes_at(body, 4)?) == port;
    let uid = u32::from_ne_bytes(bytes_at(body, 64)?);
    let inode = u32::from_ne_bytes(bytes_at(body, 68)?).into();
    let v6_only = attribute(body.get(REPLY..)?, INET_DIAG_SKV6ONLY) == Some(1);
    listens.then_some(Listener { ip, v6_only, inode, uid })
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

/// Lists the sockets from `/proc`, which does not show whether an IPv6 socket refuses IPv4.
fn tables(port: u16) -> io::Result<Vec<Listener>> {
    let mut listed = in_table(&fs::read_to_string("/proc/net/tcp")?, port);
    // It does not exist on a machine without IPv6.
    if let Some(table) = if_exists(fs::read_to_string("/proc/net/tcp6"))? {
        listed.extend(in_table(&table, port));
    }
    Ok(listed)
}

fn in_table(table: &str, port: u16) -> Vec<Listener> {
    let rows = table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let local = columns.next().and_then(table_addr)?;
        let is_listening = u8::from_str_radix(columns.nth(1)?, 16).ok()? == LISTEN;
        let mut columns = columns.skip(3);
        let uid = columns.next()?.parse().ok()?;
        let inode = columns.nth(1)?.parse().ok()?;
        let listener = Listener { ip: local.ip(), v6_only: false, inode, uid };
        (is_listening && local.port() == port).then_some(listener)
    });
    rows.collect()
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
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    shortages.map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn ips(listed: &[Listener]) -> Vec<String> {
        listed.iter().map(|listener| listener.ip.to_string()).collect()
    }

    #[test]
    fn listeners_are_found_with_their_inode_and_owner() {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let second = TcpListener::bind(("::1", port)).unwrap();
        let us = rustix::process::geteuid().as_raw();
        for listed in [dump(port).expect("this kernel has sock_diag"), tables(port).unwrap()] {
            assert_eq!(ips(&listed), ["127.0.0.1", "::1"]);
            assert!(listed.iter().all(|listener| listener.uid == us), "{listed:?}");
            let ours = sockets_of(std::process::id()).unwrap();
            let inodes: BTreeSet<u64> = listed.iter().map(|listener| listener.inode).collect();
            assert!(inodes.is_subset(&ours), "{listed:?} {ours:?}");
            assert!(owners(&inodes).unwrap().contains(&std::process::id()));
        }
        drop((first, second));
        assert_eq!(at_port(port).unwrap(), []);
    }

    #[test]
    fn a_connection_is_not_listed_as_a_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = client.local_addr().unwrap().port();
        assert_eq!((dump(port).unwrap(), tables(port).unwrap()), (Vec::new(), Vec::new()));
    }

    /// Checks which of the sockets at these addresses, the `v6only` ones marked with `!`, accept.
    fn check(bound: &[&str], to: &str, expected: &[&str]) {
        let listener = |(at, ip): (usize, &&str)| Listener {
            ip: ip.trim_end_matches('!').parse().unwrap(),
            v6_only: ip.ends_with('!'),
            inode: at as u64,
            uid: 0,
        };
        let all: Vec<Listener> = bound.iter().enumerate().map(listener).collect();
        let accepting = Listener::accepting(&all, to.parse().unwrap());
        let accepting: Vec<Listener> = accepting.into_iter().copied().collect();
        assert_eq!(ips(&accepting), expected, "{bound:?} {to}");
    }

    #[test]
    fn the_most_specific_socket_accepts() {
        let (v4, v6) = ("127.0.0.1", "::1");
        check(&[], v4, &[]);
        check(&["192.168.0.1", "127.0.0.2"], v4, &[]);
        check(&["0.0.0.0", v4], v4, &[v4]);
        check(&["0.0.0.0"], v4, &["0.0.0.0"]);
        check(&["0.0.0.0"], v6, &[]);
        check(&["::"], v4, &["::"]);
        check(&["::", v6], v6, &[v6]);
        check(&["::!"], v4, &[]);
        check(&["::!"], v6, &["::"]);
        check(&["::", "0.0.0.0"], v4, &["0.0.0.0"]);
        check(&["::", "0.0.0.0"], v6, &["::"]);
        check(&["::ffff:127.0.0.1", "0.0.0.0"], v4, &["::ffff:127.0.0.1"]);
        check(&[v6, v4], v4, &[v4]);
        check(&[v4, v4], v4, &[v4, v4]);
    }

    #[test]
    fn ipv6_only_sockets_are_distinguished_from_dual_stack_ones() {
        let both = TcpListener::bind("[::]:0").unwrap();
        let port = both.local_addr().unwrap().port();
        let listed = dump(port).unwrap();
        assert_eq!((ips(&listed), listed[0].v6_only), (vec!["::".to_owned()], false));
        let body = |only: u8| {
            let mut body = vec![0; REPLY];
            (body[0], body[1]) = (AF_INET6, LISTEN);
            body[4..6].copy_from_slice(&80_u16.to_be_bytes());
            for attribute in [[1_u8, 0], [11, only]] {
                body.extend(5_u16.to_ne_bytes());
                body.extend(u16::from(attribute[0]).to_ne_bytes());
                body.extend([attribute[1], 0, 0, 0]);
            }
            body
        };
        assert_eq!(listener(&body(1), 80).map(|found| found.v6_only), Some(true));
        assert_eq!(listener(&body(0), 80).map(|found| found.v6_only), Some(false));
        assert_eq!(listener(&body(0), 81), None);
    }

    #[test]
    fn truncated_replies_are_errors_or_empty() {
        let mut message = vec![0; HEADER];
        message[..4].copy_from_slice(&100_u32.to_ne_bytes());
        assert_eq!(read_dump(&message, 0, 1, &mut Vec::new()), Err(Errno::BADMSG));
        for length in 0..REPLY {
            assert_eq!(listener(&vec![AF_INET; length], 1), None);
        }
        assert_eq!(in_table("x\n 0: 0100007F:1F40", 8000), []);
    }
}
