//! The trial run of a new program before it replaces this one: it prints its version, then opens a copy of the state.
//!
//! Two versions of Mainstay communicate here, so the format may only be extended: the argument [`TRIAL`], a directory,
//! and one line of JSON as the answer.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use mainstay_api::{ApiError, ErrorKind};
use mainstay_core::{human_duration, with_causes};
use mainstay_hold::limits::{PREFLIGHT, PRINT_VERSION};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use super::{UNCHANGED, unwritable};
use crate::context::Context;
use crate::error::{CliError, Exit};

/// The argument with which this program makes a trial run.
pub(crate) const TRIAL: &str = "__rehearse";

const VERSION: &str = "--version";

/// How much of its answers is read.
const MAX_ANSWER: u64 = 64 * 1024;

/// How much of an unexpected answer is shown.
const MAX_SHOWN: usize = 200;

/// The answer of a program that can use the state.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Passed {
    pub(super) version: String,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum TrialResult {
    Passed(Passed),
    Failed { error: ApiError },
}

/// Runs as the new program of a trial run: opens a copy of the state in `dir` and prints the result in one line. Changes
/// nothing else.
pub(crate) fn answer_trial_run(ctx: &mut Context, dir: &Path) -> Result<(), CliError> {
    let result = match mainstay_daemon::preflight(&ctx.instance()?, dir) {
        Ok(()) => TrialResult::Passed(Passed { version: env!("CARGO_PKG_VERSION").to_owned() }),
        Err(error) => {
            let (message, help) = (with_causes(&error), error.help());
            TrialResult::Failed { error: ApiError { kind: ErrorKind::Internal, message, help } }
        }
    };
    ctx.ui.items(true, &[&result], |_| String::new())?;
    match result {
        TrialResult::Passed(_) => Ok(()),
        TrialResult::Failed { .. } => Err(CliError::Answered(Exit::Failed)),
    }
}

/// Runs the program at `copy` to print its version, then to open the state in a temporary directory in `state_dir`.
pub(super) async fn run_trial(
    copy: &Path,
    shown_as: &Path,
    state_dir: &Path,
) -> Result<Passed, CliError> {
    let program = Program { copy, shown_as };
    let answer = program.ask(VERSION, None, PRINT_VERSION).await?;
    let Some(version) = version(&answer.stdout) else {
        let (path, answer) = (shown_as.display(), answer.shown());
        return Err(CliError::failed(
            format!("`{path}` is not Mainstay: its answer to `--version` is {answer}"),
            "name the `mainstay` program itself, unpacked; download it again if it may be incomplete; nothing was changed",
        ));
    };
    let dir = TrialDir::create(state_dir)?;
    let trial = program.ask(TRIAL, Some(&dir.0), PREFLIGHT).await?;
    match serde_json::from_slice(&trial.stdout) {
        Ok(TrialResult::Passed(passed)) => Ok(passed),
        Ok(TrialResult::Failed { error }) => Err(CliError::failed(
            format!("version {version} cannot read the state of this instance: {error}"),
            trial_help(error.help.as_deref()),
        )),
        Err(_) => Err(CliError::failed(
            format!(
                "version {version} does not support this update: its answer to the trial run is {}",
                trial.shown()
            ),
            UNCHANGED,
        )),
    }
}

/// The help of the new program, which may contain [`UNCHANGED`] already.
fn trial_help(help: Option<&str>) -> String {
    match help {
        Some(help) if help.contains(UNCHANGED) => format!("it says: {help}"),
        Some(help) => format!("it says: {help}; {UNCHANGED}"),
        None => UNCHANGED.to_owned(),
    }
}

/// The version in the output of `--version`.
fn version(output: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(output).ok()?.trim_end();
    line.strip_prefix("mainstay ").filter(|version| !version.contains(char::is_whitespace))
}

/// A directory for a trial run, which is removed after it. There is only one update at a time, so an existing one was
/// left by an update that was killed.
struct TrialDir(PathBuf);

impl TrialDir {
    fn create(state_dir: &Path) -> Result<Self, CliError> {
        let dir = state_dir.join("rehearsal");
        let make = || {
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            DirBuilder::new().mode(0o700).create(&dir)
        };
        make().map_err(unwritable(&dir))?;
        Ok(Self(dir))
    }
}

impl Drop for TrialDir {
    fn drop(&mut self) {
        // The next update removes what is left.
        let _left = fs::remove_dir_all(&self.0);
    }
}

/// The new program.
struct Program<'a> {
    copy: &'a Path,
    /// Its path in messages.
    shown_as: &'a Path,
}

struct Answer {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: ExitStatus,
}

