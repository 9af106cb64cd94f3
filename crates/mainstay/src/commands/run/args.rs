//! What `mainstay run` is given.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use mainstay_core::{ImageRef, RefreshMode, RemoteUrl, ServerName};

use super::container;
use crate::clients;
use crate::limits::{self, Most};
use crate::text::duration;
use crate::transport::TransportName;

/// Run an MCP server, now and from now on
///
/// A local server, a process or a container, is started, watched, and started again when it ends. It
/// gets a clean environment: add what it needs with `-e` and `--env-file`. A container gets no
/// capabilities and limits that can be lifted one by one. A server that runs elsewhere is reached at
/// its URL.
///
/// Examples: `mainstay run time -- uvx mcp-server-time`,
/// `mainstay run files --image mcp/filesystem -v ~/notes:/notes:ro -- /notes`,
/// `mainstay run docs --url https://example.com/mcp --header-env authorization=DOCS_TOKEN`
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[command(override_usage = "mainstay run [OPTIONS] <NAME> -- <COMMAND>...\n       \
                            mainstay run [OPTIONS] <NAME> --image <IMAGE> [-- <ARG>...]\n       \
                            mainstay run [OPTIONS] <NAME> --url <URL>")]
pub(crate) struct Args {
    /// Name of the server: lower-case letters, digits and hyphens
    pub(super) name: ServerName,
    /// What was meant as an image or a command, but is not given as one; see `describe`.
    #[arg(hide = true)]
    pub(super) stray: Vec<String>,
    /// The program and its arguments; with --image, arguments for its entry point
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
    /// How it speaks MCP [default: stdio]
    #[arg(long, value_enum)]
    pub(super) transport: Option<TransportName>,
    /// The port it listens on, with streamable-http; of a container, the one inside
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) target_port: Option<u16>,
    /// The path of its endpoint, with streamable-http [default: /mcp]
    #[arg(hide_short_help = true, long)]
    pub(super) path: Option<String>,
    /// Give it a variable (other users may see the value); without a value, the one of your environment
    #[arg(short, long, value_name = "KEY[=VALUE]")]
    pub(super) env: Vec<String>,
    /// Give it the variables of a file of KEY=VALUE lines
    #[arg(long, value_name = "FILE")]
    pub(super) env_file: Vec<PathBuf>,
    /// Where it runs [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(super) cwd: Option<PathBuf>,
    /// Change a server of that name: what is not given stays as it is, the command included, and `--isolate=false`
    /// turns a switch off
    #[arg(long)]
    pub(super) replace: bool,
    /// Replace a server of that name; what is not given gets its default
    #[arg(hide_short_help = true, long, conflicts_with = "replace")]
    pub(super) reset: bool,
    /// Wait until it is ready or has failed once, as on a terminal
    #[arg(long)]
    pub(super) wait: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) container: ContainerArgs,
    #[command(flatten)]
    pub(super) remote: RemoteArgs,
    #[command(flatten)]
    pub(super) clients: ClientArgs,
    #[command(flatten)]
    pub(super) proxy: ProxyArgs,
    #[command(flatten)]
    pub(super) restart: RestartArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Containers")]
