//! Types about the daemon and its servers, as `--json` prints them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use jiff::Timestamp;
use mainstay_core::{
    Limits, ProxySettings, RefreshMode, RestartPolicy, ServerName, Status, Wanted,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClientReport, Registration, SilenceInfo, StartInfo};

/// One server, as `ls --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerInfo {
    /// Its name.
    pub name: ServerName,
    /// Its status.
    pub status: Status,
    /// Why it has that status, in a short line.
    pub reason: String,
    /// Where it runs.
    pub engine: String,
    /// How it speaks MCP.
    pub transport: String,
    /// Where clients reach it over HTTP, if they can.
    pub url: Option<String>,
    /// The number of its present or last run.
    pub generation: u64,
    /// Restarts since the last reset that count toward the limit.
    pub restarts: u32,
    /// The limit of these restarts, after which Mainstay gives up.
    pub restart_max: u32,
    /// All automatic restarts. A stable run does not reset this.
    pub restarts_total: u64,
    /// When the last of those restarts was decided on.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub last_restart_at: Option<Timestamp>,
    /// When the present run began.
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// When the present run became ready.
    #[schemars(with = "Option<String>")]
    pub ready_at: Option<Timestamp>,
    /// When the next restart is due.
    #[schemars(with = "Option<String>")]
    pub next_restart_at: Option<Timestamp>,
    /// How the last run ended.
    pub last_exit: Option<LastExit>,
    /// What it does, if it takes long to become ready. Older daemons do not send it.
    #[serde(default)]
    pub start: Option<StartInfo>,
    /// Why it does not answer, if a request has waited long. Older daemons do not send it.
    #[serde(default)]
    pub silence: Option<SilenceInfo>,
    /// Client sessions that are open.
    pub sessions: u32,
    /// The server's process, not its shim.
    pub pid: Option<u32>,
    /// Its container, if it runs in one.
    pub container_id: Option<String>,
}

impl ServerInfo {
    /// Whether Mainstay only connects to it. It then has no processes and no log here.
    pub fn is_remote(&self) -> bool {
        self.engine == "remote"
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastExit {
    /// The cause in one word: `exited`, `hung`, `not-ready`, `stopped`, `engine-away`, `machine-restarted`,
    /// `cannot-start`, `asked` and others.
    pub cause: String,
    /// The cause as a sentence.
    pub detail: String,
    /// The exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Whether it was killed because memory ran out.
    pub oom: bool,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// Everything about one server, as `status --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// What `ls` shows.
    #[serde(flatten)]
    pub server: ServerInfo,
    /// Whether it should run.
    pub wanted: Wanted,
    /// The program and its arguments, if it is a local process.
    pub command: Option<Vec<String>>,
    /// Where it runs, if it is a local process.
    pub cwd: Option<PathBuf>,
    /// Its container, if it runs in one.
    #[serde(flatten)]
    pub container: Option<ContainerInfo>,
    /// The names of the variables given to it, if it runs on this machine; their values may be secrets
    /// and are not shown.
    pub env: Option<Vec<String>>,
    /// Where Mainstay reaches the server itself, if it speaks HTTP; of a container, the port inside it.
    pub target: Option<String>,
    /// The program that listens there, if it is known not to belong to the server.
    #[serde(default)]
    pub target_owner: Option<TargetOwner>,
    /// The names of the headers sent to it, if it runs elsewhere; their values may be secrets and are
    /// not shown.
    pub headers: Option<Vec<String>>,
    /// When it is started again.
    pub restart: RestartPolicy,
    /// Settings of the proxy.
    #[serde(default)]
    pub proxy: ProxySettings,
    /// When its entries in clients' files are removed and added again.
    #[serde(default)]
    pub refresh: RefreshMode,
    /// The ids of the clients that it names itself; null if it has entries in those that were chosen
    /// for all servers.
    #[serde(default)]
    pub named_clients: Option<BTreeSet<String>>,
    /// Its entries in clients' files.
    #[serde(default)]
    pub clients: Vec<Registration>,
    /// What the server reported about itself.
    pub mcp: Option<McpInfo>,
    /// Where its log is.
    pub log: PathBuf,
    /// When its spec was stored.
    #[schemars(with = "String")]
    pub created_at: Timestamp,
}

/// The container of a server, and its restrictions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerInfo {
    /// The name of its image.
    pub image: String,
    /// The arguments of its entry point.
    pub args: Vec<String>,
    /// The address of its engine.
    pub host: Option<String>,
    /// The mounted files of this machine, each as `SOURCE:TARGET` or `SOURCE:TARGET:ro`.
    pub volumes: Vec<String>,
    /// Its network; null for the engine's default.
    pub network: Option<String>,
    /// The user it runs as; null for the image's default.
    pub user: Option<String>,
    /// Its limits.
    pub limits: Limits,
    /// The settings that are looser than the default, as text.
    pub loosened: Vec<String>,
}

/// A program that listens at the address of a server, and does not belong to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetOwner {
    /// Its process, if this user can see it.
    pub pid: Option<u32>,
    /// The name of its program, if this user can see it.
    pub program: Option<String>,
    /// The user who created the listener, if the process cannot be seen.
    pub uid: Option<u32>,
    /// The same as text.
    pub description: String,
}

