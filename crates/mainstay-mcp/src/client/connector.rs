//! Connections that are made elsewhere.

use std::error::Error;
use std::pin::Pin;

use tokio::net::UnixStream;

/// Makes connections.
pub trait Connector: Send + Sync {
    /// Makes a connection, or fails at once.
    fn connect(&self) -> Connecting<'_>;
}

/// A connection that is being made.
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = Result<UnixStream, ConnectError>> + Send + 'a>>;

/// Why no connection was made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There may be one soon.
    #[error("the daemon is not running")]
    Absent,
    /// The user has stopped the daemon.
    #[error("the daemon is stopped")]
    Stopped,
    /// There will be none.
    #[error("{0}")]
    Final(Box<dyn Error + Send + Sync>),
}
