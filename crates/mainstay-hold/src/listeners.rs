//! The TCP sockets that listen on this machine, and the processes that have them open.
//!
//! A socket is identified by its inode, which `/proc/PID/fd` names too.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::procfs;
use crate::sock_diag::{self, AF_INET, AF_INET6, Query, Reply, TcpSocket, is_shortage};

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
    /// None if the socket does not listen on this port.
    fn of(found: &TcpSocket, port: u16) -> Option<Self> {
        let TcpSocket { ends, is_listening, v6_only, uid, inode, .. } = *found;
        let ip = ends.local.ip();
        (is_listening && ends.local.port() == port).then_some(Self { ip, v6_only, inode, uid })
    }

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
        // A descriptor that was closed meanwhile is not one of its sockets.
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
    let all = dump_both(|family| Query::Listeners { family, port })?;
    Ok(all.iter().filter_map(|found| Listener::of(found, port)).collect())
}

/// Lists sockets of both families through netlink.
pub(crate) fn dump_both(query: impl Fn(u8) -> Query) -> io::Result<Vec<TcpSocket>> {
    let socket = sock_diag::open()?;
    let mut listed = Vec::new();
    let mut buffer = vec![0; BUFFER];
    for (sequence, family) in [(1, AF_INET), (2, AF_INET6)] {
        match dump_family(&socket, sequence, query(family), &mut buffer, &mut listed) {
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
    query: Query,
    buffer: &mut [u8],
    listed: &mut Vec<TcpSocket>,
) -> Result<(), Errno> {
    sock_diag::send(socket, sequence, query)?;
    loop {
        for reply in sock_diag::receive(socket, buffer, sequence)? {
            match reply {
                Reply::Found(found) => listed.push(found),
                Reply::Failed(error) => return Err(error),
                Reply::Done => return Ok(()),
            }
        }
    }
}

/// Lists the sockets from `/proc`, which does not show whether an IPv6 socket refuses IPv4.
fn tables(port: u16) -> io::Result<Vec<Listener>> {
    let all = sock_diag::in_proc()?;
    Ok(all.iter().filter_map(|found| Listener::of(found, port)).collect())
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
    fn a_dual_stack_socket_does_not_refuse_ipv4() {
        let both = TcpListener::bind("[::]:0").unwrap();
        let listed = dump(both.local_addr().unwrap().port()).unwrap();
        assert_eq!((ips(&listed), listed[0].v6_only), (vec!["::".to_owned()], false));
    }
}
