//! A stdio server that does what a test says. A line counts as written only when it says so.

use std::time::Duration;

use bytes::Bytes;
use mainstay_core::Interruption;
use mainstay_proxy::{AttachedRun, LineLink};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::soon;

/// The server's end of the lines. Dropping it is the death of the run.
pub(super) struct Server {
    stdin: mpsc::Receiver<Bytes>,
    pub(super) stdout: mpsc::Sender<Bytes>,
    pub(super) other_output: mpsc::Receiver<Bytes>,
    written: watch::Sender<u64>,
    interruptions: watch::Sender<Interruption>,
    /// How many lines of it were consumed.
    pub(super) consumed: watch::Receiver<u64>,
    pub(super) run: Option<AttachedRun>,
}

impl Server {
    pub(super) fn new() -> (Self, LineLink) {
        let (to_server, stdin) = mpsc::channel(8);
        let (stdout, from_server) = mpsc::channel(64);
        let (other, other_output) = mpsc::channel(64);
        let (written, progress) = watch::channel(0);
        let (consumed, lines_consumed) = watch::channel(0);
        let (interruptions, interrupted) =
            watch::channel(Interruption { written: 0, at: Instant::now().into_std() });
        let link = LineLink {
            to_server,
            from_server,
            other_output: other,
            written: progress,
            consumed,
            earlier_output: None,
            interruptions: Some(interrupted),
        };
        (
            Self {
                stdin,
                stdout,
                other_output,
                written,
                interruptions,
                consumed: lines_consumed,
                run: None,
            },
            link,
        )
    }

    /// Answers the handshake.
    pub(super) async fn welcomes(&mut self, capabilities: &Value) {
        let request = self.reads_request("initialize").await;
        self.answers(&request, &hello(capabilities)).await;
        assert_eq!(self.reads().await["method"], "notifications/initialized");
    }

    /// Takes a line out of the hands of the proxy, without any of it being written.
    pub(super) async fn takes(&mut self) -> Value {
        let line = soon(self.stdin.recv()).await.expect("the proxy should hold the lines");
        assert!(!line.contains(&b'\n'), "{line:?}");
        serde_json::from_slice(&line).unwrap()
    }

    /// As [`Server::takes`], however long it takes.
    pub(super) async fn takes_in_time(&mut self) -> Value {
        let line = self.stdin.recv().await.expect("the proxy should hold the lines");
        serde_json::from_slice(&line).unwrap()
    }

    /// Reads a line if there is one.
    pub(super) fn reads_if_any(&mut self) -> Option<Value> {
        let line = self.stdin.try_recv().ok()?;
        self.confirms();
        Some(serde_json::from_slice(&line).unwrap())
    }

    /// One more line is written whole.
    pub(super) fn confirms(&self) {
        self.written.send_modify(|written| *written += 1);
    }

    /// The connection to it was lost just now, and made again.
    pub(super) fn is_interrupted(&self) {
        let at = Instant::now().into_std();
        self.interruptions.send_replace(Interruption { written: self.lines(), at });
    }

    /// So many lines were written to it before.
    pub(super) fn wrote(&self, lines: u64) {
        self.written.send_replace(lines);
    }

    /// How many lines were written to it.
    pub(super) fn lines(&self) -> u64 {
        *self.written.borrow()
    }

    /// Waits until so many of its lines were consumed.
    pub(super) async fn was_heard(&mut self, lines: u64) {
        soon(self.consumed.wait_for(|consumed| *consumed == lines)).await.unwrap();
    }

    /// Reads a line.
    pub(super) async fn reads(&mut self) -> Value {
        let line = self.takes().await;
        self.confirms();
        line
    }

    /// Reads a line as it was written.
    pub(super) async fn reads_text(&mut self) -> String {
        let line = soon(self.stdin.recv()).await.expect("the proxy should hold the lines");
        self.confirms();
        String::from_utf8(line.to_vec()).unwrap()
    }

    /// Reads a request for this.
    pub(super) async fn reads_request(&mut self, method: &str) -> Value {
        let request = self.reads().await;
        assert_eq!(request["method"], method, "{request}");
        assert!(request["id"].is_u64(), "{request}");
        request
    }

    /// Reads the call of a tool.
    pub(super) async fn reads_call(&mut self, tool: &str) -> Value {
        let call = self.reads_request("tools/call").await;
        assert_eq!(call["params"]["name"], tool, "{call}");
        call
    }

    /// Whether there is nothing more to read. Needs a clock that stands still.
    pub(super) async fn reads_nothing(&mut self) -> bool {
        timeout(Duration::from_secs(1), self.stdin.recv()).await.is_err()
    }

    pub(super) async fn says(&self, message: &Value) {
        let mut message = message.clone();
        message["jsonrpc"] = json!("2.0");
        self.writes(&message.to_string()).await;
    }

    pub(super) async fn writes(&self, line: &str) {
        soon(self.stdout.send(line.to_owned().into())).await.unwrap();
    }

    pub(super) async fn answers(&self, request: &Value, result: &Value) {
        self.says(&json!({"id": request["id"], "result": result})).await;
    }

    /// Answers the call of a tool.
    pub(super) async fn returns(&self, call: &Value, text: &str) {
        self.answers(call, &tool_result(text)).await;
    }

    /// Tells how far a request is.
    pub(super) async fn tells_progress(&self, request: &Value, progress: f64) {
        let token = &request["params"]["_meta"]["progressToken"];
        let params = json!({"progressToken": token, "progress": progress});
        self.says(&json!({"method": "notifications/progress", "params": params})).await;
    }

    pub(super) async fn logs(&self, level: &str, text: &str) {
        let params = json!({"level": level, "data": text});
        self.says(&json!({"method": "notifications/message", "params": params})).await;
    }
}

pub(super) fn hello(capabilities: &Value) -> Value {
    let info = json!({"name": "fake", "version": "7"});
    json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info})
}

pub(super) fn tool_result(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}
