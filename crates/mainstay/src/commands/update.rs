//! `mainstay update`: replaces this program by another version, whose daemon takes over.
//!
//! The steps: lock, check of the file, copy beside this program, trial run on a copy of the state, replacement (the old
//! program is kept), hand-over. Nothing changes before the replacement. After it, either the new daemon serves, or the
//! old program is restored and its daemon serves.

mod candidate;
mod error;
mod hand_over;
mod installed;
mod lock;
mod trial;

use std::path::{Path, PathBuf};

use mainstay_api::DaemonInfo;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) use self::trial::{TRIAL, make_trial_run};

use self::candidate::Candidate;
use self::error::UpdateError;
use self::hand_over::{NotUpdated, hand_over};
use self::installed::Installed;
use self::lock::Locked;
use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;

/// This version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

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
    let _locked = Locked::take(&instance.state_dir, installed.directory())?;
    installed.clear_leftovers();
    let candidate = Candidate::open(&ctx.caller.absolute(&args.from)?)?;
    candidate.check(installed.file())?;
    let remote = Remote::of(ctx)?;
    let daemon = remote.inspect().await?;
    if let Some(other) = daemon.as_ref().and_then(|daemon| installed.other_than(daemon.pid)) {
        return Err(
            UpdateError::OtherProgram { daemon: other, ours: installed.path().to_owned() }.into()
        );
    }
    if is_installed(&installed, &candidate)? {
        ctx.ui.say(nothing_to_do(&installed, daemon.as_ref()));
        return Ok(());
    }
    let copy = installed.copy_in(candidate.file())?;
    let trial = trial::try_out(&copy, candidate.path(), &instance.state_dir);
    let new = ctx.ui.waiting("trying the new version", trial).await?;
    ctx.ui.say(format!("version {} can read the state of this instance", new.version));
    let _signals = ignore_signals().map_err(CliError::io("signals cannot be ignored"))?;
    installed.replace(copy)?;
    let Some(old) = daemon else {
        ctx.ui.say(updated(&installed, &new.version));
        ctx.ui.say("no daemon is running; the next command starts the new version");
        return Ok(());
    };
    let handed = ctx.ui.waiting("handing over", hand_over(&remote, &installed, &old)).await;
    handed.map_err(|failure| not_updated(&new.version, &installed, &old, failure))?;
    ctx.ui.say(updated(&installed, &new.version));
    ctx.ui.say("if the new daemon dies within 30 s, the update is rolled back");
    ctx.ui.say(
        "running `mainstay connect` processes stay at the old version until their clients restart them",
    );
    Ok(())
}

/// Removes what a killed update left beside this program, unless another one is running.
pub(crate) fn clear_leftovers(exe: &Path, state_dir: &Path) {
    if let Ok(installed) = Installed::find(exe)
        && let Ok(_locked) = Locked::take(state_dir, installed.directory())
    {
        installed.clear_leftovers();
    }
}

fn is_installed(installed: &Installed, candidate: &Candidate) -> Result<bool, UpdateError> {
    let failed = |source| UpdateError::Read { path: candidate.path().to_owned(), source };
    installed.has_the_bytes_of(candidate.file()).map_err(failed)
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

fn not_updated(
    new: &str,
    installed: &Installed,
    old: &DaemonInfo,
    failure: NotUpdated,
) -> CliError {
    let message = format!("not updated to {new}: {}", failure.why.cause());
    let log = || format!("see the log: {}", old.log.display());
    let more = failure.why.advice().map_or_else(log, str::to_owned);
    match failure.back {
        Ok(daemon) => CliError::failed(
            message,
            format!(
                "version {} is restored and running (pid {}); nothing was lost; {more}",
                daemon.version, daemon.pid
            ),
        ),
        Err(trouble) => CliError::failed(
            format!("{message}; and the rollback failed: {trouble}"),
            format!(
                "move `{}` back to `{}`, then run `mainstay daemon status`",
                installed.previous().display(),
                installed.path().display()
            ),
        ),
    }
}

/// From now on, neither a key nor the end of the terminal ends this process, which would leave an untested program. All
/// later steps have time limits.
fn ignore_signals() -> std::io::Result<[Signal; 3]> {
    let [interrupt, hangup, terminate] =
        [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::terminate()].map(signal);
    Ok([interrupt?, hangup?, terminate?])
}
