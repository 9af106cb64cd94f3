//! What is kept of sessions beyond the life of a daemon, and who keeps it.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;

/// A client's session, as far as a later daemon needs it to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Our id for it.
    pub id: String,
    /// The server that it is with.
    pub server: String,
    /// The parameters of its `initialize`, as the client wrote them.
    pub params: Bytes,
    /// The protocol version agreed with the client.
    pub version: String,
    /// Whether the client has said `initialized`.
    pub initialized: bool,
    /// The log level that it has set, if any.
    pub level: Option<String>,
    /// The resources that it has subscribed to.
    pub subscriptions: Vec<String>,
    /// When it was opened.
    pub created_at: SystemTime,
    /// When it was last used.
    pub used_at: SystemTime,
}

/// Keeps sessions and copies. No call waits for a disk, so all may be made from the hot path and
/// under a lock. What is said later counts; what was said shortly before a crash may be lost.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// Keeps a session, instead of what was kept of it before.
    fn save(&self, record: SessionRecord);

    /// Notes when sessions were last used. Unknown ones are passed over.
    fn touched(&self, used: Vec<(String, SystemTime)>);

    /// Forgets a session.
    fn remove(&self, id: &str);

    /// Keeps what is known of a server, instead of what was kept before. The content is the
    /// proxy's own affair.
    fn save_copy(&self, server: &str, copy: Vec<u8>);

    /// Forgets a server's copy and all its sessions.
    fn remove_server(&self, server: &str);
}
