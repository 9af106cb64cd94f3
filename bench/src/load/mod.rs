//! A closed-loop load generator for MCP servers.
//!
//! Every session opens with its own `initialize` and then keeps exactly one tool call in flight.
//! The clock starts when all sessions are open. Every answer is checked: it must bear the id and
//! the content that belong to this call and to no other. A call that fails costs its session a new
//! connection and `initialize`, which are not counted; the failure is.

mod call;
mod drive;
mod http;
mod pace;
mod report;
mod stdio;
mod tally;

use std::io;
use std::time::Duration;

pub use call::{Mistake, Tool};
pub(crate) use drive::{Crew, Transport};
pub(crate) use http::{Endpoint, Session as HttpSession};
pub(crate) use pace::{Done, Pace};
pub use report::Report;
pub(crate) use stdio::start_time;

pub use crate::procfs::ProcError;

/// Loads an MCP server and says how it did.
#[derive(Debug, clap::Parser)]
#[command(name = "mcpload", version)]
pub struct Options {
    #[command(subcommand)]
    target: Target,
}

#[derive(Debug, clap::Subcommand)]
enum Target {
    /// A server at a URL, by streamable HTTP: one connection per session.
    Http {
        /// The endpoint, such as `http://127.0.0.1:7433/NAME/mcp`.
        url: hyper::Uri,
        #[command(flatten)]
        plan: Plan,
    },
    /// A command that speaks MCP on stdio: one process per session.
    Stdio {
        #[command(flatten)]
        plan: Plan,
        /// The command with its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// What to do to the server, and for how long.
#[derive(Debug, Clone, clap::Args)]
struct Plan {
    #[command(flatten)]
    work: Work,
    /// How long to measure.
    #[arg(long, value_parser = seconds)]
    seconds: Duration,
    /// How long to run before measuring.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    warmup: Duration,
    /// Measure the CPU time of this process too (repeatable).
    #[arg(long, value_name = "PID")]
    cpu_pid: Vec<u32>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The sessions and what each of them calls.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Work {
    /// Sessions side by side.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sessions: u32,
    /// Which tool of the fixture to call.
    #[arg(long, value_enum, default_value_t = Tool::Echo)]
    pub(crate) tool: Tool,
    /// What a proxy puts before the names of tools.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) tool_prefix: String,
    /// The size of the text in each answer.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) size: usize,
    /// How long one answer may take.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

impl Options {
    /// Whether the report is to be JSON.
    pub fn json(&self) -> bool {
        match &self.target {
            Target::Http { plan, .. } | Target::Stdio { plan, .. } => plan.json,
        }
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A session could not even be opened.
    #[error("a session could not be opened")]
    Open(#[source] CallError),
    /// The CPU time of a process is not known.
    #[error("the CPU time of a process could not be read")]
    Cpu(#[from] ProcError),
    /// The machinery of the load generator itself failed.
    #[error("the load generator could not start")]
    Start(#[source] io::Error),
    /// The URL is not one that can be called.
    #[error("`{0}` is no http URL with a host")]
    Url(hyper::Uri),
}

/// Why a call has no right answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The command to start is empty.
    #[error("there is no command to start")]
    NoCommand,
    /// The connection or pipe failed.
    #[error("the transport failed")]
    Io(#[from] io::Error),
    /// The HTTP connection failed.
    #[error("the HTTP connection failed")]
    Http(#[from] hyper::Error),
    /// The HTTP status was not the expected one.
    #[error("the server answered with HTTP status {0}")]
    Status(hyper::StatusCode),
    /// The other side closed.
    #[error("the server closed before answering")]
    Closed,
    /// Nothing came in time.
    #[error("no answer came in time")]
    Late,
    /// An answer came, and it was an error or another one than expected.
    #[error(transparent)]
    Mistake(#[from] Mistake),
}

/// Loads the server as the options say.
pub fn run(options: &Options) -> Result<Report, LoadError> {
    match &options.target {
        Target::Http { url, plan } => drive::run(&Endpoint::new(url)?, plan),
        Target::Stdio { plan, command } => drive::run(&stdio::Program::new(command), plan),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}
