//! Connections that are made elsewhere.

use std::error::Error;
use std::pin::Pin;

use tokio::net::UnixStream;

pub trait Connector: Send + Sync {
    /// Makes a connection, or fails at once.
    fn connect(&self) -> Connecting<'_>;
}

/// A connection that is being made.
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = Result<UnixStream, ConnectError>> + Send + 'a>>;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There may be one soon.
    #[error("the daemon is not running")]
    Absent,
    #[error("the daemon is stopped")]
    Stopped,
    /// There will be none.
    #[error("{0}")]
    Final(Box<dyn Error + Send + Sync>),
}
