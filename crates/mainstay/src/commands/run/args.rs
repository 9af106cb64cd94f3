//! The arguments of `mainstay run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use mainstay_core::{EngineKind, ImageRef, OnStop, RefreshMode, RemoteUrl, ServerName, StableFrom};
use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, IntoDeserializer};

use super::container;
use crate::clients;
use crate::limits::{self, Limit};
use crate::text::{duration, time_limit};
use crate::transport::TransportName;

/// Run an MCP server and keep it running
///
/// A process or a container is started, watched, and restarted when it ends. It gets a clean environment:
/// add variables with `-e` and `--env-file`. A container gets no capabilities, and limits that you can
/// lift one by one. A remote server is reached at its URL.
///
/// Examples: `mainstay run time -- uvx mcp-server-time`,
/// `mainstay run files --image mcp/filesystem -v ~/notes:/notes:ro -- /notes`,
/// `mainstay run docs --url https://example.com/mcp --header-env authorization=DOCS_TOKEN`
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
#[command(override_usage = "mainstay run [OPTIONS] <NAME> -- <COMMAND>...\n       \
                            mainstay run [OPTIONS] <NAME> --image <IMAGE> [-- <ARG>...]\n       \
                            mainstay run [OPTIONS] <NAME> --url <URL>")]
pub(crate) struct Args {
    /// Name of the server: lower-case letters, digits and hyphens
    pub(super) name: ServerName,
    /// Misplaced arguments, for a better error; see `describe`.
    #[arg(hide = true)]
    pub(super) stray: Vec<String>,
    /// The program and its arguments; with --image, arguments of the entry point
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
    /// Transport of the server [default: stdio]
    #[arg(long, value_enum)]
    pub(super) transport: Option<TransportName>,
    /// Port it listens on, with streamable-http; for a container, the port inside
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) target_port: Option<u16>,
    /// Path of its MCP endpoint, with streamable-http [default: /mcp]
    #[arg(hide_short_help = true, long)]
    pub(super) path: Option<String>,
    /// Set a variable (other users may see the value); without a value, take it from your environment
    #[arg(short, long, value_name = "KEY[=VALUE]")]
    pub(super) env: Vec<String>,
    /// Set the variables of a file of KEY=VALUE lines
    #[arg(long, value_name = "FILE")]
    pub(super) env_file: Vec<PathBuf>,
    /// Working directory [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(super) cwd: Option<PathBuf>,
    /// Change the server of that name: options that you leave out keep their values, also the command;
    /// `--isolate=false` turns a switch off
    #[arg(long)]
    pub(super) replace: bool,
    /// Replace the server of that name; options that you leave out get their defaults
    #[arg(hide_short_help = true, long, conflicts_with = "replace")]
    pub(super) reset: bool,
    /// Wait until it is ready or has failed once (always so on a terminal)
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
    /// Run it in a container of this image, which is pulled if it is missing
    #[arg(long, value_parser = container::image)]
    pub(super) image: Option<ImageRef>,
    /// Container engine [default: the first one that answers]
    #[arg(hide_short_help = true, long, value_parser = named::<EngineKind>(&[("docker", ""), ("podman", "")]))]
    pub(super) engine: Option<EngineKind>,
    /// Mount a directory, a file or a named volume
    #[arg(short, long, value_name = "SOURCE:TARGET[:ro]")]
    pub(super) volume: Vec<String>,
    /// Network: a name, `none` or `host` [default: the engine's]
    #[arg(hide_short_help = true, long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(super) network: Option<String>,
    /// User in the container [default: the image's]
    #[arg(hide_short_help = true, long, value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    pub(super) user: Option<String>,
    /// Memory limit, such as `2g`, or `none` [default: 512m]
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = limits::memory)]
    pub(super) memory: Option<Limit<u64>>,
    /// Limit of processes, or `none` [default: 256]
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = limits::pids)]
    pub(super) pids_limit: Option<Limit<u32>>,
    /// Keep a capability, such as `NET_ADMIN`; all others are dropped
    #[arg(hide_short_help = true, long, value_name = "CAP", value_parser = limits::capability)]
    pub(super) cap_add: Vec<String>,
    /// Allow its processes to gain privileges, such as by a set-uid program
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) allow_new_privileges: Option<bool>,
    /// Make its file system read-only, except volumes and /tmp
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) read_only: Option<bool>,
    /// Run it without an init process that forwards signals and reaps orphans
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) no_init: Option<bool>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Remote servers")]
pub(super) struct RemoteArgs {
    /// URL of its MCP endpoint (streamable HTTP)
    #[arg(long)]
    pub(super) url: Option<RemoteUrl>,
    /// Send a header with every request; other users of this machine may see the value
    #[arg(hide_short_help = true, long, value_name = "KEY=VALUE")]
    pub(super) header: Vec<String>,
    /// Send a header whose value is taken from a variable of your environment
    #[arg(long, value_name = "KEY=VARIABLE")]
    pub(super) header_env: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
pub(super) struct ProxyArgs {
    /// How long requests wait while it is down; 0s fails them at once [default: 45s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) hold: Option<Duration>,
    /// Run a separate process for each session (stdio only)
    #[arg(long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) isolate: Option<bool>,
    /// How long such a process is kept after the last request of its session [default: 30m]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) isolate_idle: Option<Duration>,
    /// Answer a call that takes longer and cancel it at the server, or `never`; for one tool, `TOOL=TIME` (repeatable)
    /// [default: never]
    #[arg(hide_short_help = true, long, value_name = "[TOOL=]TIME", value_parser = call_timeout)]
    pub(super) call_timeout: Vec<CallTimeout>,
    /// A tool whose calls are safe to repeat after a restart (repeatable)
    #[arg(hide_short_help = true, long, value_name = "TOOL")]
    pub(super) replay: Vec<String>,
    /// Serve it on this port too
    #[arg(hide_short_help = true, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,
    /// Leave out the note about lost memory in the first result after a restart
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) quiet_restart: Option<bool>,
    /// Cancel a call when its client times out, instead of keeping its result for a repeat
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) no_late_results: Option<bool>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
pub(super) struct ClientArgs {
    /// Add it to this client only (repeatable) [default: the clients of `mainstay client add`]
    #[arg(long = "client", value_name = "ID", value_parser = clients::IdParser,
          hide_possible_values = true)]
    pub(super) only: Vec<String>,
    /// Add it to no client
    #[arg(hide_short_help = true, long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          conflicts_with = "only")]
    pub(super) no_clients: Option<bool>,
    /// When its entries are removed and added again, so that clients reconnect [default: auto]
    #[arg(hide_short_help = true, long, value_name = "WHEN",
          value_parser = named::<RefreshMode>(&[("auto", ""), ("always", ""), ("never", "")]))]
    pub(super) refresh: Option<RefreshMode>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Restarts")]
