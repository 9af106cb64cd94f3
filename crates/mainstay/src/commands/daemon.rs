//! `mainstay daemon`

use std::fs::OpenOptions;
use std::io;
use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use mainstay_api::{ApiError, DaemonInfo, ErrorKind, Request};
use mainstay_daemon::{Config, RunError};
use serde::de::IgnoredAny;

use crate::context::{Context, now};
use crate::error::{CliError, Exit};
use crate::launch::{RUN_MARK, Word};
use crate::remote::{Ending, Remote};
use crate::text::{Cell, ago, columns, date_and_clock};
use crate::ui::paint;

/// A daemon that ends its servers may take as long as the slowest of them; this is past all reason.
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// Run, inspect or stop the daemon
///
/// It is started on demand by every command that needs it; `MAINSTAY_NO_START=1` forbids that. It
/// listens for MCP clients at `MAINSTAY_LISTEN`, or where `listen` in its config file says, or at
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
    Status(StatusArgs),
    Stop(StopArgs),
}

/// Run the daemon in the foreground, with its log on standard error
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Begin a session of its own, and say on standard output how the start went
    #[arg(long, hide = true)]
    detached: bool,
}

/// Show the daemon, without starting it
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Stop the daemon and its servers
///
/// The servers end with it, and come back with the next daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Leave the servers running, for the next daemon to take over
    #[arg(long)]
    keep_servers: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    match args.action {
        Action::Run(args) => run_daemon(&args, ctx),
        Action::Status(args) => status(&args, ctx).await,
        Action::Stop(args) => stop(&args, ctx).await,
    }
}

/// Becomes the daemon, until it ends. It brings its own runtime, so this must not be called from one.
pub(crate) fn run_daemon(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    if ctx.caller.has(RUN_MARK) {
        return Err(CliError::Supervised);
    }
    if args.detached {
        mainstay_hold::descriptors::close_inherited()
            .map_err(CliError::io("what was inherited cannot be closed"))?;
        // Fails only for the leader of a group, who has what we want already.
        let _leader = rustix::process::setsid();
        return match config(ctx, false) {
            Ok(config) => run_detached(config),
            Err(error) => Err(tell_launcher(&Word::Failed(ApiError {
                kind: ErrorKind::Invalid,
                message: error.to_string(),
                help: error.advice(),
            }))),
        };
    }
    mainstay_daemon::run(config(ctx, true)?, || ())
        .map_err(|error| CliError::Failed { message: error.to_string(), help: error.help() })
}

fn config(ctx: &Context, foreground: bool) -> Result<Config, CliError> {
    let log_filter = ctx.caller.var("MAINSTAY_LOG").and_then(|value| value.to_str());
    let settings = ctx.settings()?.unwrap_or_default();
    Ok(Config {
        instance: ctx.instance()?,
        listen: ctx.caller.listen(&settings)?,
        foreground,
        env: ctx.caller.env.clone(),
        exe: ctx.exe.clone(),
        refresh: settings.refresh.unwrap_or_default(),
        log_filter: log_filter.map(str::to_owned),
    })
}

/// Runs the daemon for a launcher, who is told by one line how the start went. After that line,
/// nobody reads what we write.
fn run_detached(config: Config) -> Result<(), CliError> {
    let announce = || {
        let _launcher_gone = Word::Ready.say(&mut io::stdout()).and_then(|()| let_go());
    };
    let word = match mainstay_daemon::run(config, announce) {
        Ok(()) => return Ok(()),
        Err(RunError::AlreadyRunning { .. }) => Word::Taken,
        Err(error) => Word::Failed(ApiError {
            kind: ErrorKind::Internal,
            message: error.to_string(),
            help: error.help(),
        }),
    };
    Err(tell_launcher(&word))
}

/// The last word of a daemon that could not start.
fn tell_launcher(word: &Word) -> CliError {
    let _launcher_gone = word.say(&mut io::stdout());
    CliError::Answered(Exit::Failed)
}

/// Points the three standard streams at nothing, so that no terminal or pipe is kept open.
fn let_go() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

async fn status(args: &StatusArgs, ctx: &mut Context) -> Result<(), CliError> {
    let Some(daemon) = Remote::of(ctx)?.inspect().await? else {
        ctx.ui.answer(args.json, &None::<DaemonInfo>, |_| "not running".to_owned())?;
        return Err(CliError::Answered(Exit::Unreachable));
    };
    let now = now();
    ctx.ui.answer(args.json, &daemon, |daemon| page(daemon, now))
}

fn page(daemon: &DaemonInfo, now: Timestamp) -> String {
    let started =
        format!("{} UTC, {}", date_and_clock(daemon.started_at), ago(daemon.started_at, now));
    let lines = [
        ("daemon", "running".to_owned()),
        ("pid", daemon.pid.to_string()),
        ("version", daemon.version.clone()),
        ("started", started),
        ("servers", format!("{}, {} running", daemon.servers, daemon.running)),
        ("listens at", daemon.listen.clone().unwrap_or_else(|| "-".to_owned())),
        ("sessions", daemon.sessions.to_string()),
        ("state", daemon.state_dir.display().to_string()),
        ("socket", daemon.socket.display().to_string()),
        ("log", daemon.log.display().to_string()),
        ("instance", daemon.instance.clone()),
    ];
    let row = |(key, value): (&str, String)| {
        vec![Cell::painted(format!("{key}:"), paint::faint), Cell::new(value)]
    };
    columns(&lines.map(row))
}

async fn stop(args: &StopArgs, ctx: &mut Context) -> Result<(), CliError> {
    let remote = Remote::of(ctx)?;
    let stopped = ctx.ui.waiting("stopping", shut_down(&remote, args.keep_servers)).await?;
    match (stopped, args.keep_servers) {
        (false, _) => ctx.ui.say("no daemon is running"),
        (true, false) => ctx.ui.say("the daemon and its servers are stopped"),
        (true, true) => ctx.ui.say("the daemon is stopped; its servers run on"),
    }
    Ok(())
}

/// Ends the daemon and waits until its process is gone, so that whatever comes next finds the state
/// directory free. False if there was none.
pub(super) async fn shut_down(remote: &Remote, keep_servers: bool) -> Result<bool, CliError> {
    let Some(daemon) = remote.inspect().await? else { return Ok(false) };
    let ending = Ending::of(daemon.pid);
    let Some(connection) = remote.probe().await? else { return Ok(true) };
    let request = Request::Shutdown { keep_servers };
    let _null: IgnoredAny = remote.finish(connection.call(&request).await)?;
    match ending {
        Some(ending) if !ending.within(STOP_LIMIT).await => Err(CliError::failed(
            format!(
                "the daemon (pid {}) has not ended within {} s",
                daemon.pid,
                STOP_LIMIT.as_secs()
            ),
            format!("its log tells more: {}", daemon.log.display()),
        )),
        Some(_) | None => Ok(true),
    }
}
