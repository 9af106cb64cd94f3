//! Where a listener listens.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The address of a listener as the daemon asked for it. It names the listener: port 0 stays the port
/// that was found the first time, for every daemon that asks again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A unix socket that only our user may connect to.
    Unix {
        /// Its directory, of any length.
        dir: PathBuf,
        /// Its name there.
        name: String,
    },
}
