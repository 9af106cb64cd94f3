//! `mainstay daemon`

mod hold;

use std::net::SocketAddr;

use clap::Subcommand;
use jiff::Timestamp;
use mainstay_api::{DaemonInfo, Request};
use mainstay_hold::limits::STOP_COMMAND;
use serde::de::IgnoredAny;

use super::handover::hand_over;
use crate::context::{Context, now};
use crate::error::{CliError, Exit};
use crate::failure_report::FailureReport;
use crate::remote::{ProcessHandle, Remote, warn_of_version};
use crate::text::{ago, facts};
use crate::times::{Zone, ZoneArgs};

pub(crate) use self::hold::{FOREGROUND, run_daemon, take_over};

/// Run, inspect, replace or stop the daemon
///
/// It is started on demand by every command that needs it; `MAINSTAY_NO_START=1` forbids that. It
/// listens for MCP clients at `MAINSTAY_LISTEN`, or at `listen` in its config file, or at
/// 127.0.0.1:7433. The config file is `~/.config/mainstay/config.toml`, or `config.toml` in
/// `MAINSTAY_HOME` if that is set.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    Run(RunArgs),
    Start(StartArgs),
    Status(StatusArgs),
    Stop(StopArgs),
    Reload(ReloadArgs),
}

/// Run the daemon in the foreground, with its log on standard error
///
/// Ctrl-C and other signals stop the daemon but not its servers, which the next daemon supervises;
/// `mainstay daemon stop` stops both.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
pub(crate) struct RunArgs {
    /// Wait for a daemon that is running already to end, instead of failing: for service managers
    #[arg(long)]
    service: bool,
    /// Begin a new session, and report the start on standard output
    #[arg(long, hide = true)]
    detached: bool,
    /// Be the daemon of the holder at standard input
    #[arg(long, hide = true)]
    held: bool,
    /// Log to standard error
    #[arg(long, hide = true)]
    to_stderr: bool,
}

impl RunArgs {
    fn foreground(&self) -> bool {
        !self.detached
    }
}

/// Start the daemon and its servers in the background, after `mainstay daemon stop`
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {}

/// Show the daemon, without starting it
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    zone: ZoneArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Stop the daemon and its servers
///
/// The servers end with it. It stays stopped, even if clients connect, until `mainstay daemon start`, `run`, `start`,
/// `restart` or `import`, or until you log in (with `mainstay service install`) or reboot.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Leave the servers running, for the next daemon to take over
    #[arg(long)]
    keep_servers: bool,
}

/// Replace the running daemon by a new one
///
/// The new daemon runs the program that is on disk now, with the current settings. No connection is refused
/// meanwhile, no session ends and no server is restarted. If it fails to start, the old one keeps running.
///
/// The new daemon keeps the environment of the old one: a `MAINSTAY_LISTEN` that you set for this command has no
/// effect. To change the environment: `mainstay daemon stop --keep-servers`, then `mainstay daemon start`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    match args.action {
        Action::Run(args) => run_daemon(&args, ctx),
        Action::Start(StartArgs {}) => start(ctx).await,
        Action::Status(args) => status(&args, ctx).await,
        Action::Stop(args) => stop(&args, ctx).await,
        Action::Reload(ReloadArgs {}) => reload(ctx).await,
    }
}

async fn status(args: &StatusArgs, ctx: &mut Context) -> Result<(), CliError> {
    let remote = Remote::of(ctx)?;
    let Some(daemon) = remote.inspect().await? else {
        let absence = absence(remote.is_stopped_by_user(), remote.failure_report().as_ref());
        ctx.ui.answer(args.json, &None::<DaemonInfo>, |_| absence)?;
        return Err(CliError::Answered(Exit::Unreachable));
    };
    let (now, zone) = (now(), args.zone.zone());
    ctx.ui.answer(args.json, &daemon, |daemon| page(daemon, now, &zone))?;
    warn_of_version(&daemon);
    Ok(())
}

fn absence(stopped_by_user: bool, failure_report: Option<&FailureReport>) -> String {
    match failure_report {
        _ if stopped_by_user => {
            "stopped by `mainstay daemon stop`; `mainstay daemon start` starts it".to_owned()
        }
        Some(report) => format!("not running\n{}", report.summary()),
        None => "not running".to_owned(),
    }
}

fn page(daemon: &DaemonInfo, now: Timestamp, zone: &Zone) -> String {
    let started = format!("{}, {}", zone.full(daemon.started_at), ago(daemon.started_at, now));
    let lines = [
        ("daemon", "running".to_owned()),
        ("pid", pids(daemon)),
        ("version", daemon.version.clone()),
        ("started", started),
        ("servers", format!("{}, {} running", daemon.servers, daemon.running)),
        ("listens at", addresses(daemon)),
        ("sessions", daemon.sessions.to_string()),
        ("state", daemon.state_dir.display().to_string()),
        ("socket", daemon.socket.display().to_string()),
        ("log", daemon.log.display().to_string()),
        ("instance", daemon.instance.clone()),
    ];
    let failed = daemon.replacement_failed.as_deref().map(|why| {
        let report = FailureReport::parse(why);
        ("last update", format!("rolled back: {}", report.line().unwrap_or_default()))
    });
    facts(lines.into_iter().chain(failed))
}

