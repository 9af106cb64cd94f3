//! Sessions over stdio: one process each.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout};

use super::call::{INITIALIZED, check_initialize, initialize, is_answer};
use super::drive::Transport;
use super::{CallError, LoadError};

/// How long a process may take to end by itself when its stdin is closed.
const FAREWELL: Duration = Duration::from_secs(2);

/// As much as a pipe holds, so that a large answer takes few reads.
const BUFFER: usize = 64 << 10;

/// A command that speaks MCP on stdio and is started once per session.
#[derive(Debug, Clone)]
pub(super) struct Program {
    words: Vec<String>,
}

/// One process; it is killed when dropped.
pub(super) struct Session {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    /// The command in these words, the program first.
    pub(super) fn new(words: &[String]) -> Self {
        Self { words: words.to_vec() }
    }

    fn start(&self) -> Result<Session, CallError> {
        let (program, arguments) = self.words.split_first().ok_or(CallError::NoCommand)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take().expect("stdin was asked for as a pipe");
        let stdout = child.stdout.take().expect("stdout was asked for as a pipe");
        Ok(Session { child, stdin, stdout: BufReader::with_capacity(BUFFER, stdout) })
    }
}

/// From the start of a command to its answer to `initialize`.
pub(crate) async fn start_time(words: &[String]) -> Result<Duration, LoadError> {
    let begun = Instant::now();
    let answered = async {
        let mut session = Program::new(words).start()?;
        session.send(initialize()).await?;
        check_initialize(&session.answer().await?)?;
        Ok((begun.elapsed(), session))
    };
    let (time, session) = answered.await.map_err(LoadError::Open)?;
    session.end().await;
    Ok(time)
}

impl Transport for Program {
    type Session = Session;

    async fn open(&self) -> Result<Session, CallError> {
        let mut session = self.start()?;
        session.send(initialize()).await?;
        check_initialize(&session.answer().await?)?;
        session.send(INITIALIZED.to_vec()).await?;
        Ok(session)
    }

    async fn call(&self, session: &mut Session, request: Vec<u8>) -> Result<Bytes, CallError> {
        session.send(request).await?;
        session.answer().await
    }

    async fn close(&self, session: Session) {
        session.end().await;
    }
}

impl Session {
    async fn end(mut self) {
        drop(self.stdin);
        // Dropping the session kills what did not end in time.
        timeout(FAREWELL, self.child.wait()).await.ok();
    }

    async fn send(&mut self, mut message: Vec<u8>) -> Result<(), CallError> {
        message.push(b'\n');
        Ok(self.stdin.write_all(&message).await?)
    }

    /// The next answer; whatever else the server prints is passed over.
    async fn answer(&mut self) -> Result<Bytes, CallError> {
        let mut line = Vec::new();
        while self.stdout.read_until(b'\n', &mut line).await? > 0 {
            if is_answer(&line) {
                return Ok(line.into());
            }
            line.clear();
        }
        Err(CallError::Closed)
    }
}