pub(super) struct ContainerArgs {
    /// Run it in a container of this image, which is pulled if it is not there
    #[arg(long, value_parser = container::image)]
    pub(super) image: Option<ImageRef>,
    /// The engine that runs it [default: the first one that answers]
    #[arg(hide_short_help = true, long, value_enum)]
    pub(super) engine: Option<EngineName>,
    /// Let it see a directory, a file or a named volume
    #[arg(short, long, value_name = "SOURCE:TARGET[:ro]")]
    pub(super) volume: Vec<String>,
    /// The network it is in: a name, `none` or `host` [default: the engine's]
    #[arg(hide_short_help = true, long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(super) network: Option<String>,
    /// As whom it runs [default: as its image says]
    #[arg(hide_short_help = true, long, value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    pub(super) user: Option<String>,
    /// How much memory it may use, such as `2g`, or `none` for no limit [default: 512m]
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = limits::memory)]
    pub(super) memory: Option<Most<u64>>,
    /// How many processes it may have, or `none` for no limit [default: 256]
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = limits::pids)]
    pub(super) pids_limit: Option<Most<u32>>,
    /// A capability it keeps, such as `NET_ADMIN`; all others are dropped
    #[arg(hide_short_help = true, long, value_name = "CAP", value_parser = limits::capability)]
    pub(super) cap_add: Vec<String>,
    /// Let its processes gain privileges, as by a set-uid program
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) allow_new_privileges: Option<bool>,
    /// Let it write nowhere but in its volumes and in /tmp
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) read_only: Option<bool>,
    /// Run it as the first process, without an init that passes on signals and collects orphans
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) no_init: Option<bool>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Servers that run elsewhere")]
pub(super) struct RemoteArgs {
    /// Where it is reached, with streamable HTTP
    #[arg(long)]
    pub(super) url: Option<RemoteUrl>,
    /// Send it a header with every request; other users of this machine may see the value
    #[arg(hide_short_help = true, long, value_name = "KEY=VALUE")]
    pub(super) header: Vec<String>,
    /// Send it a header whose value is that of a variable of your environment
    #[arg(long, value_name = "KEY=VARIABLE")]
    pub(super) header_env: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
pub(super) struct ProxyArgs {
    /// How long a request may wait while it is down; 0s for not at all [default: 45s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) hold: Option<Duration>,
    /// Give each session a process of its own, with stdio
    #[arg(long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) isolate: Option<bool>,
    /// How long such a process is kept after the last request of its client [default: 30m]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) isolate_idle: Option<Duration>,
    /// A tool that may be called twice: its calls are repeated if it stops in between
    #[arg(hide_short_help = true, long, value_name = "TOOL")]
    pub(super) replay: Vec<String>,
    /// Let clients reach it on a port of its own too
    #[arg(hide_short_help = true, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,
    /// Do not tell in the first result after a restart that its memory was lost
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) quiet_restart: Option<bool>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
pub(super) struct ClientArgs {
    /// Register it with this client only (repeatable) [default: with those of `mainstay client add`]
    #[arg(long = "client", value_name = "ID", value_parser = clients::IdParser,
          hide_possible_values = true)]
    pub(super) only: Vec<String>,
    /// Register it with no client
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          conflicts_with = "only")]
    pub(super) no_clients: Option<bool>,
    /// When its entries are taken out and added again, so that clients connect anew [default: auto]
    #[arg(hide_short_help = true, long, value_name = "WHEN", value_parser = refresh())]
    pub(super) refresh: Option<RefreshMode>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Restarts")]
pub(super) struct RestartArgs {
    /// Restarts in a row before it is given up [default: 10]
    #[arg(long, value_name = "N")]
    pub(super) restart_max: Option<u32>,
    /// Delay before the second restart; the first is immediate, the others double it [default: 5s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) restart_initial: Option<Duration>,
    /// The longest delay [default: 60s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) restart_cap: Option<Duration>,
    /// How long it must have been up for its next end to count as a first one [default: 30s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) stable_after: Option<Duration>,
    /// From when on that is counted [default: ready]
    #[arg(hide_short_help = true, long, value_enum)]
    pub(super) stable_from: Option<StableFromName>,
    /// Never start it again
    #[arg(long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          conflicts_with = "restart_max")]
    pub(super) no_restart: Option<bool>,
    /// What to do when somebody else stops it; Podman does not tell that from an exit [default: restart]
    #[arg(hide_short_help = true, long, value_enum)]
    pub(super) on_stop: Option<OnStopName>,
    /// How long it may take to answer `initialize` [default: 2m]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) start_timeout: Option<Duration>,
    /// How long it may take to end before it is killed [default: 10s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) stop_timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum EngineName {
    Docker,
    Podman,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum StableFromName {
    /// From its answer to `initialize`
    Ready,
    /// From its start
    Start,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum OnStopName {
    /// Start it again
    Restart,
    /// Leave it stopped
    Respect,
}

/// Reads `--refresh WHEN`.
fn refresh() -> impl TypedValueParser<Value = RefreshMode> {
    PossibleValuesParser::new(RefreshMode::ALL.map(RefreshMode::as_str))
        .try_map(|word| word.parse::<RefreshMode>())
}
