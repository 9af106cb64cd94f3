//! What a new program is asked before it takes the place of the present one: who it is, and whether it
//! can take up the state of this instance, of which it is given a copy.
//!
//! What is said here is said between two versions of Mainstay, so it only ever grows: the word
//! [`REHEARSE`], the directory after it, and the one line of JSON that answers.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use mainstay_api::{ApiError, ErrorKind};
use mainstay_core::with_causes;
use mainstay_hold::limits::{PREFLIGHT, PRINT_VERSION};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use super::error::UpdateError;
use crate::context::Context;
use crate::error::{CliError, Exit};

/// The word by which this program rehearses.
pub(crate) const REHEARSE: &str = "__rehearse";

const VERSION: &str = "--version";

/// How much of its answers is read.
const MAX_ANSWER: u64 = 64 * 1024;

/// How much of an answer is told that makes no sense.
const MAX_TOLD: usize = 200;

/// What a program says of itself that can take up the state.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rehearsed {
    pub(super) version: String,
}

/// The answer of a program that was asked to rehearse.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Word {
    Well(Rehearsed),
    Ill { error: ApiError },
}

/// Rehearses, at the word of a program that this one may take the place of: takes up a copy of the
/// state in `dir`, and says in one line how that went. Nothing else is touched.
pub(crate) fn rehearse(ctx: &mut Context, dir: &Path) -> Result<(), CliError> {
    let word = match mainstay_daemon::preflight(&ctx.instance()?, dir) {
        Ok(()) => Word::Well(Rehearsed { version: env!("CARGO_PKG_VERSION").to_owned() }),
        Err(error) => {
            let (message, help) = (with_causes(&error), error.help());
            Word::Ill { error: ApiError { kind: ErrorKind::Internal, message, help } }
        }
    };
    ctx.ui.items(true, &[&word], |_| String::new())?;
    match word {
        Word::Well(_) => Ok(()),
        Word::Ill { .. } => Err(CliError::Answered(Exit::Failed)),
    }
}

/// Asks the program at `copy` who it is, and has it rehearse in a directory of its own in `state_dir`.
pub(super) async fn hold(
    copy: &Path,
    told_as: &Path,
    state_dir: &Path,
) -> Result<Rehearsed, UpdateError> {
    let program = Asked { copy, told_as };
    let said = program.ask(VERSION, None, PRINT_VERSION).await?;
    let Some(version) = version(&said.stdout) else {
        return Err(UpdateError::NoMainstay { path: told_as.to_owned(), answer: said.told() });
    };
    let version = version.to_owned();
    let stage = Stage::set_up(state_dir)?;
    let said = program.ask(REHEARSE, Some(&stage.0), PREFLIGHT).await?;
    match serde_json::from_slice(&said.stdout) {
        Ok(Word::Well(rehearsed)) => Ok(rehearsed),
        Ok(Word::Ill { error }) => Err(UpdateError::Rehearsal { version, error }),
        Err(_) => Err(UpdateError::NoRehearsal { version, answer: said.told() }),
    }
}

/// The version in what a Mainstay answers to `--version`.
fn version(answer: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(answer).ok()?.trim_end();
    line.strip_prefix("mainstay ").filter(|version| !version.contains(char::is_whitespace))
}

/// A directory for a rehearsal, which is removed after it. There is only one update at a time, so what
/// is there already was left by one that was killed.
struct Stage(PathBuf);

impl Stage {
    fn set_up(state_dir: &Path) -> Result<Self, UpdateError> {
        let dir = state_dir.join("rehearsal");
        let make = || {
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            DirBuilder::new().mode(0o700).create(&dir)
        };
        make().map_err(|source| UpdateError::Write { path: dir.clone(), source })?;
        Ok(Self(dir))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is left of it, the next update removes.
        let _left = fs::remove_dir_all(&self.0);
    }
}

/// A program that answers questions.
struct Asked<'a> {
    copy: &'a Path,
    /// The file that its user knows.
    told_as: &'a Path,
}

/// What it said.
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: ExitStatus,
}

