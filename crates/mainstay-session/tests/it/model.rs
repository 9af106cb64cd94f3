//! What the simulated clients, calls and runs know.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mainstay_core::RunId;
use mainstay_mcp::upstream::Hello;
use mainstay_mcp::version::ProtocolVersion;
use mainstay_session::{EventId, LinkKey, OperationKey, StreamRef};

use crate::driver::Scope;
use crate::script::{Behaviour, CallSpec, Form, Manner, Method};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientState {
    Opening,
    Ready,
    Over,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) form: Form,
    pub(crate) version: ProtocolVersion,
    pub(crate) state: ClientState,
    pub(crate) session: String,
    /// The key of a local session.
    pub(crate) local: Option<mainstay_session::SessionKey>,
    pub(crate) wants_to_listen: bool,
    /// The last message of the general stream that it got, and what it got.
    pub(crate) general_event: Option<EventId>,
    pub(crate) general: BTreeMap<u64, Bytes>,
    pub(crate) general_seen: u64,
    pub(crate) next_call: usize,
    /// The numbers of messages that it got, and where: in a response or in the general stream, under which number.
    pub(crate) numbered: BTreeMap<u64, (Option<usize>, u64)>,
}

/// A request of a client, over all its attempts.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) response: usize,
    pub(crate) key: String,
    /// Its id, as JSON.
    pub(crate) id: String,
    pub(crate) spec: CallSpec,
    pub(crate) is_initialize: bool,
    pub(crate) executions: u32,
    pub(crate) interruptions: u32,
    pub(crate) answers: u32,
    pub(crate) is_given_up: bool,
    /// When the server got an answer of the client on its account.
    pub(crate) interacted_at: Option<u64>,
    pub(crate) is_answered: bool,
    /// The later call that was answered with its result.
    pub(crate) delivered_to: Option<usize>,
}

impl Call {
    /// How often it may be executed.
    pub(crate) fn limit(&self, resent: u32, is_remote: bool) -> u32 {
        match self.spec.method {
            Method::Write | Method::Vendor => 1,
            // A server that runs elsewhere may break off twice and be the same run.
            _ => 2 + self.interruptions + resent + u32::from(is_remote),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.is_given_up && !self.is_answered
    }
}

/// The response to a request or to a batch.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Response {
    pub(crate) client: usize,
    pub(crate) calls: Vec<usize>,
    pub(crate) message: Bytes,
    pub(crate) begun: u64,
    pub(crate) reader: Option<(usize, StreamRef, u64)>,
    pub(crate) is_committed: bool,
    pub(crate) event: Option<EventId>,
    pub(crate) has_id: bool,
    pub(crate) seen: u64,
    pub(crate) items: Vec<(u64, Bytes)>,
    /// All that was ever received under a number.
    pub(crate) ever: BTreeMap<u64, Bytes>,
    /// The client has lost the connection, since then.
    pub(crate) lost_at: Option<u64>,
    /// Whether a daemon was killed that had not journaled it.
    pub(crate) may_be_gone: bool,
    /// How often the client has sent it again.
    pub(crate) resent: u32,
    /// Whether progress may have been lost on the way.
    pub(crate) is_lossy: bool,
    pub(crate) answered_at: Option<u64>,
    /// When the client was last disconnected without an answer.
    pub(crate) unanswered_at: Option<u64>,
}

/// One execution of a call by a server.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Execution {
    pub(crate) run: usize,
    pub(crate) call: usize,
    pub(crate) reply: Reply,
    pub(crate) token: Option<String>,
    pub(crate) said: u32,
    pub(crate) is_over: bool,
    pub(crate) is_muted: bool,
    /// Whether the server was told that its answer is not needed.
    pub(crate) is_cancelled: bool,
    pub(crate) awaits_client: bool,
    pub(crate) started: u64,
}

#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// The id of the request there, as JSON.
    Line(String),
    Http {
        daemon: usize,
        operation: OperationKey,
    },
}

/// What a server waits for: the answer of a client about a call, or about nothing.
pub(crate) type Asked = BTreeMap<u64, Option<usize>>;

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) scope: Scope,
    pub(crate) behaviour: Behaviour,
    pub(crate) started_at: u64,
    /// When it answers `initialize`.
    pub(crate) ready_at: u64,
    pub(crate) is_told_to_end: bool,
    /// Whether its process is alive.
    pub(crate) is_alive: bool,
    /// Whether the engine has noticed its exit, and whether nothing of it is left.
    pub(crate) is_exit_noticed: bool,
    pub(crate) is_gone: bool,
    /// Whether its container was removed by someone.
    pub(crate) is_removed: bool,
    /// Until when a server that runs elsewhere cannot be reached.
    pub(crate) away_until: u64,
    pub(crate) does_not_read: bool,
    /// What it does, and since when, while it does not read.
    pub(crate) manner: Manner,
    pub(crate) silent_since: u64,
    /// Lines that wait until it reads.
    pub(crate) kept: Vec<Bytes>,
    pub(crate) written: u64,
    pub(crate) out: Vec<Bytes>,
    pub(crate) confirmed: usize,
    pub(crate) hello: Option<Hello>,
    pub(crate) http_sessions: BTreeSet<String>,
    pub(crate) listeners: BTreeMap<String, (usize, OperationKey)>,
    pub(crate) asked: Asked,
    pub(crate) next_id: u64,
    /// The daemon that is connected, its link, and the first line that it gets.
    pub(crate) link: Option<(usize, LinkKey, usize)>,
}
