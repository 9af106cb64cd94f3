//! Starts a run: a shim, and under it the server.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mainstay_core::{ProcessSpec, Transport};
use mainstay_hold::descriptors;
use mainstay_hold::launch::{
    DEFAULT_OUTPUT_RING, Failure, Launch, LogConfig, Report, SHIM_ENV, Stdout,
};
use mainstay_hold::limits::{LINGER, SHIM_START};
use mainstay_hold::shim_search::SHIM_COMMAND;
use mainstay_hold::tree::{self, Process};
use mainstay_hold::wire::ToShim;
use rustix::process::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::error::is_shortage;
use crate::process::link::ShimLink;
use crate::process::{Shared, command, orphans};
use crate::{EngineError, RunKey, StartError};

/// "No such file or directory".
const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();

/// Attempts to list the processes of a shim, and the delay between them.
const LIST_TRIES: u32 = 100;
const LIST_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Spawned {
    /// The pid of the server.
    pub(crate) pid: u32,
    /// A connection that receives the run's end.
    pub(crate) link: ShimLink,
    /// The shim, to be reaped when it ends.
    pub(crate) shim: Child,
}

impl Shared {
    pub(crate) fn launch(
        &self,
        key: &RunKey,
        process: &ProcessSpec,
        program: PathBuf,
        path: &OsStr,
    ) -> Launch {
        let config = &self.config;
        let mark = command::mark(&config.instance, key);
        Launch {
            program,
            args: process.command.iter().skip(1).map(OsString::from).collect(),
            env: command::environment(&config.env, path, process, &mark),
            cwd: process.cwd.clone(),
            stdout: match process.transport {
                Transport::Stdio => Stdout::Mcp,
                Transport::StreamableHttp { .. } => Stdout::Log,
            },
            log: LogConfig {
                path: config.logs_dir.join(format!("{}.log", key.server)),
                max_bytes: config.log_max_bytes,
                keep: config.log_keep,
            },
            label: format!("run {}", key.run),
            output_ring: DEFAULT_OUTPUT_RING,
            linger: LINGER,
        }
    }

    /// Starts the shim and waits until it has started the server. A failure leaves nothing behind,
    /// not even processes that the shim had started.
    pub(crate) async fn spawn(&self, key: &RunKey, launch: &Launch) -> Result<Spawned, StartError> {
        let begun = match self.dirs.create(key).map_err(StartError::shim("making its directory")) {
            Ok(dir) => self.begin(key, launch, &dir).await,
            Err(error) => Err(error),
        };
        if begun.is_err() {
            self.dirs.clear_away(key);
        }
        begun
    }

    async fn begin(
        &self,
        key: &RunKey,
        launch: &Launch,
        dir: &Path,
    ) -> Result<Spawned, StartError> {
        let mut shim = Command::new(&self.config.shim)
            .arg(SHIM_COMMAND)
            .arg(dir)
            .env_clear()
            .envs(SHIM_ENV)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(StartError::shim("running it"))?;
        match bring_up(&mut shim, launch, dir, self.config.daemon).await {
            Ok((pid, link)) => Ok(Spawned { pid, link, shim }),
            Err(error) => {
                // It is our child and was not reaped, so the pid was not reused.
                let below = match shim.id() {
                    Some(pid) => list_below(pid).await,
                    None => Vec::new(),
                };
                if let Err(error) = shim.kill().await {
                    tracing::error!(server = %key.server, run = %key.run, %error, "cannot kill a shim");
                }
                orphans::end(vec![self.orphaned(key)], below).await;
                Err(error)
            }
        }
    }
}

/// The descendants of a process that is about to be killed. Retries while descriptors are scarce, because a process that
/// is not listed here would survive.
async fn list_below(pid: u32) -> Vec<Process> {
    for _ in 0..LIST_TRIES {
        match tree::living_descendants(pid) {
            Ok(below) => return below,
            Err(error) => tracing::warn!(%error, "cannot list what a shim has started"),
        }
        sleep(LIST_AGAIN).await;
    }
    Vec::new()
}