impl Program<'_> {
    async fn ask(
        &self,
        argument: &'static str,
        dir: Option<&Path>,
        limit: Duration,
    ) -> Result<Answer, CliError> {
        let path = self.shown_as.display();
        let mut command = Command::new(self.copy);
        mainstay_hold::descriptors::pass_only_stdio(command.as_std_mut());
        command.arg(argument).args(dir).current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let talk = async {
            let mut child = command.spawn()?;
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let (stdout, stderr) = tokio::join!(head(stdout), head(stderr));
            // A program that writes more than is read ends with its pipe.
            let status = child.wait().await?;
            io::Result::Ok(Answer { stdout: stdout?, stderr: stderr?, status })
        };
        match timeout(limit, talk).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(CliError::failed(
                format!("`{path}` cannot be started: {error}"),
                "libraries may be missing, or its file system may not allow programs; nothing was changed",
            )),
            Err(_) => {
                let limit = human_duration(limit);
                let message = format!("`{path}` has not answered `{argument}` within {limit}");
                Err(CliError::failed(message, UNCHANGED))
            }
        }
    }
}

impl Answer {
    /// Its first line, for a message.
    fn shown(&self) -> String {
        let texts = [&self.stdout, &self.stderr].map(|text| String::from_utf8_lossy(text));
        let line = texts.iter().find_map(|text| text.lines().find(|line| !line.is_empty()));
        match line {
            Some(line) => format!("`{}`", line.chars().take(MAX_SHOWN).collect::<String>()),
            None if self.status.success() => "nothing".to_owned(),
            None => format!("nothing ({})", self.status),
        }
    }
}

async fn head(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_ANSWER).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_version_is_parsed() {
        assert_eq!(version(b"mainstay 0.1.0\n"), Some("0.1.0"));
        assert_eq!(version(b"true (GNU coreutils) 9.1\n..."), None);
        assert_eq!(version(b"mainstay is what?\n"), None);
        assert_eq!(version(b"\xff"), None);
        assert_eq!(version(b""), None);
    }

    #[test]
    fn the_format_between_versions_stays_the_same() {
        let read = |text: &str| serde_json::from_str::<TrialResult>(text).ok();
        let well = TrialResult::Passed(Passed { version: "0.1.0".to_owned() });
        let text = r#"{"version":"0.1.0"}"#;
        assert_eq!(serde_json::to_string(&well).unwrap(), text);
        assert_eq!(read(text), Some(well));
        assert!(read(r#"{"version":"9","more":[]}"#).is_some(), "it may grow");
        let error = ApiError::new(ErrorKind::Internal, "too new").with_help("wait");
        let text = r#"{"error":{"kind":"internal","message":"too new","help":"wait"}}"#;
        assert_eq!(
            serde_json::to_string(&TrialResult::Failed { error: error.clone() }).unwrap(),
            text
        );
        assert_eq!(read(text), Some(TrialResult::Failed { error }));
        assert_eq!(read("{}"), None);
    }

    #[test]
    fn nothing_was_changed_is_part_of_the_help_once() {
        let full = "free some space; nothing was changed";
        assert_eq!(trial_help(Some(full)), "it says: free some space; nothing was changed");
        let help = trial_help(Some("use another directory"));
        assert_eq!(help, "it says: use another directory; nothing was changed");
        assert_eq!(trial_help(None), "nothing was changed");
    }

    async fn check(script: &str, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let state = dir.path().join("state");
        fs::create_dir_all(state.join("rehearsal/left")).unwrap();
        let result = match run_trial(&program, Path::new("new"), &state).await {
            Ok(passed) => format!("{passed:?}"),
            Err(error) => with_causes(&error),
        };
        assert_eq!(result, expected);
    }

    #[tokio::test]
    async fn the_answers_of_a_program_are_checked() {
        let answers = |trial: &str| {
            format!(r#"test "$1" = --version && echo mainstay 7.0.0 && exit; {trial}"#)
        };
        check("echo hello", "`new` is not Mainstay: its answer to `--version` is `hello`").await;
        check(
            "exit 1",
            "`new` is not Mainstay: its answer to `--version` is nothing (exit status: 1)",
        )
        .await;
        check(
            &answers("echo; echo what >&2; exit 2"),
            "version 7.0.0 does not support this update: its answer to the trial run is `what`",
        )
        .await;
        check(
            &answers(r#"echo '{"error":{"kind":"internal","message":"no"}}'; exit 1"#),
            "version 7.0.0 cannot read the state of this instance: no",
        )
        .await;
        check(
            &answers(r#"rmdir "$2" && echo '{"version":"7.0.0"}'"#),
            r#"Passed { version: "7.0.0" }"#,
        )
        .await;
    }

    #[tokio::test]
    async fn a_program_inherits_three_streams() {
        let _leaked = rustix::io::dup(std::io::stdin()).unwrap();
        // The fourth is the directory that `ls` reads.
        let list = r"ls /proc/self/fd | tr -d '\n'";
        check(list, "`new` is not Mainstay: its answer to `--version` is `0123`").await;
    }

    #[tokio::test]
    async fn endless_output_is_cut() {
        check("yes; :", "`new` is not Mainstay: its answer to `--version` is `y`").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_never_answers_times_out() {
        check("exec sleep 100", "`new` has not answered `--version` within 5 s").await;
    }
}
