//! Clients that call without a pause, and write down what they were told.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, timeout};

use super::history::{Call, Kind, Outcome};
use crate::answer::ToolResult;
use crate::random::Random;
use crate::restarts::{Board, Fall, INITIALIZED, NEWEST, Web, answered_id, initialize, tool_call};
use crate::rig::{BenchError, Instance};

/// How long a call may take: longer than any hold, and than all that a fault may cost.
const ANSWER: Duration = Duration::from_secs(90);

/// How long a client rests between two calls.
const PAUSE: Duration = Duration::from_millis(20);

/// What all clients share.
#[derive(Debug)]
pub(super) struct Record {
    start: Instant,
    calls: Mutex<Vec<Call>>,
}

impl Record {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), calls: Mutex::default() })
    }

    /// The time since the start.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, call: Call) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

/// How a client reaches its server.
enum Way {
    Http(Box<Web>),
    Connect(Box<Connect>),
}

/// A client with its session.
pub(super) struct Client {
    name: String,
    way: Way,
    effects: PathBuf,
    random: Random,
    last_id: u64,
}

impl Client {
    /// Opens a session over HTTP with this protocol version.
    pub(super) async fn http(
        (name, version): (String, &str),
        url: &str,
        effects: &Path,
        seed: u64,
    ) -> Result<Self, BenchError> {
        let web = Web::new(url, true, Arc::new(Board::default()));
        let mut web = web.ok_or_else(|| BenchError::Wrong(format!("`{url}` is no URL")))?;
        let failed = |_| BenchError::Wrong(format!("{name} cannot open a session"));
        web.ask(initialize(version)).await.map_err(failed)?;
        web.tell(INITIALIZED).await.map_err(failed)?;
        Ok(Self::new(name, Way::Http(Box::new(web)), effects, seed))
    }

    /// Opens a session through `mainstay connect`.
    pub(super) async fn connect(
        name: String,
        instance: &Instance,
        server: &str,
        effects: &Path,
        seed: u64,
    ) -> Result<Self, BenchError> {
        let mut connect = Connect::start(instance, server)?;
        let opened = connect.ask(0, &initialize(NEWEST)).await;
        opened.ok_or_else(|| BenchError::Wrong(format!("{name} cannot open a session")))?;
        connect.say(INITIALIZED).await;
        Ok(Self::new(name, Way::Connect(Box::new(connect)), effects, seed))
    }

    fn new(name: String, way: Way, effects: &Path, seed: u64) -> Self {
        Self { name, way, effects: effects.to_owned(), random: Random::new(seed), last_id: 0 }
    }

    /// Calls again and again until the deadline.
    pub(super) async fn work(mut self, record: Arc<Record>, until: Instant) {
        while Instant::now() < until {
            self.last_id += 1;
            let (kind, tool, arguments) = self.choose();
            self.call(&record, kind, tool, &arguments).await;
            sleep(PAUSE).await;
        }
    }

    /// Breaks a long silence.
    pub(super) async fn call_once(mut self, record: &Record) {
        self.last_id += 1;
        let text = self.name.clone();
        self.call(record, Kind::Idle(text.clone()), "echo", &json!({"text": text})).await;
    }

    /// Calls a tool that does nothing for a while.
    pub(super) async fn sleep(&mut self, time: Duration) -> Outcome {
        self.last_id += 1;
        self.ask("sleep_readonly", &json!({"ms": time.as_millis()})).await
    }

    async fn call(&mut self, record: &Record, kind: Kind, tool: &str, arguments: &Value) {
        let begun = record.now();
        let outcome = self.ask(tool, arguments).await;
        let client = self.name.clone();
        record.add(Call { client, kind, begun, ended: record.now(), outcome });
    }

    /// What is called next.
    fn choose(&mut self) -> (Kind, &'static str, Value) {
        let unique = format!("{} {}", self.name, self.last_id);
        let ms = [0, 0, 60, 400, 1500][self.random.below(5)];
        match self.random.below(10) {
            0..=3 => (Kind::Echo(unique.clone()), "echo", json!({"text": unique})),
            4..=6 => {
                let arguments = json!({"path": self.effects, "line": unique, "ms": ms});
                (Kind::Append(unique), "append", arguments)
            }
            _ => (Kind::Sleep, "sleep_readonly", json!({"ms": ms})),
        }
    }

    async fn ask(&mut self, tool: &str, arguments: &Value) -> Outcome {
        let request = tool_call(self.last_id, tool, arguments);
        timeout(ANSWER, self.send(request)).await.unwrap_or(Outcome::Silent)
    }

    async fn send(&mut self, request: Vec<u8>) -> Outcome {
        match &mut self.way {
            Way::Http(web) => match web.ask(request).await {
                Ok(answer) => read(&answer, self.last_id),
                Err(Fall::Cut(_)) => Outcome::Cut,
                Err(Fall::Status(status)) => Outcome::Status(status.as_u16()),
            },
            Way::Connect(connect) => match connect.ask(self.last_id, &request).await {
                Some(answer) => read(answer.as_bytes(), self.last_id),
                // `connect` has ended, which nothing may cause.
                None => Outcome::Status(0),
            },
        }
    }
}

/// What an answer says. A note about a restart comes after the text of a tool.
fn read(answer: &[u8], id: u64) -> Outcome {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: Option<ToolResult<'a>>,
        error: Option<Value>,
    }
    if answered_id(answer) != Some(id) {
        return Outcome::Failed(String::new());
    }
    match serde_json::from_slice(answer) {
        Ok(Answer { result: Some(result), .. }) => {
            let text = result.texts().next().unwrap_or_default().to_owned();
            Outcome::Answered { text, is_error: result.is_error }
        }
        Ok(Answer { error: Some(error), .. }) => {
            Outcome::Failed(error["message"].as_str().unwrap_or_default().to_owned())
        }
        Ok(_) | Err(_) => Outcome::Failed(String::new()),
    }
}

/// A running `mainstay connect`.
struct Connect {
    /// Killed when dropped.
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Connect {
    fn start(instance: &Instance, server: &str) -> Result<Self, BenchError> {
        let mut command = instance.command(&["connect", server]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().map_err(BenchError::SetUp)?;
        let stdin = child.stdin.take().expect("stdin was asked for as a pipe");
        let stdout = child.stdout.take().expect("stdout was asked for as a pipe");
        Ok(Self { _child: child, stdin, stdout: BufReader::new(stdout).lines() })
    }

    async fn say(&mut self, line: &[u8]) {
        let line = [line, b"\n"].concat();
        // If it has ended, no answer comes either.
        self.stdin.write_all(&line).await.ok();
    }

    /// The answer to a request; `None` if `connect` has ended. An answer to an earlier request would be a second one.
    async fn ask(&mut self, id: u64, request: &[u8]) -> Option<String> {
        self.say(request).await;
        loop {
            let line = self.stdout.next_line().await.ok()??;
            match answered_id(line.as_bytes()) {
                Some(answered) if answered == id => return Some(line),
                Some(_) => return Some(String::new()),
                None => {}
            }
        }
    }
}
