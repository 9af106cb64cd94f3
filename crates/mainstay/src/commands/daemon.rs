//! `mainstay daemon`

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use mainstay_api::{ApiError, DaemonInfo, ErrorKind, Request};
use mainstay_daemon::{Config, Held, RunError};
use mainstay_hold::holder::{self, First, HoldError};
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep};

use crate::context::{Context, now};
use crate::error::{CliError, Exit};
use crate::launch::{RUN_MARK, Word};
use crate::remote::{Ending, Remote};
use crate::text::{Cell, ago, columns, date_and_clock};
use crate::ui::paint;

/// A daemon that ends its servers may take as long as the slowest of them; this is past all reason.
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// How long another daemon may take to come up, a return to the old program included.
const SUCCESSION: Duration = Duration::from_secs(30);

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
    Reload(ReloadArgs),
}

/// Run the daemon in the foreground, with its log on standard error
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Wait for a daemon that is running already to end, instead of failing: for service managers
    #[arg(long)]
    service: bool,
    /// Begin a session of its own, and say on standard output how the start went
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

/// Put a new daemon in the place of the running one
///
/// It runs the program that is on disk now, with the settings as they are now. No connection is refused
/// meanwhile, no session ends and no server is restarted. If it does not come up, the old one goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    match args.action {
        Action::Run(args) => run_daemon(&args, ctx),
        Action::Status(args) => status(&args, ctx).await,
        Action::Stop(args) => stop(&args, ctx).await,
        Action::Reload(ReloadArgs {}) => reload(ctx).await,
    }
}

/// Becomes the holder of an instance, which starts the daemon and starts it again when it dies; or, at
/// a holder's word, that daemon. The daemon brings its own runtime, so this must not be called from one.
pub(crate) fn run_daemon(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    if ctx.caller.has(RUN_MARK) {
        return Err(CliError::Supervised);
    }
    if args.held {
        return serve(args, ctx);
    }
    if args.detached {
        mainstay_hold::descriptors::close_inherited()
            .map_err(CliError::io("what was inherited cannot be closed"))?;
        // Fails only for the leader of a group, who has what we want already.
        let _leader = rustix::process::setsid();
        return hold_for_launcher(args, ctx);
    }
    match hold(args, ctx, |_| ()) {
        Ok(()) => Ok(()),
        Err(Unheld::Taken(error) | Unheld::Failed(error)) => {
            Err(CliError::Failed { message: error.message, help: error.help })
        }
    }
}

/// Why there is no daemon.
enum Unheld {
    /// There is one already.
    Taken(ApiError),
    /// It cannot start, or does not stay.
    Failed(ApiError),
}

/// Holds for a launcher, who is told by one line how the start went. After that line, nobody reads what
/// we write.
fn hold_for_launcher(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    let announce = |first: &First| {
        if let First::Ready = first {
            let _launcher_gone = Word::Ready.say(&mut io::stdout()).and_then(|()| let_go());
        }
    };
    let word = match hold(args, ctx, announce) {
        Ok(()) => return Ok(()),
        Err(Unheld::Taken(_)) => Word::Taken,
        Err(Unheld::Failed(error)) => Word::Failed(error),
    };
    // Too late for a daemon that was ready once; then nobody reads it.
    let _launcher_gone = word.say(&mut io::stdout());
    Err(CliError::Answered(Exit::Failed))
}

fn hold(args: &RunArgs, ctx: &Context, announce: impl FnOnce(&First)) -> Result<(), Unheld> {
    let told = |error: &CliError| {
        Unheld::Failed(ApiError {
            kind: ErrorKind::Invalid,
            message: error.to_string(),
            help: error.advice(),
        })
    };
    // What is wrong with the settings is better said before anything is started.
    let config = config(ctx, args.foreground()).map_err(|error| told(&error))?;
    mainstay_daemon::prepare(&config.instance).map_err(|error| Unheld::Failed(word_of(&error)))?;
    let mut word = None;
    let tell = |first| {
        announce(&first);
        if let First::Failed(text) = first {
            word = Some(text);
        }
    };
    let ours = holder_config(args, &config);
    let ended =
        if args.service { holder::run_when_free(ours, tell) } else { holder::run(ours, tell) };
    if let Some(word) = word {
        return Err(Unheld::Failed(read_word(&word)));
    }
    ended.map_err(|error| match error {
        HoldError::Taken { pid } => {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            let state = config.instance.state_dir.display();
            let message = format!("a daemon is running already{pid} for `{state}`");
            let help = "`mainstay daemon status` tells about it, `mainstay daemon stop` ends it";
            Unheld::Taken(ApiError::new(ErrorKind::Unavailable, message).with_help(help))
        }
        error => {
            Unheld::Failed(ApiError::new(ErrorKind::Internal, error.to_string()).with_help(
                format!("its log tells more: {}", config.instance.daemon_log().display()),
            ))
        }
    })
}

