//! What is known of a connection that was lost and made again.

use std::time::Instant;

/// A connection to a server that was lost and made again while the server went on. The last lines that were written
/// before may have been lost with it, and so may answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// How many lines had been written whole to the server, since its start.
    pub written: u64,
    /// When the connection was lost.
    pub at: Instant,
}
