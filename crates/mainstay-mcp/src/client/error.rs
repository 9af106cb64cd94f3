//! Why a request has no answer, or an answer no end.

use std::io;
use std::net::SocketAddr;

use super::chunked::BadChunk;
use super::connector::ConnectError;
use super::head::HeadError;
use super::request::BadHeader;

#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("the request cannot be sent")]
    BadHeader(#[from] BadHeader),
    #[error("no address found for `{host}`")]
    Resolve {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot connect to {}", any_of(.tried))]
    Connect {
        /// The addresses, in the order in which they were tried.
        tried: Vec<SocketAddr>,
        /// The error of the system for the first one.
        #[source]
        source: io::Error,
    },
    #[error("no secure connection to `{name}`")]
    Tls {
        name: String,
        #[source]
        source: io::Error,
    },
    /// A new connection was gone before anything could be written to it.
    #[error("the server closed the connection before the request was sent")]
    Unsent(#[source] io::Error),
    /// Something of the request was written, and the connection ended before the answer's head did.
    #[error("the server closed the connection before it answered")]
    Cut(#[source] Option<io::Error>),
    /// Something of the request was written, and the response is not HTTP.
    #[error("the server answered with something else than HTTP")]
    Protocol(#[from] HeadError),
    #[error("no connection could be made")]
    NoConnection(#[source] ConnectError),
}

impl SendError {
    /// Whether the server may have seen the request: false only if not one byte of it can have
    /// reached it.
    pub fn sent(&self) -> bool {
        match self {
            Self::BadHeader(_)
            | Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::NoConnection(_)
            | Self::Unsent(_) => false,
            Self::Cut(_) | Self::Protocol(_) => true,
        }
    }
}

/// Why a body has no end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the server closed the connection in the middle of its answer")]
    Cut(#[source] Option<io::Error>),
    #[error("the answer is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("the server's answer is garbled")]
    Garbled(#[from] BadChunk),
}

fn any_of(addrs: &[SocketAddr]) -> String {
    let addrs: Vec<_> = addrs.iter().map(ToString::to_string).collect();
    addrs.join(" or ")
}
