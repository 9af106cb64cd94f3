//! What is kept of sessions beyond the life of a daemon, and the interface for storing it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::late_results::Abandoned;

/// A client's session, as far as a later daemon needs it to continue.
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
    /// Whether the client has sent `initialized`, or a request after `initialize`.
    pub initialized: bool,
    /// The log level that it has set, if any.
    pub level: Option<String>,
    /// The resources that it has subscribed to.
    pub subscriptions: Vec<String>,
    /// The newest run of the server that it has met, if it has met one.
    pub run: Option<u64>,
    /// Its own session with a run that speaks HTTP, if it has one.
    pub upstream: Option<UpstreamRecord>,
    /// When its client was last present, by the [session clock](crate::SessionClock).
    pub used_at: Duration,
}

/// A session with a run that speaks HTTP, which lasts as long as the run does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamRecord {
    /// The run.
    pub run: u64,
    /// The server's id for it, if it gave one.
    pub id: Option<String>,
    /// The protocol version agreed with the server.
    pub version: String,
}

/// One stream of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The id of the session.
    pub session: Arc<str>,
    /// The number of the stream in it.
    pub number: u64,
}

/// Where a request is being worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The run that has it.
    pub generation: u64,
    /// The id that it bears there, if the run speaks over lines: its answer can still come, also to
    /// another daemon.
    pub line: Option<u64>,
}

/// A change of a stream, as it is journaled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamChange {
    /// It is the stream of this request, as its client wrote it. Without this it is the general
    /// stream of its session.
    Begun(Bytes),
    /// The same, of a request that was sent before: where it was sent last, and how often.
    BegunSent(Bytes, Sent, u32),
    /// The request is about to be sent to a run, or was.
    Sent(Sent),
    /// A message was added.
    Message(u64, Bytes),
    /// The answer was added, and ends the stream.
    Answered(u64, Bytes),
    /// The client has given the request up, and its result may be kept.
    Abandoned(Abandoned),
    /// The stream is not needed.
    Over,
}

/// A stream that a later daemon recovers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRecord {
    /// Which one.
    pub key: StreamKey,
    /// The request that it belongs to; none for the general stream of its session.
    pub request: Option<Bytes>,
    /// Where the request was sent last.
    pub sent: Option<Sent>,
    /// How often it was sent.
    pub attempts: u32,
    /// The newest messages with their numbers, oldest first.
    pub messages: Vec<(u64, Bytes)>,
    /// The answer with its number.
    pub answer: Option<(u64, Bytes)>,
    /// Whether its client has given the request up.
    pub abandoned: Option<Abandoned>,
}

/// Keeps sessions and copies. No call waits for a disk, so all may be made from the hot path and
/// under a lock. The last write wins; writes shortly before a crash may be lost.
pub trait StateStore: fmt::Debug + Send + Sync {
    /// Keeps a session, instead of what was kept of it before.
    fn save(&self, record: SessionRecord);

    /// Saves the session clock, and when sessions were last used. Unknown sessions are ignored.
    fn touched(&self, now: Duration, used: Vec<(String, Duration)>);

    /// Saves the record of a session that is about to leave memory, and discards its streams. Returns false
    /// if that fails; the session must then stay in memory.
    fn move_to_disk(&self, record: SessionRecord) -> bool;

    /// Forgets a session, and all its streams.
    fn remove(&self, id: &str);

    /// Keeps what is known of a server, instead of what was kept before. The content is
    /// opaque to the store.
    fn save_copy(&self, server: &str, copy: Vec<u8>);

    /// Forgets a server's copy and all its sessions, with their streams.
    fn remove_server(&self, server: &str);

    /// Records a change of a stream. Unlike all else, it outlives this process when this returns, though not the
    /// machine, unless the disk is stalled. It costs a write, so it is for requests that take long, and for what
    /// servers say unasked.
    ///
    /// False for [`StreamChange::Sent`] if the disk is stalled and may say that the request was not sent: it must not be
    /// sent now.
    fn append_to_journal(&self, stream: &StreamKey, change: StreamChange) -> bool;
}
