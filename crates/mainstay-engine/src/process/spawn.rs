//! Starting a run: a shim, and under it the server.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use mainstay_core::{ProcessSpec, ServerSpec, Transport};
use mainstay_hold::launch::{
    DEFAULT_LINGER, DEFAULT_OUTPUT_RING, Failure, Launch, LogConfig, Report, SHIM_ENV, Stdout,
};
use mainstay_hold::wire::ToShim;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use crate::process::link::ShimLink;
use crate::process::{ProcessConfig, Shared, command};
use crate::{EngineError, RunKey, StartError};

/// "No such file or directory".
const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();

/// A shim that has not reported by then is broken.
const REPORT: Duration = Duration::from_secs(10);

/// What the shim is to start, and how.
pub(crate) fn launch(
    config: &ProcessConfig,
    key: &RunKey,
    spec: &ServerSpec,
    process: &ProcessSpec,
    program: PathBuf,
    path: &OsStr,
) -> Launch {
    let mark = command::mark(&config.instance, key);
    Launch {
        program,
        args: process.command.iter().skip(1).map(OsString::from).collect(),
        env: command::environment(&config.env, path, process, &mark),
        cwd: process.cwd.clone(),
        stdout: match spec.transport {
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
        linger: DEFAULT_LINGER,
    }
}

/// Starts the shim and waits until it has started the server. Answers with the server's process and
/// a connection that hears of its end.
pub(crate) async fn spawn(
    shared: &Shared,
    key: &RunKey,
    launch: &Launch,
) -> Result<(u32, ShimLink), StartError> {
    let failed = |what| move |source| StartError::Shim { what, source };
    let dir = shared.dirs.create(key).map_err(failed("making its directory"))?;
    let mut shim = Command::new(&shared.config.shim)
        .arg("__shim")
        .arg(&dir)
        .env_clear()
        .envs(SHIM_ENV)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed("running it"))?;
    let mut stdin = shim.stdin.take().expect("stdin is piped");
    let mut stdout = shim.stdout.take().expect("stdout is piped");
    // Whoever started a process must collect it, or it stays a zombie.
    tokio::spawn(async move { shim.wait().await });
    let mut told = Vec::new();
    let talk = async {
        stdin.write_all(&launch.encode()).await?;
        drop(stdin);
        stdout.read_to_end(&mut told).await
    };
    timeout(REPORT, talk)
        .await
        .map_err(|_| failed("waiting for its report")(io::ErrorKind::TimedOut.into()))?
        .map_err(failed("talking to it"))?;
    let report = Report::decode(&told)
        .map_err(|error| failed("reading its report")(io::Error::other(error)))?;
    let pid = match report {
        Report::Started { server_pid } => server_pid,
        Report::Failed { what, errno, message } => {
            return Err(refusal(launch, what, errno, message));
        }
    };
    let lost = |error: EngineError| failed("watching it")(io::Error::other(error));
    let (mut link, _) = ShimLink::connect(&dir).await.map_err(lost)?;
    link.send(&ToShim::Watch).await.map_err(lost)?;
    Ok((pid, link))
}

/// What a shim's failure means to a user.
fn refusal(launch: &Launch, what: Failure, errno: i32, message: String) -> StartError {
    let why = || io::Error::from_raw_os_error(errno).to_string();
    match what {
        Failure::Cwd => StartError::BadDirectory { cwd: launch.cwd.clone(), why: why() },
        Failure::ProgramNotFound => StartError::NotExecutable {
            program: launch.program.clone(),
            why: "it does not exist any more".to_owned(),
        },
        Failure::NotExecutable => StartError::NotExecutable {
            program: launch.program.clone(),
            why: match errno {
                // The file was found before; what the system misses then is its interpreter.
                ENOENT => "the interpreter that its first line names does not exist".to_owned(),
                _ => why(),
            },
        },
        Failure::BadLaunch | Failure::Spawn | Failure::Setup => StartError::Refused(message),
    }
}
