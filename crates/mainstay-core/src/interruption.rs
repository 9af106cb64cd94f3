//! Interrupted connections to a server.

use std::time::Instant;

/// The loss and restoration of a connection to a server that kept running. The last lines that were written
/// before, and answers, may have been lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// The number of lines that were completely written since the start of the server.
    pub written: u64,
    /// When the connection was lost.
    pub at: Instant,
}
