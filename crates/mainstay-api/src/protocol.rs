//! The protocol of the control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use mainstay_core::{ServerName, ServerSpec};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ApiError;

/// The version of this protocol.
pub const PROTOCOL: u32 = 1;

/// The maximum length of a line on the control socket.
pub const MAX_LINE: usize = 20 * 1024 * 1024;

/// The maximum length of an MCP message, without the end of its line.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// The first line of every connection, written by the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The daemon's version.
    pub mainstay: String,
    /// The version of the protocol it speaks.
    pub protocol: u32,
}

/// The one line that a client writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "method", content = "params", rename_all = "kebab-case")]
pub enum Request {
    /// Stores a server and starts it. Answer: [`crate::Described`].
    Run {
        /// The server.
        spec: Box<ServerSpec>,
        /// Whether it may replace a server of the same name.
        replace: bool,
        /// Where the clients that it names are searched for.
        around: Around,
    },
    /// Stores several servers at once, all or none. Answer: [`crate::Outcome`] for each.
    Import {
        /// The servers.
        specs: Vec<ServerSpec>,
        /// Whether they may replace servers of the same names.
        replace: bool,
        /// Where the clients that they name are searched for.
        around: Around,
    },
    /// Pulls the image of a server, unless it exists locally. Items: [`crate::PullProgress`].
    Pull {
        /// The server, which need not be known.
        spec: Box<ServerSpec>,
    },
    /// The specs of one server or of all. Answer: [`ServerSpec`] for each.
    Export {
        /// Which one; none means all.
        name: Option<ServerName>,
    },
    /// All servers. Answer: [`crate::ServerInfo`] for each.
    List,
    /// Everything about one server. Answer: [`crate::StatusReport`].
    Status {
        /// Which one.
        name: ServerName,
    },
    /// What happened to a server and why. Answer: [`crate::WhyReport`].
    Why {
        /// Which one.
        name: ServerName,
    },
    /// Waits until a server is ready or has failed. Items: [`crate::ServerInfo`] whenever its reason
    /// changes. Answer: the last one.
    Settle {
        /// Which one.
        name: ServerName,
        /// Whether a run that ended settles it too, or only readiness, an error or a stop.
        any_end: bool,
        /// Runs that ended before do not settle it. Without it, those before the server was described.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Timestamp>,
    },
    /// Starts servers. Answer: [`crate::Outcome`] for each.
    Start {
        /// Which ones.
        which: Which,
    },
    /// Stops servers and waits for their end. Answer: [`crate::Outcome`] for each.
    Stop {
        /// Which ones.
        which: Which,
    },
    /// Restarts servers and resets their restart counters. Answer: [`crate::Outcome`] for each.
    Restart {
        /// Which ones.
        which: Which,
    },
    /// Stops servers and removes them. Answer: [`crate::Outcome`] for each.
    Remove {
        /// Which ones.
        which: Which,
    },
    /// A server's log. Items: [`crate::LogLine`].
    Logs {
        /// Which server.
        name: ServerName,
        /// Only this many of the last matching lines.
        tail: Option<usize>,
        /// Whether to keep sending new lines.
        follow: bool,
        /// Only lines that were written then or later.
        #[serde(default)]
        since: Option<Timestamp>,
        /// Only lines that match this regular expression.
        #[serde(default)]
        grep: Option<String>,
    },
    /// The event log. Items: [`crate::EventRecord`].
    Events {
        /// Only those of one server.
        name: Option<ServerName>,
        /// Only this many of the last ones.
        tail: Option<usize>,
        /// Whether to keep sending new ones.
        follow: bool,
    },
    /// The tools that a server offers. Answer: a JSON array, as the server described them.
    Tools {
        /// Which server.
        name: ServerName,
    },
    /// Calls a tool. Answer: the tool's result, as the server gave it.
    Call {
        /// Which server.
        name: ServerName,
        /// Which tool.
        tool: String,
        /// Its arguments: a JSON object.
        arguments: Box<RawValue>,
    },
    /// Turns the connection into one to the HTTP listener, for `mainstay connect`. Answer: null; after it the
    /// connection carries HTTP/1.1, and the MCP endpoint of the server is at `/NAME/mcp`.
    Http {
        /// Which server.
        name: ServerName,
    },
    /// Connects an MCP client to a server, for `mainstay connect` 0.1.0. Answer: [`crate::Connected`]; after
    /// it the connection carries JSON-RPC messages of at most [`MAX_MESSAGE`] bytes both ways, a line each, until one
    /// side closes it.
    Connect {
        /// Which server.
        name: ServerName,
        /// The session of an earlier connection, to continue.
        session: Option<String>,
        /// Whether it understands a [`Farewell`].
        #[serde(default)]
        farewell: bool,
    },
    /// Lists the calls that the sender, a replaced daemon, still finishes. Answer: null; after it the connection carries
    /// their results, a line each.
    Relay {
        /// Their streams: the ids of sessions, and numbers.
        streams: Vec<(String, u64)>,
    },
    /// Replaces this daemon by another one without refusing connections. Answer: null when the other one is
    /// prepared and this one hands over, which is before the other one serves; or an error, and this one continues.
    /// [`crate::DaemonInfo`] (`number`, `replacement_failed`) shows whether the other one serves.
    Reload {
        /// Its program; none means the same as this one's.
        exe: Option<PathBuf>,
        /// The program that replaces `exe`, and is started, if the new daemon fails.
        fallback: Option<PathBuf>,
    },
    /// All clients that Mainstay knows. Answer: [`crate::ClientInfo`] for each.
    Clients {
        /// Where clients are searched for that were never chosen.
        around: Around,
    },
    /// Adds clients: they get entries for all servers that name no clients, also for later ones. Entries of Mainstay
    /// that were changed or removed by hand are restored. Answer: [`crate::ClientReport`] for each client and server.
    ChooseClients {
        /// Their ids. One that is unknown or not installed fails the whole request before anything
        /// is done.
        ids: Vec<String>,
        /// Where they are searched for, now and later.
        around: Around,
    },
    /// Removes clients, and all entries of Mainstay from their files. Answer:
    /// [`crate::ClientReport`] for each client and server.
    DropClients {
        /// Their ids. An unknown one fails the whole request before anything is done.
        ids: Vec<String>,
    },
    /// Creates a token that admits callers other than this user. Answer: [`crate::NewToken`].
    CreateToken {
        /// The name of the token.
        name: String,
        /// The server it admits to; none means all.
        server: Option<ServerName>,
    },
    /// All tokens. Answer: [`crate::TokenInfo`] for each.
    Tokens,
    /// Removes a token. Answer: null.
    RemoveToken {
        /// The name of the token.
        name: String,
    },
    /// The daemon itself. Answer: [`crate::DaemonInfo`].
    Daemon,
    /// Ends the daemon. Answer: null, when it no longer accepts anything.
    Shutdown {
        /// Whether servers keep running for the next daemon.
        keep_servers: bool,
    },
}

/// Where to search for clients' files: the user's home, and the environment variables that locate clients.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Around {
    /// The user's home directory; empty if there is none.
    pub home: PathBuf,
    /// The variables.
    pub env: BTreeMap<String, String>,
}

/// The servers that a command is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// All of them.
    All,
    /// These; unknown names fail the whole request before anything is done.
    Names(Vec<ServerName>),
}

/// A line of an answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Frame {
    /// One item of a stream; more may follow.
    Item(Box<RawValue>),
    /// The answer; nothing follows.
    Ok(Box<RawValue>),
    /// The request failed; nothing follows.
    Error(ApiError),
}

/// The last line of a daemon on a connection that carries JSON-RPC, for clients that understand it. It is not JSON-RPC,
/// so that no server can send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Farewell {
    /// Another daemon takes over.
    Leaving {
        /// How many of the client's lines on this connection were read. The later ones are for the next daemon.
        taken: u64,
    },
}
