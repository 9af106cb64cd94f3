//! The client-facing half: streamable HTTP ([`http`]).
//!
//! A front speaks a transport and knows nothing of servers; the core behind it ([`Core`]) knows
//! nothing of transports. They meet in messages ([`Parsed`], scanned once) and in the streams that
//! the core answers into. A front guarantees that
//!
//! - a request is given to the core once, and its stream is read by at most one connection;
//! - a request is given up (its future dropped, its stream closed) as soon as its client can no
//!   longer get the answer, and not before;
//! - what is wrong with a message is answered without asking the core.

mod batch;
pub mod http;
pub(crate) mod resumable;
pub(crate) mod run;
mod version;

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use crate::frame::Parsed;
use crate::intake_gate::IntakeGate;
use crate::stream::{Stream, Streams};

pub use self::resumable::DURABLE;
pub use self::version::{ProtocolVersion, UnknownVersion};

/// The sessions of all servers.
pub trait Core: Send + Sync + 'static {
    /// A handle to one session.
    type Session: Session;

    /// Where requests come in. A front takes none while it is closed, but for those that are in it.
    fn intake_gate(&self) -> &Arc<IntakeGate>;

    /// Begins a session for a client that sent `initialize`. Its id is known at once, so that the
    /// head of the response can carry it before the answer is known.
    fn open(&self, server: &str) -> Result<Self::Session, OpenError>;

    /// Begins a session under an id that an earlier daemon gave to a client, whose `initialize` it did not answer.
    fn open_as(&self, server: &str, id: &str) -> Result<Self::Session, OpenError>;

    /// Finds a session in memory.
    fn session(&self, server: &str, id: &str) -> Result<Self::Session, Lookup>;

    /// Loads a session that was moved to disk. One whose record was lost is created again for a client of the version
    /// `if_lost`; without a version it is not found.
    fn load_from_disk(
        &self,
        server: &str,
        id: &str,
        if_lost: Option<ProtocolVersion>,
    ) -> impl Future<Output = Result<Self::Session, Lookup>> + Send;

    /// Ends a session at its client's wish.
    fn close(&self, server: &str, id: &str) -> Result<(), Lookup>;
}

/// The work on a request; see [`Session::request`].
pub type Answering = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One session of a client with a server.
pub trait Session: Clone + Send + Sync + 'static {
    /// The name of its server.
    fn server(&self) -> &str;

    /// Its id: visible ASCII characters.
    fn id(&self) -> &str;

    /// The protocol version agreed with the client; none until it is initialized.
    fn version(&self) -> Option<ProtocolVersion>;

    /// Answers a request into `out` and finishes it exactly once; after that the future may be
    /// dropped. Dropping it earlier gives the request up. The message is a request.
    fn request(&self, message: Parsed, out: Arc<Stream>) -> Answering;

    /// Takes a notification or an answer of the client. Never waits.
    fn post(&self, message: Parsed);

    /// The streams toward the client.
    fn streams(&self) -> &Streams;

    /// The client begins to listen to the general stream.
    fn listens(&self);

    /// Ends a session whose `initialize` failed or was given up.
    fn abandon(&self);
}

/// Why a session cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no such server.
    #[error("no such server")]
    NoSuchServer,
    /// The limit of sessions is reached.
    #[error("too many sessions")]
    TooManySessions,
}

/// Why a session is not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lookup {
    /// There is no such server.
    #[error("no such server")]
    NoSuchServer,
    /// The session was never there, or has ended for good.
    #[error("no such session")]
    NoSuchSession,
    /// The session may be on disk, but the disk cannot be read.
    #[error("the session cannot be read from disk now; try again")]
    Unreadable,
}

/// Finds a session in memory or on disk; see [`Core::load_from_disk`].
pub async fn find<C: Core>(
    core: &C,
    server: &str,
    id: &str,
    if_lost: Option<ProtocolVersion>,
) -> Result<C::Session, Lookup> {
    match core.session(server, id) {
        // Boxed to keep the futures of other requests small.
        Err(Lookup::NoSuchSession) => Box::pin(core.load_from_disk(server, id, if_lost)).await,
        found => found,
    }
}

/// The code of an answer about a server or session that does not exist. Clients take it as the end
/// of their session, so it is used for nothing else.
const SESSION_NOT_FOUND: i64 = -32001;

/// The error for any other request than `initialize` and `ping` before a session is initialized.
pub(crate) const NOT_INITIALIZED: &str = "a session begins with `initialize`";
/// The error for `server/discover`, with the code for an unknown method. Clients that also speak versions with a
/// handshake then send `initialize`.
pub(crate) const NO_DISCOVER: &str =
    "`server/discover` is not supported; a session begins with `initialize`";

/// An error that answers no request in particular.
pub(crate) fn about_no_request(code: i64, message: &str) -> Bytes {
    let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}});
    error.to_string().into()
}

#[cfg(test)]
mod tests;
