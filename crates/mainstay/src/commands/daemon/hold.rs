//! `mainstay daemon run`: the holder, and the daemon that it starts.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

use mainstay_api::{ApiError, ErrorKind, Instance};
use mainstay_daemon::{AccessSettings, Config, HolderClient, HolderEvents, RunError, TAKE_OVER};
use mainstay_hold::holder::{self, HoldError};

use super::RunArgs;
use crate::commands::update::clear_leftovers;
use crate::context::Context;
use crate::error::{CliError, Exit};
use crate::launch::{RUN_VARIABLE, StartReport};

/// Becomes the holder of an instance, which starts the daemon and starts it again when it dies; or, with `--held`, that
/// daemon. The daemon has its own runtime, so this must not be called from one.
pub(crate) fn run_daemon(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    if ctx.caller.has(RUN_VARIABLE) {
        return Err(CliError::Supervised);
    }
    mainstay_hold::descriptors::raise_limit();
    if args.held {
        return serve(args, ctx);
    }
    if args.detached {
        mainstay_hold::descriptors::close_inherited()
            .map_err(CliError::io("inherited descriptors cannot be closed"))?;
        // Fails only for the leader of a process group, which needs no new session.
        let _leader = rustix::process::setsid();
        return hold_for_launcher(args, ctx);
    }
    hold(args, ctx, || ()).map_err(failed)
}

/// After [`TAKE_OVER`]: the daemon shares the standard output and error of the holder.
pub(crate) const FOREGROUND: &str = "--foreground";

/// Why no daemon was started.
enum NotRun {
    /// Another one is running.
    Taken(ApiError),
    /// It cannot start, or has failed.
    Failed(ApiError),
}

fn failed((NotRun::Taken(error) | NotRun::Failed(error)): NotRun) -> CliError {
    CliError::Failed { message: error.message, help: error.help }
}

/// Runs the holder for a launcher, which reads one line about the start. After that line, the output is not read.
fn hold_for_launcher(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    let announce = || {
        let _launcher_gone =
            StartReport::Ready.write_to(&mut io::stdout()).and_then(|()| close_stdio());
    };
    let report = match hold(args, ctx, announce) {
        Ok(()) => return Ok(()),
        Err(NotRun::Taken(_)) => StartReport::Taken,
        Err(NotRun::Failed(error)) => StartReport::Failed(error),
    };
    // It is not read if the daemon was ready once.
    let _launcher_gone = report.write_to(&mut io::stdout());
    Err(CliError::Answered(Exit::Failed))
}

fn hold(args: &RunArgs, ctx: &Context, announce: impl FnOnce()) -> Result<(), NotRun> {
    let invalid = |error: &CliError| {
        NotRun::Failed(ApiError {
            kind: ErrorKind::Invalid,
            message: error.to_string(),
            help: error.advice(),
        })
    };
    // Invalid settings are reported before anything is started.
    let config = config(ctx, args.foreground()).map_err(|error| invalid(&error))?;
    let instance = config.instance;
    mainstay_daemon::prepare(&instance).map_err(|error| NotRun::Failed(api_error(&error)))?;
    clear_leftovers(&config.exe, &instance.state_dir);
    let ready = || {
        mainstay_daemon::record(&instance, args.service);
        // A mark that stays would only keep `connect` from starting a daemon later.
        let _disk_is_full = instance.clear_stopped();
        announce();
    };
    let holder = holder_config(&instance, &config.exe, args.foreground());
    let ended = if args.service {
        holder::run_when_free(holder, ready)
    } else {
        holder::run(holder, ready)
    };
    ended.map_err(|error| not_run(error, &instance))
}

fn not_run(error: HoldError, instance: &Instance) -> NotRun {
    match error {
        HoldError::Taken { pid } => {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            let state = instance.state_dir.display();
            let message = format!("a daemon is already running{pid} for `{state}`");
            let help = "`mainstay daemon status` shows it, `mainstay daemon stop` stops it";
            NotRun::Taken(ApiError::new(ErrorKind::Unavailable, message).with_help(help))
        }
        HoldError::Lock(source) if source.kind() == io::ErrorKind::AddrInUse => {
            not_run(HoldError::Taken { pid: None }, instance)
        }
        HoldError::Lock(source) => {
            let path = instance.state_dir.clone();
            NotRun::Failed(api_error(&RunError::Directory { path, source }))
        }
        HoldError::NotStarted { error } => NotRun::Failed(read_error(&error)),
        error @ HoldError::Io { .. } => NotRun::Failed(
            ApiError::new(ErrorKind::Internal, error.to_string())
                .with_help(format!("see its log: {}", instance.daemon_log().display())),
        ),
    }
}

