//! `mainstay run`

mod container;
mod describe;
mod progress;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use mainstay_api::{Around, Described, Request, ServerInfo};
use mainstay_core::{EngineKind, ImageRef, RemoteUrl, ServerName, Status};
use mainstay_daemon::discover::Disk;

use self::describe::spec_from;
use self::progress::Progress;
use super::why;
use crate::context::Context;
use crate::engine_host;
use crate::error::CliError;
use crate::images::ask_with_images;
use crate::limits::{self, Most};
use crate::remote::Remote;
use crate::text::{duration, short_id, tame};
use crate::transport::TransportName;
use crate::ui::paint;

/// How long a new server is watched before the prompt comes back.
const WATCH: Duration = Duration::from_secs(3);

/// How many of the last lines of a server that failed are shown.
const LAST_LINES: usize = 5;

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
#[command(override_usage = "mainstay run [OPTIONS] <NAME> -- <COMMAND>...\n       \
                            mainstay run [OPTIONS] <NAME> --image <IMAGE> [-- <ARG>...]\n       \
                            mainstay run [OPTIONS] <NAME> --url <URL>")]
pub(crate) struct Args {
    /// Name of the server: lower-case letters, digits and hyphens
    name: ServerName,
    /// What was meant as an image or a command, but is not given as one; see [`describe`].
    #[arg(hide = true)]
    stray: Vec<String>,
    /// The program and its arguments; with --image, arguments for its entry point
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// How it speaks MCP [default: stdio]
    #[arg(long, value_enum)]
    transport: Option<TransportName>,
    /// The port it listens on, with streamable-http; of a container, the one inside
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    target_port: Option<u16>,
    /// The path of its endpoint, with streamable-http [default: /mcp]
    #[arg(long)]
    path: Option<String>,
    /// Give it a variable; without a value, the one of your environment
    #[arg(short, long, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Give it the variables of a file of KEY=VALUE lines
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Where it runs [default: the current directory]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Take the place of a server with the same name
    #[arg(long)]
    replace: bool,
    /// Wait until it is ready or given up
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    proxy: ProxyArgs,
    #[command(flatten)]
    restart: RestartArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Containers")]
struct ContainerArgs {
    /// Run it in a container of this image, which is pulled if it is not there
    #[arg(long, value_parser = container::image)]
    image: Option<ImageRef>,
    /// The engine that runs it [default: the first one that answers]
    #[arg(long, value_enum)]
    engine: Option<EngineName>,
    /// Let it see a directory, a file or a named volume
    #[arg(short, long, value_name = "SOURCE:TARGET[:ro]")]
    volume: Vec<String>,
    /// The network it is in: a name, `none` or `host` [default: the engine's]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    network: Option<String>,
    /// As whom it runs [default: as its image says]
    #[arg(long, value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    user: Option<String>,
    /// How much memory it may use, such as `2g`, or `none` for no limit [default: 512m]
    #[arg(long, value_name = "SIZE", value_parser = limits::memory)]
    memory: Option<Most<u64>>,
    /// How many processes it may have, or `none` for no limit [default: 256]
    #[arg(long, value_name = "N", value_parser = limits::pids)]
    pids_limit: Option<Most<u32>>,
    /// A capability it keeps, such as `NET_ADMIN`; all others are dropped
    #[arg(long, value_name = "CAP", value_parser = limits::capability)]
    cap_add: Vec<String>,
    /// Let its processes gain privileges, as by a set-uid program
    #[arg(long)]
    allow_new_privileges: bool,
    /// Let it write nowhere but in its volumes and in /tmp
    #[arg(long)]
    read_only: bool,
    /// Run it as the first process, without an init that passes on signals and collects orphans
    #[arg(long)]
    no_init: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Servers that run elsewhere")]
struct RemoteArgs {
    /// Where it is reached, with streamable HTTP
    #[arg(long)]
    url: Option<RemoteUrl>,
    /// Send it a header with every request; other users of this machine may see the value
    #[arg(long, value_name = "KEY=VALUE")]
    header: Vec<String>,
    /// Send it a header whose value is that of a variable of your environment
    #[arg(long, value_name = "KEY=VARIABLE")]
    header_env: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
struct ProxyArgs {
    /// How long a request may wait while it is down; 0s for not at all
    #[arg(long, value_name = "TIME", default_value = "45s", value_parser = duration)]
    hold: Duration,
    /// Give each session a process of its own, with stdio
    #[arg(long)]
    isolate: bool,
    /// A tool that may be called twice: its calls are repeated if it stops in between
    #[arg(long, value_name = "TOOL")]
    replay: Vec<String>,
    /// Let clients reach it on a port of its own too
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Do not tell in the first result after a restart that its memory was lost
    #[arg(long)]
    quiet_restart: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Restarts")]
struct RestartArgs {
    /// Restarts in a row before it is given up
    #[arg(long, value_name = "N", default_value = "10")]
    restart_max: u32,
    /// Delay before the second restart; the first is immediate, the others double it
    #[arg(long, value_name = "TIME", default_value = "5s",
          value_parser = duration)]
    restart_initial: Duration,
    /// The longest delay
    #[arg(long, value_name = "TIME", default_value = "60s",
          value_parser = duration)]
    restart_cap: Duration,
    /// How long it must have been up for its next end to count as a first one
    #[arg(long, value_name = "TIME", default_value = "30s",
          value_parser = duration)]
    stable_after: Duration,
    /// From when on that is counted
    #[arg(long, value_enum, default_value = "ready")]
    stable_from: StableFromName,
    /// Never start it again
    #[arg(long, conflicts_with = "restart_max")]
    no_restart: bool,
    /// What to do when somebody else stops it; Podman does not tell that from an exit
    #[arg(long, value_enum, default_value = "restart")]
    on_stop: OnStopName,
    /// How long it may take to answer `initialize`
    #[arg(long, value_name = "TIME", default_value = "2m",
          value_parser = duration)]
    start_timeout: Duration,
    /// How long it may take to end before it is killed
    #[arg(long, value_name = "TIME", default_value = "10s",
          value_parser = duration)]
    stop_timeout: Duration,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum EngineName {
    Docker,
    Podman,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StableFromName {
    /// From its answer to `initialize`
    Ready,
    /// From its start
    Start,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnStopName {
    /// Start it again
    Restart,
    /// Leave it stopped
    Respect,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let files = args.env_file.iter().map(|file| read_env_file(file)).collect::<Result<_, _>>()?;
    let mut spec = spec_from(&args, &ctx.caller, files)?;
    engine_host::settle(&mut spec, &ctx.caller, &Disk)?;
    let name = spec.name.clone();
    let specs = [spec.clone()];
    let request =
        Request::Run { spec: Box::new(spec), replace: args.replace, around: Around::default() };
    let described: Described = ask_with_images(ctx, "asking the daemon", &request, &specs).await?;
    let accepted = described.server;
    if let Some(caveat) = caveat(&accepted, args.restart.on_stop) {
        ctx.ui.say(format!("{} {caveat}", paint::odd("warning:")));
    }
    let (server, settled) = if args.wait {
        (wait(&name, &accepted, ctx).await?, true)
    } else {
        watch(&name, accepted, ctx).await?
    };
    let verdict = verdict(&server, settled);
    if args.json {
        ctx.ui.answer(true, &server, |_| String::new())?;
    }
    match verdict {
        Ok(text) if !args.json => ctx.ui.print(text),
        Ok(_) => Ok(()),
        Err(text) => {
            let text = text + &last_words(&server, ctx).await;
            let help = format!(
                "`mainstay why {name}` tells more; it stays registered: correct it with \
                 `mainstay run {name} --replace ...`, or `mainstay rm {name}`"
            );
            Err(CliError::failed(text, help))
        }
    }
}

/// What was asked for and cannot be had from the engine that was found.
fn caveat(server: &ServerInfo, on_stop: OnStopName) -> Option<String> {
    let (name, engine) = (&server.name, server.engine.as_str());
    match on_stop {
        OnStopName::Respect if engine == EngineKind::Podman.as_str() => Some(format!(
            "Podman does not tell a stop from an exit: {name} is started again after both"
        )),
        OnStopName::Respect | OnStopName::Restart => None,
    }
}

/// Waits until the server is ready or given up, and tells what is in the way meanwhile.
async fn wait(
    name: &ServerName,
    accepted: &ServerInfo,
    ctx: &mut Context,
) -> Result<ServerInfo, CliError> {
    let remote = Remote::of(ctx)?;
    let request = Request::Settle { name: name.clone(), any_end: false };
    let mut progress = Progress::since(accepted);
    let spinner = ctx.ui.spinner(&format!("waiting for {name}"));
    let each = |servers: Vec<ServerInfo>| {
        for line in servers.iter().filter_map(|server| progress.line(server)) {
            spinner.suspend(|| ctx.ui.say(line));
        }
        Ok(())
    };
    let settled = remote.stream(&request, each).await;
    spinner.finish_and_clear();
    settled
}

/// Looks at the first moments of the server, and tells whether they have decided anything.
async fn watch(
    name: &ServerName,
    accepted: ServerInfo,
    ctx: &Context,
) -> Result<(ServerInfo, bool), CliError> {
    let request = Request::Settle { name: name.clone(), any_end: true };
    let waiting = format!("waiting for {name}");
    match tokio::time::timeout(WATCH, ctx.ask(&waiting, &request)).await {
        Ok(server) => Ok((server?, true)),
        Err(_) => Ok((accepted, false)),
    }
}

/// What became of a server that was just run: how it is, or how it failed.
fn verdict(server: &ServerInfo, settled: bool) -> Result<String, String> {
    let ServerInfo { name, status, reason, .. } = server;
    match status {
        Status::Running | Status::Unhealthy => {
            let container = server.container_id.as_deref().map(short_id);
            let place = match (container, server.pid) {
                (Some(id), _) => format!(" (container {id})"),
                (None, Some(pid)) => format!(" (pid {pid})"),
                (None, None) => String::new(),
            };
            Ok(format!("{name} is {}{place}", paint::status(*status)(status.as_str())))
        }
        Status::Error => Err(format!("{name} is down: {}", tame(reason))),
        Status::Starting if settled => Err(not_up(server)),
        Status::Waiting if settled => Err(format!("{name} is waiting: {}", tame(reason))),
        Status::Starting
        | Status::Waiting
        | Status::Stopping
        | Status::Stopped
        | Status::Removing => {
            let status = paint::status(*status)(status.as_str());
            Ok(format!("{name} is {status}; `mainstay status {name}` tells more"))
        }
    }
}

/// How a server failed that is started again.
fn not_up(server: &ServerInfo) -> String {
    let ServerInfo { name, reason, last_exit, .. } = server;
    let Some(exit) = last_exit.as_ref().filter(|exit| exit.cause == "exited") else {
        return format!("{name} is not up: {}", tame(reason));
    };
    let then = match reason.strip_prefix(&format!("{}, ", exit.detail)) {
        Some(then) if then.starts_with("restart ") => format!(", {then}"),
        Some(_) | None => " and is being restarted".to_owned(),
    };
    format!("{name} ended at once ({}){then}", tame(&exit.detail))
}

/// What a server that failed wrote last, if it got so far, to go on with after how it failed.
async fn last_words(server: &ServerInfo, ctx: &Context) -> String {
    let ran = server.last_exit.as_ref().is_some_and(|exit| exit.cause != "cannot-start");
    if !ran {
        return String::new();
    }
    // Nobody who is told of a failure needs to hear that there is no more to be had.
    let report = why::ask(server.name.clone(), ctx).await.ok();
    report.map(|report| in_lines(&report.stderr)).unwrap_or_default()
}

fn in_lines(stderr: &[String]) -> String {
    let last = &stderr[stderr.len().saturating_sub(LAST_LINES)..];
    if last.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = last.iter().map(|line| format!("  {}", tame(line))).collect();
    format!("\nits last words:\n{}", lines.join("\n"))
}

fn read_env_file(file: &Path) -> Result<(PathBuf, String), CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CliError::usage(format!("`{}`: {error}", file.display())))?;
    Ok((file.to_owned(), text))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use mainstay_api::LastExit;

    use super::super::ls::tests::server;
    use super::*;

    #[test]
    fn only_docker_tells_that_somebody_stopped_a_container() {
        let on = |engine: &str, on_stop| {
            let mut time = server("time", Status::Starting);
            engine.clone_into(&mut time.engine);
            caveat(&time, on_stop)
        };
        let told = on("podman", OnStopName::Respect).unwrap();
        assert_eq!(
            told,
            "Podman does not tell a stop from an exit: time is started again after both"
        );
        assert_eq!(on("podman", OnStopName::Restart), None);
        assert_eq!(on("docker", OnStopName::Respect), None);
    }

    #[test]
    fn the_first_moments_decide_the_verdict() {
        let mut time = server("time", Status::Running);
        time.pid = Some(4_711);
        let plain = |result: Result<String, String>| {
            result.map(|text| anstream::adapter::strip_str(&text).to_string())
        };
        assert_eq!(plain(verdict(&time, true)), Ok("time is running (pid 4711)".to_owned()));
        time.container_id = Some("3f2a9c01b7d4e5f60718".to_owned());
        let contained = "time is running (container 3f2a9c01b7d4)".to_owned();
        assert_eq!(plain(verdict(&time, true)), Ok(contained));
        time.status = Status::Starting;
        time.reason = "starting".to_owned();
        assert_eq!(
            plain(verdict(&time, false)),
            Ok("time is starting; `mainstay status time` tells more".to_owned())
        );
        time.status = Status::Error;
        time.reason = "cannot start: no such program".to_owned();
        assert_eq!(
            plain(verdict(&time, true)),
            Err("time is down: cannot start: no such program".to_owned())
        );
    }
    #[test]
    fn a_server_that_is_started_again_is_told_as_that() {
        let check = |status, cause: &str, reason: &str, expected: &str| {
            let mut hot = server("hot", status);
            hot.reason = reason.to_owned();
            hot.last_exit = Some(LastExit {
                cause: cause.to_owned(),
                detail: "exited 0 after 85 ms".to_owned(),
                code: Some(0),
                signal: None,
                oom: false,
                at: Timestamp::UNIX_EPOCH,
            });
            assert_eq!(verdict(&hot, true), Err(expected.to_owned()));
        };
        let restarted = "hot ended at once (exited 0 after 85 ms) and is being restarted";
        check(Status::Starting, "exited", "exited 0 after 85 ms, restarting", restarted);
        check(Status::Starting, "exited", "it has not answered `initialize` yet", restarted);
        check(
            Status::Starting,
            "exited",
            "exited 0 after 85 ms, restart 2 of 10 in 5 s",
            "hot ended at once (exited 0 after 85 ms), restart 2 of 10 in 5 s",
        );
        check(Status::Starting, "hung", "gave no answer", "hot is not up: gave no answer");
        check(
            Status::Waiting,
            "exited",
            "its engine is away",
            "hot is waiting: its engine is away",
        );
    }

    #[test]
    fn only_the_last_lines_are_shown() {
        assert_eq!(in_lines(&[]), "");
        let lines: Vec<String> = (1..=7).map(|n| format!("line {n}\u{1b}[0m")).collect();
        insta::assert_snapshot!(format!("time is down{}", in_lines(&lines)), @"
        time is down
        its last words:
          line 3
          line 4
          line 5
          line 6
          line 7
        ");
    }
}
