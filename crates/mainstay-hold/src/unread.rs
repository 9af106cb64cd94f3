//! What servers have not read of their connections: evidence about a server that does not answer.
//!
//! The kernel counts the bytes that a socket has received and no process has read. A connection that was not accepted yet has
//! such a count, too.

use std::io;

use crate::listeners;
use crate::sock_diag::{self, Query, TcpSocket, is_shortage};

/// The end of a connection that a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadConnection {
    /// The port at the other end.
    pub peer: u16,
    /// How many bytes are unread.
    pub bytes: u32,
}

impl UnreadConnection {
    /// None if everything is read, or this is not a connection to that port.
    fn of(found: &TcpSocket, port: u16) -> Option<Self> {
        let TcpSocket { ends, is_listening, unread, .. } = *found;
        let is_meant = !is_listening && ends.local.port() == port && unread > 0;
        is_meant.then_some(Self { peer: ends.remote.port(), bytes: unread })
    }
}

/// The connections to a port of this machine on which something is unread, in our network namespace.
pub fn at_port(port: u16) -> io::Result<Vec<UnreadConnection>> {
    let all = match listeners::dump_both(|family| Query::Connections { family, port }) {
        Err(error) if !is_shortage(&error) => sock_diag::in_proc()?,
        listed => listed?,
    };
    Ok(unread(&all, port))
}

/// The same in the network namespace of a process.
pub fn at_port_of(pid: u32, port: u16) -> io::Result<Vec<UnreadConnection>> {
    Ok(unread(&sock_diag::in_namespace_of(pid)?, port))
}

fn unread(all: &[TcpSocket], port: u16) -> Vec<UnreadConnection> {
    all.iter().filter_map(|found| UnreadConnection::of(found, port)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn all(port: u16) -> [Vec<UnreadConnection>; 2] {
        [at_port(port).unwrap(), at_port_of(std::process::id(), port).unwrap()]
    }

    fn check(address: &str) {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = TcpStream::connect(("localhost", port)).unwrap();
        let peer = client.local_addr().unwrap().port();
        assert_eq!(all(port), [[], []], "nothing was sent");
        client.write_all(b"hello").unwrap();
        let unread = |bytes| vec![UnreadConnection { peer, bytes }];
        assert_eq!(all(port), [unread(5), unread(5)], "it is not accepted");
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(all(port), [unread(5), unread(5)]);
        server.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(all(port), [unread(2), unread(2)]);
        server.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(all(port), [[], []]);
        // What the server has not sent is nothing that it has not read.
        server.write_all(b"answer").unwrap();
        assert_eq!(all(port), [[], []]);
    }

    #[test]
    fn unread_bytes_are_counted_whether_a_connection_is_accepted_or_not() {
        check("127.0.0.1:0");
        check("[::]:0");
    }
}