/// Becomes a holder in place of one that died, for the daemon at our standard input.
pub(crate) fn take_over(ctx: &Context) -> Result<(), CliError> {
    let args = RunArgs { detached: true, service: false, held: false, to_stderr: false };
    let config = config(ctx, false)?;
    holder::take_over(holder_config(&args, &config))
        .map_err(|error| CliError::failed(error.to_string(), "the daemon goes on without it"))
}

fn holder_config(args: &RunArgs, config: &Config) -> holder::Config {
    let to_stderr = args.foreground().then_some("--to-stderr");
    let words = ["daemon", "run", "--held"].into_iter().chain(to_stderr);
    holder::Config {
        exe: config.exe.clone(),
        args: words.map(OsString::from).collect(),
        state_dir: config.instance.state_dir.clone(),
        run_dir: config.instance.run_dir.clone(),
        foreground: args.foreground(),
    }
}

/// Serves as the daemon of the holder at our standard input.
fn serve(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    let holder =
        CliError::io("this is for the holder to start, whose socket is its standard input");
    let socket = rustix::io::dup(rustix::stdio::stdin()).map_err(io::Error::from);
    let (held, orders) = socket.and_then(Held::take_up).map_err(holder)?;
    let served = match config(ctx, args.to_stderr) {
        Ok(config) => {
            mainstay_daemon::run(config, held.clone(), orders).map_err(|error| word_of(&error))
        }
        Err(error) => Err(ApiError {
            kind: ErrorKind::Invalid,
            message: error.to_string(),
            help: error.advice(),
        }),
    };
    served.map_err(|error| {
        let word = serde_json::to_vec(&error).unwrap_or_default();
        let _holder_gone = held.failed(&word);
        CliError::Answered(Exit::Failed)
    })
}

fn word_of(error: &RunError) -> ApiError {
    ApiError { kind: ErrorKind::Internal, message: error.to_string(), help: error.help() }
}

/// What a daemon that could not start left: its own error, or the last thing it wrote.
fn read_word(word: &[u8]) -> ApiError {
    serde_json::from_slice(word).unwrap_or_else(|_| {
        let words = String::from_utf8_lossy(word);
        ApiError::new(ErrorKind::Internal, format!("it ended: {}", words.trim()))
    })
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
        ("pid", pids(daemon)),
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

fn pids(daemon: &DaemonInfo) -> String {
    match daemon.holder {
        Some(holder) => format!("{}, held by {holder}", daemon.pid),
        None => daemon.pid.to_string(),
    }
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

async fn reload(ctx: &mut Context) -> Result<(), CliError> {
    let remote = Remote::of(ctx)?;
    let Some(old) = remote.inspect().await? else {
        ctx.ui.say("no daemon is running");
        return Err(CliError::Answered(Exit::Unreachable));
    };
    let request = Request::Reload { exe: None, fallback: None };
    let new = ctx.ui.waiting("reloading", succeed(&remote, &old, &request)).await?;
    let versions = match old.version == new.version {
        true => new.version,
        false => format!("{} in place of {}", new.version, old.version),
    };
    ctx.ui.say(format!("a new daemon serves (pid {}, version {versions})", new.pid));
    Ok(())
}

/// Has another daemon take the place of this one, and waits until it serves.
pub(super) async fn succeed(
    remote: &Remote,
    old: &DaemonInfo,
    request: &Request,
) -> Result<DaemonInfo, CliError> {
    let Some(connection) = remote.probe().await? else {
        return Err(CliError::failed("the daemon is gone", "`mainstay ls` starts it again"));
    };
    let _null: IgnoredAny = remote.finish(connection.call(request).await)?;
    let log = format!("its log tells more: {}", old.log.display());
    let deadline = Instant::now() + SUCCESSION;
    loop {
        let new: DaemonInfo = remote.call(&Request::Daemon).await?;
        match new.replacement_failed {
            // The old one still answers for a moment.
            _ if new.number <= old.number && Instant::now() < deadline => {
                sleep(Duration::from_millis(20)).await;
            }
            None if new.number > old.number => return Ok(new),
            Some(why) => {
                let message =
                    format!("the new daemon did not come up, so the old one is back: {why}");
                return Err(CliError::failed(message, log));
            }
            None => return Err(CliError::failed("no new daemon has come up", log)),
        }
    }
}

/// Ends the daemon and waits until its process is gone, so that whatever comes next finds the state
/// directory free. False if there was none.
pub(super) async fn shut_down(remote: &Remote, keep_servers: bool) -> Result<bool, CliError> {
    let Some(daemon) = remote.inspect().await? else { return Ok(false) };
    // The holder ends after its daemon.
    let ending = Ending::of(daemon.holder.unwrap_or(daemon.pid));
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
