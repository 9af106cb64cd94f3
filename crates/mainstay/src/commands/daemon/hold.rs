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
use crate::launch::{RUN_MARK, Word};

/// Becomes the holder of an instance, which starts the daemon and starts it again when it dies; or, at
/// a holder's word, that daemon. The daemon brings its own runtime, so this must not be called from one.
pub(crate) fn run_daemon(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    if ctx.caller.has(RUN_MARK) {
        return Err(CliError::Supervised);
    }
    mainstay_hold::descriptors::raise_limit();
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
    hold(args, ctx, || ()).map_err(failed)
}

/// After [`TAKE_OVER`]: the daemon shares the standard output and error of the holder.
pub(crate) const FOREGROUND: &str = "--foreground";

/// Why there is no daemon.
enum Unheld {
    /// There is one already.
    Taken(ApiError),
    /// It cannot start, or does not stay.
    Failed(ApiError),
}

fn failed((Unheld::Taken(error) | Unheld::Failed(error)): Unheld) -> CliError {
    CliError::Failed { message: error.message, help: error.help }
}

/// Holds for a launcher, who is told by one line how the start went. After that line, nobody reads what
/// we write.
fn hold_for_launcher(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    let announce = || {
        let _launcher_gone = Word::Ready.say(&mut io::stdout()).and_then(|()| let_go());
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

fn hold(args: &RunArgs, ctx: &Context, announce: impl FnOnce()) -> Result<(), Unheld> {
    let told = |error: &CliError| {
        Unheld::Failed(ApiError {
            kind: ErrorKind::Invalid,
            message: error.to_string(),
            help: error.advice(),
        })
    };
    // What is wrong with the settings is better said before anything is started.
    let config = config(ctx, args.foreground()).map_err(|error| told(&error))?;
    let instance = config.instance;
    mainstay_daemon::prepare(&instance).map_err(|error| Unheld::Failed(word_of(&error)))?;
    clear_leftovers(&config.exe, &instance.state_dir);
    let ready = || {
        mainstay_daemon::record(&instance, args.service);
        // A mark that stays would only keep `connect` from starting a daemon later.
        let _disk_is_full = instance.clear_stopped();
        announce();
    };
    let ours = holder_config(&instance, &config.exe, args.foreground());
    let ended =
        if args.service { holder::run_when_free(ours, ready) } else { holder::run(ours, ready) };
    ended.map_err(|error| unheld(error, &instance))
}

fn unheld(error: HoldError, instance: &Instance) -> Unheld {
    match error {
        HoldError::Taken { pid } => {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            let state = instance.state_dir.display();
            let message = format!("a daemon is running already{pid} for `{state}`");
            let help = "`mainstay daemon status` tells about it, `mainstay daemon stop` ends it";
            Unheld::Taken(ApiError::new(ErrorKind::Unavailable, message).with_help(help))
        }
        HoldError::Lock(source) if source.kind() == io::ErrorKind::AddrInUse => {
            unheld(HoldError::Taken { pid: None }, instance)
        }
        HoldError::Lock(source) => {
            let path = instance.state_dir.clone();
            Unheld::Failed(word_of(&RunError::Directory { path, source }))
        }
        HoldError::NotStarted { error } => Unheld::Failed(read_word(&error)),
        error @ HoldError::Io { .. } => Unheld::Failed(
            ApiError::new(ErrorKind::Internal, error.to_string())
                .with_help(format!("see its log: {}", instance.daemon_log().display())),
        ),
    }
}

/// Runs the holder that replaces a dead one, or continues this holder after a re-exec. The settings are the
/// daemon's business: a config file that cannot be read must not end a holder.
pub(crate) fn take_over(ctx: &Context, foreground: bool) -> Result<(), CliError> {
    mainstay_hold::descriptors::raise_limit();
    let instance = ctx.instance()?;
    holder::take_over(holder_config(&instance, &ctx.exe, foreground))
        .map_err(|error| failed(unheld(error, &instance)))
}

fn holder_config(instance: &Instance, exe: &Path, foreground: bool) -> holder::Config {
    let to_stderr = foreground.then_some("--to-stderr");
    let words = ["daemon", "run", "--held"].into_iter().chain(to_stderr);
    holder::Config {
        exe: exe.to_owned(),
        args: words.map(OsString::from).collect(),
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

/// Serves as the daemon of the holder at our standard input.
fn serve(args: &RunArgs, ctx: &Context) -> Result<(), CliError> {
    let holder =
        CliError::io("this is for the holder to start, whose socket is its standard input");
    let (held, orders) = HolderClient::connect().map_err(holder)?;
    let served = match config(ctx, args.to_stderr) {
        Ok(config) => run_prepared(config, &held, orders).map_err(|error| word_of(&error)),
        // Whoever reads it may have one line for it.
        Err(error) => {
            Err(ApiError { kind: ErrorKind::Invalid, message: error.line(), help: error.advice() })
        }
    };
    served.map_err(|error| {
        let word = serde_json::to_vec(&error).unwrap_or_default();
        let _holder_gone = held.failed(&word);
        CliError::Answered(Exit::Failed)
    })
}

fn run_prepared(config: Config, held: &HolderClient, orders: HolderEvents) -> Result<(), RunError> {
    mainstay_daemon::prepare(&config.instance)?;
    mainstay_daemon::record(&config.instance, config.instance.is_managed());
    mainstay_daemon::run(config, held.clone(), orders)
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

/// Points the three standard streams at nothing, so that no terminal or pipe is kept open.
fn let_go() -> io::Result<()> {
    let null = mainstay_hold::descriptors::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
