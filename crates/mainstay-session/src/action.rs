//! What the code around a [`Server`](crate::Server) has to do, and what it reports about that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_core::supervisor::SessionRunEnd;
use mainstay_mcp::frame::Parsed;
use mainstay_mcp::upstream::{Hello, UpstreamError};
use serde_json::value::RawValue;

use crate::availability::Run;
use crate::calls::CallKey;
use crate::http::{OperationKey, UpstreamSession};
use crate::level::Level;
use crate::links::LinkKey;
use crate::streams::StreamRef;

/// To be executed in order.
#[derive(Debug)]
pub enum Action {
    /// Write a line to a stdio server. If it cannot be queued now, report [`Server::link_full`](crate::Server::link_full)
    /// and keep it.
    SendLine(LinkKey, Bytes),
    /// So many lines of the server need not be delivered to another daemon.
    ConfirmLines(LinkKey, u64),
    /// Write a line that is not an MCP message to the server's log.
    LogLine(LinkKey, Bytes),
    /// A link was attached, or could not be: [`Server::attach`](crate::Server::attach).
    Attached(LinkKey, Result<Arc<Run>, UpstreamError>),
    /// A link was closed.
    Closed(LinkKey),
    /// A link is not needed.
    DropLink(LinkKey),
    /// Perform an HTTP operation, and report it to [`Server::http_done`](crate::Server::http_done).
    Http(OperationKey, LinkKey, HttpOperation),
    /// The result of an HTTP operation is not needed.
    AbortHttp(OperationKey),
    /// Perform later HTTP operations on new connections.
    RenewConnections(LinkKey),
    /// Close the connections to a server that are not in use: one that serves one connection at a time waits for their end.
    CloseIdleConnections(LinkKey),
    /// The operation may report messages again: the client has read some.
    ResumeHttp(OperationKey),
    /// The reader of a stream may have something to read.
    Wake(StreamRef),
    /// Report to [`Server::record_written`](crate::Server::record_written) when what was stored so far is on disk.
    AwaitWritten(CallKey),
    /// Report the last line that a run wrote to standard error to [`Server::last_line`](crate::Server::last_line).
    ReadLastLine(CallKey, RunOwner),
    /// Report this to the drivers of runs and to the event log.
    Report(Report),
}

/// The session whose own run something is about, by its id; none for the run that all sessions share.
pub type RunOwner = Option<Arc<str>>;

/// What sessions need, and what was noticed about runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The session with this id needs a run of its own.
    StartSessionRun(Arc<str>),
    /// The session with this id does not need its run any more.
    StopSessionRun(Arc<str>, SessionRunEnd),
    /// A request was refused, because the run is down.
    Demand(RunOwner),
    /// The run of this generation counts as up and could not be reached.
    Unreachable(RunOwner, u64),
    /// The run of this generation should be observed: a request to it is slow, or it has sent something while requests are
    /// held.
    Observe(RunOwner, u64),
    /// This was decided for a request.
    Decision(Decision),
}

/// What was decided for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub server: String,
    /// The run it is about, if it is about one.
    pub run: Option<u64>,
    /// What was decided, in one word.
    pub cause: &'static str,
    /// The rest, as a sentence.
    pub detail: String,
}

/// An exchange with a server that speaks streamable HTTP.
#[derive(Debug)]
pub enum HttpOperation {
    /// Open an MCP session: `initialize`, `notifications/initialized`, then the level and the subscriptions.
    Open {
        generation: u64,
        params: Option<Arc<RawValue>>,
        level: Option<Level>,
        subscriptions: BTreeSet<String>,
        /// Whether the server may still be starting: then `initialize` is retried until it answers.
        is_starting: bool,
    },
    /// Send a client's request, and report what comes before the answer to
    /// [`Server::http_message`](crate::Server::http_message).
    Request { session: Arc<UpstreamSession>, message: Parsed },
    /// Send a request of Mainstay itself.
    Ask {
        session: Arc<UpstreamSession>,
        id: u64,
        method: &'static str,
        params: Option<Box<RawValue>>,
    },
    /// Send a message that has no answer.
    Notify { session: Arc<UpstreamSession>, message: Bytes },
    /// Listen for messages outside of requests.
    Listen { session: Arc<UpstreamSession>, last_event: Option<String> },
    /// End an MCP session.
    Delete { session: Arc<UpstreamSession> },
}

/// How an [`HttpOperation`] ended.
#[derive(Debug)]
pub enum HttpOutcome {
    Opened(Arc<UpstreamSession>, Hello),
    /// The answer to a client's request.
    Answered(Parsed),
    /// The result of a request of Mainstay itself.
    Result(Box<RawValue>),
    /// A notification or the end of a session was sent, or could not be.
    Done,
    /// The stream of a listener has ended.
    ListenEnded {
        retry: Option<Duration>,
    },
    /// The server refused a listener.
    ListenRefused {
        status: u16,
        is_session_lost: bool,
    },
    /// A listener did not reach the server.
    ListenFailed,
    Failed(HttpFailure),
}

/// Why a request has no answer.
#[derive(Debug)]
pub enum HttpFailure {
    /// The server cannot have received it.
    Unsent,
    /// The connection was lost after it was sent.
    Lost,
    /// The server does not know the session.
    SessionLost,
    /// The answer cannot be used.
    Unusable(UpstreamError),
}

/// A call that this daemon finishes for the next one; its stream has the rest.
#[derive(Debug, Clone, Copy)]
pub struct Relayed {
    pub number: u64,
    pub stream: StreamRef,
    pub turn: u64,
    /// The number after which its next message comes.
    pub position: u64,
}
