//! Where the daemon listens for MCP clients.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The addresses of a daemon. Local clients use the first, a loopback address. At an address that other
/// machines can reach, requests need a token. Port 0 means any free port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listen {
    /// The loopback address; `None` lets Mainstay choose the port.
    pub first: Option<SocketAddr>,
    /// Further addresses.
    pub more: Vec<SocketAddr>,
}

/// Why a list of addresses is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// One of them is not an address with a port.
    #[error("`{0}` is not an address with a port")]
    Malformed(String),
    /// The first could be reached by other machines.
    #[error("`{0}` may be reached by other machines")]
    Public(SocketAddr),
    /// Two of them cannot be used together.
    #[error("`{0}` and `{1}` cannot be used together")]
    Overlapping(SocketAddr, SocketAddr),
    /// The list is empty.
    #[error("no address is given")]
    None,
}

impl ListenError {
    /// What the user can do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "write it as 127.0.0.1:7433 or [::1]:7433",
            Self::Public(_) => {
                "put a loopback address such as 127.0.0.1:7433 first; further addresses may be \
                 public, and requests there need a token (`mainstay token create`)"
            }
            Self::Overlapping(..) => {
                "one of them includes the other; use another port, or the address of one interface"
            }
            Self::None => "give a loopback address such as 127.0.0.1:7433",
        }
    }
}

impl Listen {
    /// The default address.
    pub const DEFAULT: SocketAddr =
        SocketAddr::V4(std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7433));

    /// Reads addresses, the first of which must be a loopback address.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, ListenError> {
        let parse = |text: &str| {
            let text = text.trim();
            text.parse().map_err(|_| ListenError::Malformed(text.to_owned()))
        };
        let mut addrs = texts.into_iter().map(parse).collect::<Result<Vec<SocketAddr>, _>>()?;
        let first = *addrs.first().ok_or(ListenError::None)?;
        if !first.ip().is_loopback() {
            return Err(ListenError::Public(first));
        }
        if let Some((one, other)) = overlapping(&addrs) {
            return Err(ListenError::Overlapping(one, other));
        }
        addrs.remove(0);
        Ok(Self { first: Some(first), more: addrs })
    }
}

/// Two addresses that are equal, or one of which is the wildcard address.
fn overlapping(addrs: &[SocketAddr]) -> Option<(SocketAddr, SocketAddr)> {
    let overlap = |one: &SocketAddr, other: &SocketAddr| {
        let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
        // Port 0 never collides.
        one.port() == other.port()
            && one.port() != 0
            && (a == b || a.is_unspecified() || b.is_unspecified())
    };
    let pairs = addrs
        .iter()
        .enumerate()
        .flat_map(|(at, one)| addrs[at + 1..].iter().map(move |other| (*one, *other)));
    pairs.into_iter().find(|(one, other)| overlap(one, other))
}

/// Comma-separated addresses.
impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        Self::parse(text.split(','))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.unwrap_or(Self::DEFAULT).fmt(f)?;
        self.more.iter().try_for_each(|addr| write!(f, ", {addr}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_is_a_loopback_address() {
        assert_eq!(Listen::default().to_string(), "127.0.0.1:7433");
        for good in ["127.0.0.1:0", "127.8.8.8:80", "[::1]:7433", "[::1]:1, 172.17.0.1:1, [::]:2"] {
            assert_eq!(good.parse::<Listen>().unwrap().to_string(), good);
        }
        for public in ["0.0.0.0:7433", "192.168.1.2:7433", "[::]:7433", "[::ffff:10.0.0.1]:1"] {
            let expected = Err(ListenError::Public(public.parse().unwrap()));
            assert_eq!(public.parse::<Listen>(), expected);
            assert_eq!(format!("{public},127.0.0.1:1").parse::<Listen>(), expected);
        }
        for both in ["127.0.0.1:1,0.0.0.0:1", "127.0.0.1:1,[::]:1", "127.0.0.1:1,127.0.0.1:1"] {
            let error = both.parse::<Listen>().unwrap_err();
            assert!(matches!(error, ListenError::Overlapping(..)), "{both}: {error}");
        }
        for none in ["", "7433", "127.0.0.1", "localhost:7433", "127.0.0.1:70000"] {
            let expected = Err(ListenError::Malformed(none.to_owned()));
            assert_eq!(none.parse::<Listen>(), expected);
        }
        assert_eq!(Listen::parse([]), Err(ListenError::None));
    }
}
