//! A running `fixture-mcp`. Every wait has a limit, and nothing outlives its test.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_fixture-mcp");

/// Far longer than anything takes; a wait that reaches it has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Fixture {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Fixture {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Self { child, stdin, stdout, stderr }
    }

    /// Starts it with `--http` and returns where it listens.
    pub(crate) fn start_http(arguments: &[&str]) -> (Self, SocketAddr) {
        let fixture = Self::start(&[&["--http", "127.0.0.1:0"], arguments].concat());
        let line = fixture.stderr_line().unwrap();
        let address = line.strip_prefix("listening on ").unwrap().parse().unwrap();
        (fixture, address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn send(&mut self, id: u32, method: &str, params: &Value) {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send_line(&request.to_string());
    }

    pub(crate) fn call(&mut self, id: u32, tool: &str, arguments: &Value) {
        self.send(id, "tools/call", &json!({"name": tool, "arguments": arguments}));
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The next line, or nothing when stdout has been closed.
    pub(crate) fn line(&self) -> Option<String> {
        receive(&self.stdout)
    }

    pub(crate) fn stderr_line(&self) -> Option<String> {
        receive(&self.stderr)
    }

    /// The next line as a message.
    pub(crate) fn answer(&self) -> Value {
        serde_json::from_str(&self.line().expect("an answer")).unwrap()
    }

    /// Waits for the end of the process, which both closed outputs announce.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        while self.line().is_some() {}
        while self.stderr_line().is_some() {}
        self.child.wait().unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The text in the result of a tool call.
pub(crate) fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            if sender.send(line.unwrap()).is_err() {
                break;
            }
        }
    });
    receiver
}

fn receive(lines: &Receiver<String>) -> Option<String> {
    match lines.recv_timeout(LIMIT) {
        Ok(line) => Some(line),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("nothing within {LIMIT:?}"),
    }
}
