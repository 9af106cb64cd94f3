//! Where the daemon listens for MCP clients.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// A loopback address and a port; port 0 means any free one. Only programs on this machine reach it,
/// because whoever does may use every server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddr(SocketAddr);

/// Why a text is no [`ListenAddr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// It cannot be read as one.
    #[error("`{0}` is no address with a port")]
    Malformed(String),
    /// Other machines could reach it.
    #[error("`{0}` may be reached by other machines")]
    Public(SocketAddr),
}

impl ListenError {
    /// What the user can do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "write it as 127.0.0.1:7433 or [::1]:7433",
            Self::Public(_) => {
                "listen on a loopback address such as 127.0.0.1:7433; for other machines, put a \
                 reverse proxy that checks who they are in front of it"
            }
        }
    }
}

impl ListenAddr {
    /// The address as the system takes it.
    pub fn socket_addr(self) -> SocketAddr {
        self.0
    }
}

/// 127.0.0.1:7433
impl Default for ListenAddr {
    fn default() -> Self {
        Self((Ipv4Addr::LOCALHOST, 7433).into())
    }
}

impl FromStr for ListenAddr {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let addr: SocketAddr = text.parse().map_err(|_| ListenError::Malformed(text.to_owned()))?;
        if addr.ip().is_loopback() { Ok(Self(addr)) } else { Err(ListenError::Public(addr)) }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_can_reach_it() {
        assert_eq!(ListenAddr::default().to_string(), "127.0.0.1:7433");
        for good in ["127.0.0.1:0", "127.8.8.8:80", "[::1]:7433"] {
            assert_eq!(good.parse::<ListenAddr>().unwrap().to_string(), good);
        }
        for public in ["0.0.0.0:7433", "192.168.1.2:7433", "[::]:7433", "[::ffff:10.0.0.1]:1"] {
            let expected = Err(ListenError::Public(public.parse().unwrap()));
            assert_eq!(public.parse::<ListenAddr>(), expected);
        }
        for none in ["", "7433", "127.0.0.1", "localhost:7433", "127.0.0.1:70000"] {
            let expected = Err(ListenError::Malformed(none.to_owned()));
            assert_eq!(none.parse::<ListenAddr>(), expected);
        }
    }
}
