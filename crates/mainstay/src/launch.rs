//! Starting the daemon on demand.
//!
//! The daemon gets its own session, an allow-listed environment, and `/` as its directory, so it does not depend on the
//! command that started it. It prints one line about its start to stdout, and closes all three streams.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use mainstay_api::ApiError;
use mainstay_core::is_inherited;
use mainstay_hold::limits::START;

use crate::error::CliError;

/// What the engine marks everything with that a server starts.
pub(crate) const RUN_VARIABLE: &str = "MAINSTAY_RUN";

/// Everything needed to start a daemon.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    exe: PathBuf,
    env: Vec<(OsString, OsString)>,
}

/// What a daemon reports about its start, in one line on its stdout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StartReport {
    /// It listens.
    Ready,
    /// Another daemon holds the state directory.
    Taken,
    /// It cannot start.
    Failed(ApiError),
}

impl Launch {
    pub(crate) fn new(exe: PathBuf, env: &[(OsString, OsString)]) -> Self {
        Self { exe, env: clean(env) }
    }

    /// Starts a daemon and waits until it listens or reports why it cannot. False if another one has the state
    /// directory.
    pub(crate) async fn start(&self) -> Result<bool, CliError> {
        let launch = self.clone();
        let started = tokio::task::spawn_blocking(move || launch.start_blocking()).await;
        started.map_err(|error| not_started(error.to_string(), None))?
    }

    fn start_blocking(&self) -> Result<bool, CliError> {
        let mut child = self
            .command()
            .spawn()
            .map_err(|error| not_started(format!("`{}`: {error}", self.exe.display()), None))?;
        let Some(line) = first_line(&mut child) else {
            let _gone_already = child.kill();
            let limit = START.as_secs();
            return Err(not_started(format!("it was not ready within {limit} s"), None));
        };
        match StartReport::parse(&line) {
            Some(StartReport::Ready) => Ok(true),
            Some(StartReport::Taken) => Ok(false),
            Some(StartReport::Failed(error)) => Err(not_started(error.message, error.help)),
            None => Err(not_started(failure_report(&mut child, &line), None)),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.exe);
        command
            .args(["daemon", "run", "--detached"])
            .env_clear()
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl StartReport {
    /// Writes it to the process that started this daemon.
    pub(crate) fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Ready => writeln!(to, "ready")?,
            Self::Taken => writeln!(to, "taken")?,
            Self::Failed(error) => writeln!(to, "failed {}", serde_json::to_string(error)?)?,
        }
        to.flush()
    }

    fn parse(line: &str) -> Option<Self> {
        match line.trim_end() {
            "ready" => Some(Self::Ready),
            "taken" => Some(Self::Taken),
            line => {
                let error = serde_json::from_str(line.strip_prefix("failed ")?).ok()?;
                Some(Self::Failed(error))
            }
        }
    }
}

/// The variables that a daemon gets. [`RUN_VARIABLE`] is removed: with it, the daemon would be treated as a process of
/// that server.
fn clean(env: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let is_setting = |key: &str| key.starts_with("MAINSTAY_") && key != RUN_VARIABLE;
    let allowed =
        |key: &OsStr| key.to_str().is_some_and(|key| is_inherited(key) || is_setting(key));
    env.iter().filter(|(key, _)| allowed(key)).cloned().collect()
}

/// The first line of the child's output, empty if it ended without one. None if the limit has passed; then the reading
/// thread ends with the child.
fn first_line(child: &mut Child) -> Option<String> {
    let stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _unreadable_is_empty = BufReader::new(stdout).read_line(&mut line);
        let _timed_out = sender.send(line);
    });
    receiver.recv_timeout(START).ok()
}

/// Why a child ended without a start report.
fn failure_report(child: &mut Child, line: &str) -> String {
    let mut stderr = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        let _unreadable_is_empty = pipe.read_to_string(&mut stderr);
    }
    let output = [line.trim(), stderr.trim()].join("\n");
    let ended = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    match output.trim() {
        "" => format!("it ended ({ended})"),
        output => format!("it ended ({ended}): {output}"),
    }
}

fn not_started(message: impl Into<String>, help: Option<String>) -> CliError {
    let help = help.or_else(|| Some("`mainstay doctor` looks for the cause".to_owned()));
    CliError::NotStarted { message: message.into(), help }
}

#[cfg(test)]
mod tests {
    use mainstay_api::ErrorKind;

    use super::*;

    #[test]
    fn a_daemon_gets_only_what_it_needs() {
        let given = [
            "HOME",
            "LC_ALL",
            "XDG_RUNTIME_DIR",
            "MAINSTAY_HOME",
            "MAINSTAY_LISTEN",
            "https_proxy",
            "AWS_SECRET_ACCESS_KEY",
            "LD_PRELOAD",
            "HOMEBREW",
            "MAINSTAY_RUN",
        ];
        let env: Vec<_> = given.iter().map(|key| (key.into(), "x".into())).collect();
        let kept: Vec<_> = clean(&env).into_iter().map(|(key, _)| key).collect();
        let expected = [
            "HOME",
            "LC_ALL",
            "XDG_RUNTIME_DIR",
            "MAINSTAY_HOME",
            "MAINSTAY_LISTEN",
            "https_proxy",
        ];
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_start_report_survives_the_pipe() {
        let error = ApiError::new(ErrorKind::Internal, "the disk\nis full").with_help("tidy");
        for report in [StartReport::Ready, StartReport::Taken, StartReport::Failed(error)] {
            let mut line = Vec::new();
            report.write_to(&mut line).unwrap();
            assert_eq!(StartReport::parse(std::str::from_utf8(&line).unwrap()), Some(report));
        }
        assert_eq!(StartReport::parse("hello"), None);
        assert_eq!(StartReport::parse(""), None);
    }

    fn check_failure(program: &str, expected: &str) {
        let launch = Launch::new(program.into(), &[]);
        match launch.start_blocking() {
            Err(CliError::NotStarted { message, .. }) => assert_eq!(message, expected),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_that_is_not_a_daemon_is_reported_with_its_output() {
        check_failure("/bin/true", "it ended (exit status: 0)");
        check_failure("/no/such", "`/no/such`: No such file or directory (os error 2)");
        check_failure("/bin/echo", "it ended (exit status: 0): daemon run --detached");
    }
}
