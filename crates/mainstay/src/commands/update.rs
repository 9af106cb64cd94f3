//! `mainstay update`: replaces this program by another version, whose daemon takes over.
//!
//! The steps: lock, check of the file, copy beside this program, trial run on a copy of the state, replacement (the old
//! program is kept), hand-over. Nothing changes before the replacement. After it, either the new daemon serves, or the
//! old program is restored and its daemon serves.

mod candidate;
mod installed;
mod lock;
mod trial;

use std::io;
use std::path::{Path, PathBuf};

use mainstay_api::{DaemonInfo, Request};
use mainstay_core::with_causes;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) use self::trial::{TRIAL, answer_trial_run};

use self::installed::Installed;
use self::lock::UpdateLock;
use super::handover::{HandoverError, hand_over};
use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;

/// This version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Part of the help if the update fails before the replacement.
const UNCHANGED: &str = "nothing was changed";

const NAME_THE_FILE: &str = "name the file of the new program, as it was downloaded and unpacked";

/// Replace this program by another version
///
/// The new program first opens a copy of your state. Then it replaces this program, which is kept as
/// `mainstay.previous`, and its daemon takes over: no connection is refused, no session ends and no server
/// is restarted. If the new daemon is not ready within 10 s, the update is rolled back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The new program
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    from: PathBuf,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let instance = ctx.instance()?;
    mainstay_daemon::prepare(&instance)
        .map_err(|error| CliError::Failed { message: error.to_string(), help: error.help() })?;
    let installed = Installed::find(&ctx.exe)?;
    let _locked = UpdateLock::take(&instance.state_dir, installed.directory())?;
    installed.clear_leftovers();
    let path = ctx.caller.absolute(&args.from)?;
    let candidate = candidate::open(&path, installed.file())?;
    let remote = Remote::of(ctx)?;
    let daemon = remote.inspect().await?;
    if let Some(other) = daemon.as_ref().and_then(|daemon| installed.other_program_of(daemon.pid)) {
        let (other, own) = (other.display(), installed.path().display());
        return Err(CliError::failed(
            format!("the daemon runs `{other}`, but this program is `{own}`"),
            format!("update that program: `{other}` update --from FILE"),
        ));
    }
    if installed.has_same_content(&candidate).map_err(unreadable(&path))? {
        ctx.ui.message(nothing_to_do(&installed, daemon.as_ref()));
        return Ok(());
    }
    let copy = installed.copy_in(&candidate)?;
    let trial = trial::run_trial(&copy, &path, &instance.state_dir);
    let new = ctx.ui.waiting("trying the new version", trial).await?;
    ctx.ui.message(format!("version {} can read the state of this instance", new.version));
    let _signals = ignore_signals().map_err(CliError::io("signals cannot be ignored"))?;
    installed.replace(copy)?;
    let Some(old) = daemon else {
        ctx.ui.message(updated(&installed, &new.version));
        ctx.ui.message("no daemon is running; the next command starts the new version");
        return Ok(());
    };
    let (program, previous) = (installed.path(), installed.previous());
    let handed_over = hand_over(&remote, &old, Some(program), Some(&previous));
    if let Err(why) = ctx.ui.waiting("handing over", handed_over).await {
        let restored = roll_back(&remote, &installed).await;
        return Err(not_updated(&new.version, &installed, &old, &why, restored));
    }
    ctx.ui.message(updated(&installed, &new.version));
    ctx.ui.message("if the new daemon dies within 30 s, the update is rolled back");
    ctx.ui.message(
        "running `mainstay connect` processes stay at the old version until their clients restart them",
    );
    Ok(())
}

/// Removes what a killed update left beside this program, unless another one is running.
pub(crate) fn clear_leftovers(exe: &Path, state_dir: &Path) {
    if let Ok(installed) = Installed::find(exe)
        && let Ok(_locked) = UpdateLock::take(state_dir, installed.directory())
    {
        installed.clear_leftovers();
    }
}

/// An interrupted update may have left a daemon of the previous program.
fn nothing_to_do(installed: &Installed, daemon: Option<&DaemonInfo>) -> String {
    let same = format!("version {VERSION} is already installed (the same file)");
    match daemon {
        Some(daemon) if !installed.is_run_by(daemon.pid) => {
            format!("{same}; `mainstay daemon reload` makes the daemon use it")
        }
        Some(_) | None => same,
    }
}

fn updated(installed: &Installed, new: &str) -> String {
    let done = if new == VERSION {
        format!("updated to another build of {VERSION}")
    } else {
        format!("updated from {VERSION} to {new}")
    };
    format!("{done}; the old program is kept as `{}`", installed.previous().display())
}

/// Makes sure that the old program is installed and that a daemon of it serves.
async fn roll_back(remote: &Remote, installed: &Installed) -> Result<DaemonInfo, String> {
    installed.restore().map_err(|error| {
        format!("`{}` could not be restored: {error}", installed.path().display())
    })?;
    let daemon: DaemonInfo =
        remote.call(&Request::Daemon).await.map_err(|error| with_causes(&error))?;
    if !installed.was_run_by(daemon.pid) {
        return Err(format!("the daemon (pid {}) runs another program", daemon.pid));
    }
    Ok(daemon)
}

/// The error after a failed hand-over: why the new daemon failed, and the result of the rollback.
fn not_updated(
    new: &str,
    installed: &Installed,
    old: &DaemonInfo,
    why: &HandoverError,
    restored: Result<DaemonInfo, String>,
) -> CliError {
    let message = format!("not updated to {new}: {}", why.cause());
    match restored {
        Ok(daemon) => {
            let log = || format!("see the log: {}", old.log.display());
            let more = why.advice().map_or_else(log, str::to_owned);
            let help = format!(
                "version {} is restored and running (pid {}); nothing was lost; {more}",
                daemon.version, daemon.pid
            );
            CliError::failed(message, help)
        }
        Err(error) => CliError::failed(
            format!("{message}; and the rollback failed: {error}"),
            format!(
                "move `{}` back to `{}`, then run `mainstay daemon status`",
                installed.previous().display(),
                installed.path().display()
            ),
        ),
    }
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> CliError {
    let message = format!("`{}` cannot be read", path.display());
    move |error| CliError::failed(format!("{message}: {error}"), NAME_THE_FILE)
}

fn unwritable(path: &Path) -> impl Fn(io::Error) -> CliError {
    let message = format!("`{}` cannot be written", path.display());
    let help = "ask the owner of the directory to replace the file, then run `mainstay daemon reload`; nothing was changed";
    move |error| CliError::failed(format!("{message}: {error}"), help)
}

/// Keeps Ctrl-C and the end of the terminal from ending this process, which would leave an untested program installed.
/// All later steps have time limits.
fn ignore_signals() -> io::Result<[Signal; 3]> {
    let [interrupt, hangup, terminate] =
        [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::terminate()].map(signal);
    Ok([interrupt?, hangup?, terminate?])
}