/// Runs the holder that replaces a dead one, or continues this holder after a re-exec. Only the daemon reads the
/// settings: an invalid config file must not end a holder.
pub(crate) fn take_over(ctx: &Context, foreground: bool) -> Result<(), CliError> {
    mainstay_hold::descriptors::raise_limit();
    let instance = ctx.instance()?;
    holder::take_over(holder_config(&instance, &ctx.exe, foreground))
        .map_err(|error| failed(not_run(error, &instance)))
}

fn holder_config(instance: &Instance, exe: &Path, foreground: bool) -> holder::Config {
    let to_stderr = foreground.then_some("--to-stderr");
    let args = ["daemon", "run", "--held"].into_iter().chain(to_stderr);
    holder::Config {
        exe: exe.to_owned(),
        args: args.map(OsString::from).collect(),
        state_dir: instance.state_dir.clone(),
        run_dir: instance.run_dir.clone(),
        foreground,
        reexec: |config, exe, daemon| {
            if !holder::runs(&daemon.to_string(), exe)? {
                return Err(io::Error::other("the program has been replaced meanwhile"));
            }
            let mut command = Command::new(exe);
            command.arg(TAKE_OVER).args(config.foreground.then_some(FOREGROUND));
            Ok(command)
        },
    }
}

/// Runs as the daemon of the holder at standard input.
fn serve(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    let not_started_by_holder =
        CliError::io("only the holder can start this, with its socket as standard input");
    let (holder, events) = HolderClient::connect().map_err(not_started_by_holder)?;
    let served = match config(ctx, args.to_stderr) {
        Ok(config) => run_prepared(config, &holder, events).map_err(|error| api_error(&error)),
        Err(error) => {
            Err(ApiError { kind: ErrorKind::Invalid, message: error.line(), help: error.advice() })
        }
    };
    served.map_err(|error| {
        let error = serde_json::to_vec(&error).unwrap_or_default();
        let _holder_gone = holder.failed(&error);
        CliError::Answered(Exit::Failed)
    })
}

fn run_prepared(
    config: Config,
    holder: &HolderClient,
    events: HolderEvents,
) -> Result<(), RunError> {
    mainstay_daemon::prepare(&config.instance)?;
    mainstay_daemon::record(&config.instance, config.instance.is_managed());
    mainstay_daemon::run(config, holder.clone(), events)
}

fn api_error(error: &RunError) -> ApiError {
    ApiError { kind: ErrorKind::Internal, message: error.to_string(), help: error.help() }
}

/// The error that a daemon reported or, if there is none, its last lines.
fn read_error(error: &[u8]) -> ApiError {
    serde_json::from_slice(error).unwrap_or_else(|_| {
        let output = String::from_utf8_lossy(error);
        ApiError::new(ErrorKind::Internal, format!("it ended: {}", output.trim()))
    })
}

fn config(ctx: &Context, foreground: bool) -> Result<Config, CliError> {
    let log_filter = ctx.caller.var("MAINSTAY_LOG").and_then(|value| value.to_str());
    let settings = ctx.settings()?.unwrap_or_default();
    let usual = AccessSettings::default();
    Ok(Config {
        instance: ctx.instance()?,
        listen: ctx.caller.listen(&settings)?,
        access: AccessSettings {
            admit_root: settings.admit_root.unwrap_or(usual.admit_root),
            allow_other_users: settings.allow_other_users.unwrap_or(usual.allow_other_users),
            allowed_hosts: settings.allowed_hosts,
        },
        foreground,
        env: ctx.caller.env.clone(),
        exe: ctx.exe.clone(),
        refresh: settings.refresh.unwrap_or_default(),
        log_filter: log_filter.map(str::to_owned),
    })
}

/// Points the three standard streams at `/dev/null`, so that no terminal or pipe is kept open.
fn close_stdio() -> io::Result<()> {
    let null = mainstay_hold::descriptors::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