/// The progress of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullProgress {
    /// Bytes that have arrived.
    pub done: u64,
    /// The total so far; it may grow.
    pub total: u64,
}

/// What a server reported about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct McpInfo {
    /// Its name.
    pub name: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The protocol version it speaks.
    pub protocol: String,
}

/// What happened to a server and why, as `why --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhyReport {
    /// The server now.
    pub server: ServerInfo,
    /// Whether it should run.
    pub wanted: Wanted,
    /// Its last events, oldest first.
    pub events: Vec<EventRecord>,
    /// The last lines it wrote to standard error.
    pub stderr: Vec<String>,
    /// The last lines of the last run on standard output that are not MCP messages.
    #[serde(default)]
    pub stdout: Vec<String>,
    /// Where its whole log is.
    pub log: PathBuf,
    /// With `--isolate`, where the logs of sessions' own processes are; `*` stands for the session.
    #[serde(default)]
    pub session_logs: Option<PathBuf>,
    /// The ids of the clients that should have an entry for it. Older daemons do not send them.
    #[serde(default)]
    pub clients: Option<BTreeSet<String>>,
}

/// One event, as `events --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventRecord {
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Which server; none for the daemon itself.
    pub server: Option<ServerName>,
    /// Which run.
    pub run: Option<u64>,
    /// What, in one word.
    pub event: String,
    /// Why, in one word.
    pub cause: Option<String>,
    /// The rest, as a sentence.
    pub detail: String,
}

impl EventRecord {
    /// Events about a client's request.
    pub const REQUEST: &str = "request";

    /// Events about what a server that does not answer was seen to do.
    pub const VERDICTS: [&str; 6] =
        ["overdue", "busy", "blocked", "suspended", "unresponsive", "responsive"];

    /// Events about a client's file.
    pub const CLIENT: &str = "client";
}

/// One line of a server's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Which server.
    #[serde(default)]
    pub server: Option<ServerName>,
    /// When it was written; null if that was not recorded.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub at: Option<Timestamp>,
    /// The line, without its end.
    pub line: String,
}

/// What a command did to one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Which one.
    pub name: ServerName,
    /// Whether anything had to be done.
    pub changed: bool,
    /// Its status afterwards; none once it is forgotten.
    pub status: Option<Status>,
    /// What was done to clients' files.
    #[serde(default)]
    pub clients: Vec<ClientReport>,
}

/// A server that was stored, as `run --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Described {
    /// The server now.
    #[serde(flatten)]
    pub server: ServerInfo,
    /// What was done to clients' files.
    pub clients: Vec<ClientReport>,
    /// Whether the same spec was stored already, so that nothing was changed.
    #[serde(default)]
    pub unchanged: bool,
}

/// The daemon, as `daemon status --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonInfo {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it started.
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    /// The number of servers.
    pub servers: usize,
    /// How many of them are running.
    pub running: usize,
    /// Where clients reach it: an address and a port. None if it has no listener.
    pub listen: Option<String>,
    /// Why it has no listener, if that is known.
    #[serde(default)]
    pub listen_problem: Option<String>,
    /// Further addresses, at which requests need a token.
    #[serde(default)]
    pub more_addresses: Vec<AddressInfo>,
    /// Client sessions that are open, of all servers.
    #[serde(default)]
    pub sessions: usize,
    /// Where its state is.
    pub state_dir: PathBuf,
    /// Where its socket is.
    pub socket: PathBuf,
    /// Where its log is.
    pub log: PathBuf,
    /// Which instance it is: the label on everything it starts.
    pub instance: String,
    /// How many daemons this instance has had, this one included.
    #[serde(default)]
    pub number: u64,
    /// The pid of the holder.
    #[serde(default)]
    pub holder: Option<u32>,
    /// Why its last replacement failed, if it did.
    #[serde(default)]
    pub replacement_failed: Option<String>,
}

/// A further address of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddressInfo {
    /// The address and the port.
    pub address: String,
    /// Why it is not served, if so.
    pub problem: Option<String>,
}

/// A token, as `token ls --json` prints it. The token itself is not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenInfo {
    /// Its name.
    pub name: String,
    /// The server it admits to; null means all.
    pub server: Option<ServerName>,
    /// When it was created.
    #[schemars(with = "String")]
    pub created_at: Timestamp,
}

/// A token that was created, as `token create --json` prints it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    /// Its description.
    #[serde(flatten)]
    pub info: TokenInfo,
    /// The token itself, which is not stored.
    pub token: String,
}

/// Leaves out the token, which is a secret.
impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The answer to [`crate::Request::Connect`]. From the next line on, the connection carries JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connected {
    /// The session of this connection; none if another connection cannot continue it. It is the requested one if the
    /// daemon still has it, or else a new one, which its client has to initialize.
    pub session: Option<String>,
    /// The ids, as JSON, of open requests of the session. Their answers arrive on this connection.
    #[serde(default)]
    pub pending: Vec<String>,
}