impl Asked<'_> {
    async fn ask(
        &self,
        question: &'static str,
        about: Option<&Path>,
        limit: Duration,
    ) -> Result<Said, UpdateError> {
        let path = || self.told_as.to_owned();
        let mut command = Command::new(self.copy);
        mainstay_hold::descriptors::pass_only_stdio(command.as_std_mut());
        command.arg(question).args(about).current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let talk = async {
            let mut child = command.spawn()?;
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let (stdout, stderr) = tokio::join!(head(stdout), head(stderr));
            // One that has more to say than is read ends with its pipe.
            let status = child.wait().await?;
            io::Result::Ok(Said { stdout: stdout?, stderr: stderr?, status })
        };
        match timeout(limit, talk).await {
            Ok(Ok(said)) => Ok(said),
            Ok(Err(source)) => Err(UpdateError::Start { path: path(), source }),
            Err(_) => Err(UpdateError::Late { path: path(), question, limit }),
        }
    }
}

impl Said {
    /// As much of it as a user wants to see.
    fn told(&self) -> String {
        let texts = [&self.stdout, &self.stderr].map(|text| String::from_utf8_lossy(text));
        let line = texts.iter().find_map(|text| text.lines().find(|line| !line.is_empty()));
        match line {
            Some(line) => format!("`{}`", line.chars().take(MAX_TOLD).collect::<String>()),
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
    fn the_version_is_read_off_what_a_mainstay_says() {
        assert_eq!(version(b"mainstay 0.1.0\n"), Some("0.1.0"));
        assert_eq!(version(b"true (GNU coreutils) 9.1\n..."), None);
        assert_eq!(version(b"mainstay is what?\n"), None);
        assert_eq!(version(b"\xff"), None);
        assert_eq!(version(b""), None);
    }

    #[test]
    fn what_versions_say_to_each_other_stays_as_it_is() {
        let read = |text: &str| serde_json::from_str::<Word>(text).ok();
        let well = Word::Well(Rehearsed { version: "0.1.0".to_owned() });
        let text = r#"{"version":"0.1.0"}"#;
        assert_eq!(serde_json::to_string(&well).unwrap(), text);
        assert_eq!(read(text), Some(well));
        assert!(read(r#"{"version":"9","more":[]}"#).is_some(), "it may grow");
        let error = ApiError::new(ErrorKind::Internal, "too new").with_help("wait");
        let text = r#"{"error":{"kind":"internal","message":"too new","help":"wait"}}"#;
        assert_eq!(serde_json::to_string(&Word::Ill { error: error.clone() }).unwrap(), text);
        assert_eq!(read(text), Some(Word::Ill { error }));
        assert_eq!(read("{}"), None);
    }

    async fn check(script: &str, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let state = dir.path().join("state");
        fs::create_dir_all(state.join("rehearsal/left")).unwrap();
        let told = match hold(&program, Path::new("new"), &state).await {
            Ok(rehearsed) => format!("{rehearsed:?}"),
            Err(error) => mainstay_core::with_causes(&error),
        };
        assert_eq!(told, expected);
    }

    #[tokio::test]
    async fn a_program_is_believed_by_its_answers() {
        let asked = |rehearsed: &str| {
            format!(r#"test "$1" = --version && echo mainstay 7.0.0 && exit; {rehearsed}"#)
        };
        check("echo hello", "`new` is not Mainstay: its answer to `--version` is `hello`").await;
        check(
            "exit 1",
            "`new` is not Mainstay: its answer to `--version` is nothing (exit status: 1)",
        )
        .await;
        check(
            &asked("echo; echo what >&2; exit 2"),
            "version 7.0.0 does not support this update: its answer to the trial run is `what`",
        )
        .await;
        check(
            &asked(r#"echo '{"error":{"kind":"internal","message":"no"}}'; exit 1"#),
            "version 7.0.0 cannot read the state of this instance: no",
        )
        .await;
        check(
            &asked(r#"rmdir "$2" && echo '{"version":"7.0.0"}'"#),
            r#"Rehearsed { version: "7.0.0" }"#,
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
    async fn a_program_that_floods_is_not_read_to_its_end() {
        check("yes; :", "`new` is not Mainstay: its answer to `--version` is `y`").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_never_answers_is_not_waited_for() {
        check("exec sleep 100", "`new` has not answered `--version` within 5 s").await;
    }
}