pub(super) struct RestartArgs {
    /// Restarts in a row before Mainstay gives up [default: 10]
    #[arg(long, value_name = "N")]
    pub(super) restart_max: Option<u32>,
    /// Delay before the second restart, doubled for each further one; the first is immediate [default: 5s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) restart_initial: Option<Duration>,
    /// Longest delay [default: 60s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) restart_cap: Option<Duration>,
    /// Uptime after which the restart counter is reset [default: 30s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) stable_after: Option<Duration>,
    /// What that uptime is counted from [default: ready]
    #[arg(hide_short_help = true, long,
          value_parser = named::<StableFrom>(&[("ready", "Its answer to `initialize`"), ("start", "Its start")]))]
    pub(super) stable_from: Option<StableFrom>,
    /// Never restart it
    #[arg(long, value_name = "BOOL", hide_possible_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          conflicts_with = "restart_max")]
    pub(super) no_restart: Option<bool>,
    /// What to do after `docker stop`; with Podman, it is always restarted [default: restart]
    #[arg(hide_short_help = true, long,
          value_parser = named::<OnStop>(&[("restart", "Restart it"), ("respect", "Leave it stopped")]))]
    pub(super) on_stop: Option<OnStop>,
    /// Time limit for its answer to `initialize` [default: 2m]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) start_timeout: Option<Duration>,
    /// How long it may take to stop before it is killed, at most 90s [default: 10s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    pub(super) stop_timeout: Option<Duration>,
    /// Kill it when it has read nothing and done nothing for this long while requests wait, or `never` [default: 60s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = silence_limit)]
    pub(super) hang_after: Option<Limit<Duration>>,
    /// Kill it when it has worked without reading anything for this long, or `never` [default: never]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = silence_limit)]
    pub(super) busy_limit: Option<Limit<Duration>>,
    /// Kill it when it has been inside a call for this long and read nothing else, or `never` [default: 15m]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = silence_limit)]
    pub(super) block_limit: Option<Limit<Duration>>,
}

/// The longest time of all calls, or of those of one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallTimeout {
    pub(super) tool: Option<String>,
    pub(super) limit: Limit<Duration>,
}

/// How long a server may be silent before it is killed.
fn silence_limit(text: &str) -> Result<Limit<Duration>, String> {
    let limit = time_limit(text)?;
    if limit.is_some_and(|limit| limit < Duration::from_secs(1)) {
        return Err("give at least `1s`".to_owned());
    }
    Ok(limit)
}

fn call_timeout(text: &str) -> Result<CallTimeout, String> {
    let (tool, limit) = match text.rsplit_once('=') {
        Some(("", _)) => return Err("write the name of a tool before `=`".to_owned()),
        Some((tool, limit)) => (Some(tool.to_owned()), limit),
        None => (None, text),
    };
    Ok(CallTimeout { tool, limit: time_limit(limit)? })
}

/// Parses a setting by its name in files. Names may have a help text.
fn named<T>(names: &[(&'static str, &'static str)]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    let value = |(name, help): &(&'static str, &'static str)| {
        let help = Some(*help).filter(|help| !help.is_empty());
        PossibleValue::new(name).help(help)
    };
    let names = PossibleValuesParser::new(names.iter().map(value));
    names.try_map(|name| T::deserialize(IntoDeserializer::<ValueError>::into_deserializer(name)))
}