/// Sends the launch, reads the report and watches the run.
async fn bring_up(
    shim: &mut Child,
    launch: &Launch,
    dir: &Path,
    daemon: u64,
) -> Result<(u32, ShimLink), StartError> {
    // Set before the launch is sent, so that the server never sees the limit of this process.
    if let Some(pid) = shim.id().and_then(|pid| Pid::from_raw(pid.cast_signed()))
        && let Err(error) = descriptors::restore_limit_of(pid)
    {
        tracing::warn!(%error, "the server gets the limit of descriptors of the daemon");
    }
    let mut stdin = shim.stdin.take().expect("stdin is piped");
    let mut stdout = shim.stdout.take().expect("stdout is piped");
    let mut report = Vec::new();
    let talk = async {
        stdin.write_all(&launch.encode()).await?;
        drop(stdin);
        match stdout.read_to_end(&mut report).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    };
    timeout(SHIM_START, talk)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(StartError::shim("waiting for its report"))?;
    let report = Report::decode(&report)
        .map_err(|error| StartError::shim("reading its report")(io::Error::other(error)))?;
    let pid = match report {
        Report::Started { server_pid } => server_pid,
        Report::Failed { what, errno, message } => {
            return Err(refusal(launch, what, errno, message));
        }
    };
    let lost = |error: EngineError| match error {
        // It listened a moment ago, so it has died.
        error if error.is_gone() => {
            StartError::shim("watching it")(io::ErrorKind::UnexpectedEof.into())
        }
        error => StartError::shim("watching it")(error.into()),
    };
    let (mut link, _) = ShimLink::connect(dir, daemon).await.map_err(lost)?;
    link.confirm(Some(&ToShim::Watch)).await.map_err(lost)?;
    Ok((pid, link))
}

/// The error for a failure that a shim reports.
fn refusal(launch: &Launch, what: Failure, errno: i32, message: String) -> StartError {
    let source = io::Error::from_raw_os_error(errno);
    if is_shortage(&source) {
        return StartError::Shortage { what: message, source };
    }
    let why = || source.to_string();
    match what {
        Failure::Cwd => StartError::BadDirectory { cwd: launch.cwd.clone(), why: why() },
        Failure::ProgramNotFound => StartError::NotExecutable {
            program: launch.program.clone(),
            why: "it does not exist any more".to_owned(),
        },
        Failure::NotExecutable => StartError::NotExecutable {
            program: launch.program.clone(),
            why: match errno {
                // The file was found before, so its interpreter is missing.
                ENOENT => "the interpreter that its first line names does not exist".to_owned(),
                _ => why(),
            },
        },
        Failure::BadLaunch | Failure::Spawn | Failure::Setup => StartError::Refused(message),
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn shortages_of_the_system_are_temporary() {
        let launch = Launch {
            program: "/bin/x".into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            stdout: Stdout::Mcp,
            log: LogConfig { path: "/log".into(), max_bytes: 1, keep: 0 },
            label: String::new(),
            output_ring: DEFAULT_OUTPUT_RING,
            linger: LINGER,
        };
        let check = |what, errno: Errno, passing| {
            let error = refusal(&launch, what, errno.raw_os_error(), "told".to_owned());
            assert_eq!(error.is_temporary(), passing, "{error}");
        };
        check(Failure::Spawn, Errno::AGAIN, true);
        check(Failure::Spawn, Errno::TXTBSY, true);
        check(Failure::Setup, Errno::MFILE, true);
        check(Failure::Setup, Errno::NOSPC, true);
        check(Failure::Cwd, Errno::NOMEM, true);
        check(Failure::Cwd, Errno::NOENT, false);
        check(Failure::ProgramNotFound, Errno::NOENT, false);
        check(Failure::NotExecutable, Errno::ACCESS, false);
        check(Failure::BadLaunch, Errno::INVAL, false);
    }
}
