//! A client over lines, in front of hubs.

use std::future::pending;
use std::sync::Arc;

use mainstay_proxy::front::lines::{LineClient, serve_lines};
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, split,
};
use tokio::task::JoinHandle;

use super::{NAME, World};
use crate::soon;

pub(super) struct Desk {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
    served: JoinHandle<()>,
}

impl Desk {
    /// A client whose session is initialized, and the id of the session.
    pub(super) async fn opens(world: &World) -> (Self, String) {
        let mut desk = Self::with(world, None);
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "tester", "version": "1"},
        });
        desk.asks(0, "initialize", &params).await;
        assert_eq!(desk.reads().await["id"], 0);
        desk.says(&json!({"method": "notifications/initialized"})).await;
        let id = world.notes.records().last().unwrap().id.clone();
        (desk, id)
    }

    /// A client that comes back.
    pub(super) fn resumes(world: &World, session: &str) -> Self {
        Self::with(world, Some(session.to_owned()))
    }

    fn with(world: &World, resume: Option<String>) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reader, writer) = split(ours);
        let (input, output) = split(theirs);
        let client = LineClient { server: NAME.to_owned(), resume };
        let hubs = Arc::clone(&world.hubs);
        let served = tokio::spawn(async move {
            let served =
                serve_lines(hubs, client, BufReader::new(input), output, pending(), |_| {});
            // A client that goes may leave lines unread.
            served.await.ok();
        });
        Self { reader: BufReader::new(reader), writer, served }
    }

    /// Calls a tool. The server is told the id as `key`, too.
    pub(super) async fn calls(&mut self, id: u64, tool: &str) {
        let meta = json!({"progressToken": id});
        self.asks(id, "tools/call", &json!({"name": tool, "key": id, "_meta": meta})).await;
    }

    pub(super) async fn asks(&mut self, id: u64, method: &str, params: &Value) {
        self.says(&json!({"id": id, "method": method, "params": params})).await;
    }

    pub(super) async fn says(&mut self, message: &Value) {
        let mut message = message.clone();
        message["jsonrpc"] = json!("2.0");
        soon(self.writer.write_all(format!("{message}\n").as_bytes())).await.unwrap();
    }

    pub(super) async fn reads(&mut self) -> Value {
        let mut line = String::new();
        soon(self.reader.read_line(&mut line)).await.unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// What is written to it by now. Needs a clock that stands still.
    pub(super) async fn reads_all(&mut self) -> Vec<Value> {
        let mut all = Vec::new();
        let mut line = String::new();
        let moment = std::time::Duration::from_millis(1);
        while tokio::time::timeout(moment, self.reader.read_line(&mut line)).await.is_ok() {
            all.push(serde_json::from_str(&std::mem::take(&mut line)).unwrap());
        }
        all
    }

    /// Whether nothing more is written to it. Needs a clock that stands still.
    pub(super) async fn reads_nothing(&mut self) -> bool {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line);
        tokio::time::timeout(std::time::Duration::from_secs(1), read).await.is_err()
    }

    /// Its daemon drops it.
    pub(super) async fn dropped(self) {
        self.served.abort();
        self.served.await.ok();
    }
}