fn is_loopback(address: &str) -> bool {
    address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
}

/// All addresses, each with its problem, if any.
fn addresses(daemon: &DaemonInfo) -> String {
    let problem = daemon.listen_problem.clone().unwrap_or_else(|| "-".to_owned());
    let first = daemon.listen.clone().unwrap_or(problem);
    let more = daemon.more_addresses.iter().map(|more| match &more.problem {
        None if is_loopback(&more.address) => more.address.clone(),
        None => format!("{} (with a token)", more.address),
        Some(problem) => problem.clone(),
    });
    [first].into_iter().chain(more).collect::<Vec<_>>().join("; ")
}

fn pids(daemon: &DaemonInfo) -> String {
    match daemon.holder {
        Some(holder) => format!("{}, held by {holder}", daemon.pid),
        None => daemon.pid.to_string(),
    }
}

async fn start(ctx: &mut Context) -> Result<(), CliError> {
    let remote = Remote::of(ctx)?;
    let started = ctx.ui.waiting("starting the daemon", remote.start()).await?;
    ctx.ui.message(if started { "the daemon is started" } else { "the daemon is already running" });
    Ok(())
}

async fn stop(args: &StopArgs, ctx: &mut Context) -> Result<(), CliError> {
    let remote = Remote::of(ctx)?;
    // Before the stop, so that no client starts another daemon right after it.
    let marked = remote.mark_stopped();
    let stopped = match ctx.ui.waiting("stopping", end(&remote, args.keep_servers)).await {
        Err(CliError::Failing { .. } | CliError::NoHello { .. }) => {
            ctx.ui.waiting("stopping", end_holder(&remote)).await?;
            ctx.ui.message(
                "the daemon did not respond; it is stopped, and its servers keep running; fix what \
                 `mainstay doctor` reports, then `mainstay daemon stop` stops them",
            );
            return marked;
        }
        stopped => stopped.inspect_err(|_| remote.clear_stopped())?,
    };
    match (stopped, args.keep_servers) {
        (false, _) => ctx.ui.message("no daemon is running"),
        (true, false) => ctx.ui.message("the daemon and its servers are stopped"),
        (true, true) => ctx.ui.message("the daemon is stopped; its servers keep running"),
    }
    // A daemon that came up during the stop has removed the mark.
    marked.and(remote.mark_stopped())
}

/// Stops the daemon. If there is none, but servers of the last one are running, a daemon is started to stop them.
async fn end(remote: &Remote, keep_servers: bool) -> Result<bool, CliError> {
    let ended = shut_down(remote, keep_servers).await?;
    if ended || keep_servers || !remote.has_running_servers() {
        return Ok(ended);
    }
    remote.start().await?;
    shut_down(remote, keep_servers).await
}

pub(super) async fn reload(ctx: &mut Context) -> Result<(), CliError> {
    let remote = Remote::of(ctx)?;
    let Some(old) = remote.inspect().await? else {
        if remote.is_stopped_by_user() {
            return Err(CliError::Stopped);
        }
        ctx.ui.message("no daemon is running");
        return Err(CliError::Answered(Exit::Unreachable));
    };
    let succeeded = ctx.ui.waiting("reloading", hand_over(&remote, &old, None, None)).await;
    let new = succeeded
        .map_err(|error| CliError::Failed { message: error.to_string(), help: error.help(&old) })?;
    let versions = if old.version == new.version {
        new.version
    } else {
        format!("{}, replaces {}", new.version, old.version)
    };
    ctx.ui.message(format!("a new daemon serves (pid {}, version {versions})", new.pid));
    Ok(())
}

/// Stops a holder whose daemon does not respond, by a signal.
async fn end_holder(remote: &Remote) -> Result<(), CliError> {
    let Some(holder) = remote.holder() else { return Ok(()) };
    let Some(process) = ProcessHandle::open(holder) else { return Ok(()) };
    process.terminate();
    if process.wait_exit(STOP_COMMAND).await {
        return Ok(());
    }
    let message =
        format!("Mainstay (pid {holder}) has not stopped within {} s", STOP_COMMAND.as_secs());
    Err(CliError::failed(message, format!("`kill -9 {holder}` kills it")))
}

/// Stops the daemon and waits until its process has exited, so that the state directory is free. False if there was none.
pub(super) async fn shut_down(remote: &Remote, keep_servers: bool) -> Result<bool, CliError> {
    let Some(daemon) = remote.inspect().await? else { return Ok(false) };
    // The holder ends after its daemon.
    let ending = ProcessHandle::open(daemon.holder.unwrap_or(daemon.pid));
    let stopping: Option<IgnoredAny> =
        remote.call_if_running(&Request::Shutdown { keep_servers }).await?;
    match ending {
        Some(ending) if stopping.is_some() && !ending.wait_exit(STOP_COMMAND).await => {
            Err(CliError::failed(
                format!(
                    "the daemon (pid {}) has not stopped within {} s",
                    daemon.pid,
                    STOP_COMMAND.as_secs()
                ),
                format!("see its log: {}", daemon.log.display()),
            ))
        }
        Some(_) | None => Ok(true),
    }
}
