//! A client over lines, in front of servers.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_proxy::bridge::{self, Resumed};
use mainstay_proxy::client::{Client, ConnectError, Connecting, Connector, Target};
use mainstay_proxy::front::http::{ListenerKind, serve_private};
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, split,
};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::daemons_http::config;
use super::{NAME, World};
use crate::soon;

pub(super) struct StdioClient {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
    bridge: JoinSet<()>,
    front: JoinSet<()>,
    connections: Connections,
    kind: ListenerKind,
}

/// Where connections to the present front go.
type Connections = Arc<Mutex<Option<mpsc::Sender<UnixStream>>>>;

/// Connects to the front of a [`StdioClient`]. Connections may be delayed by different times.
struct Front {
    connections: Connections,
    max_delay: u64,
    count: AtomicU64,
}

impl Connector for Front {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let count = self.count.fetch_add(1, Ordering::Relaxed);
            if let Some(delay) = (count * 7919).checked_rem(self.max_delay) {
                sleep(Duration::from_millis(delay)).await;
            }
            let front = self.connections.lock().unwrap().clone().ok_or(ConnectError::Absent)?;
            front.send(theirs).await.map_err(|_| ConnectError::Absent)?;
            Ok(ours)
        })
    }
}

impl StdioClient {
    /// A client whose session is initialized, and the id of the session.
    pub(super) async fn opens(world: &World) -> (Self, String) {
        Self::opens_as(world, "2025-11-25").await
    }

    /// The same, with another protocol version.
    pub(super) async fn opens_as(world: &World, version: &str) -> (Self, String) {
        Self::new(world).initialized(world, version).await
    }

    /// As [`StdioClient::opens`], with connections that are delayed, and listeners of this kind.
    pub(super) async fn opens_delayed(world: &World, kind: ListenerKind) -> Self {
        Self::with(world, None, kind, 13).initialized(world, "2025-11-25").await.0
    }

    async fn initialized(mut self, world: &World, version: &str) -> (Self, String) {
        let params = json!({
            "protocolVersion": version,
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "tester", "version": "1"},
        });
        self.asks(0, "initialize", &params).await;
        assert_eq!(self.reads().await["id"], 0);
        self.says(&json!({"method": "notifications/initialized"})).await;
        let id = world.notes.records().last().unwrap().id.clone();
        (self, id)
    }

    /// A client without a session.
    pub(super) fn new(world: &World) -> Self {
        Self::with(world, None, ListenerKind::Private, 0)
    }

    /// A client that comes back.
    pub(super) fn resumes(world: &World, session: &str) -> Self {
        let requests = world.servers.pending(NAME, session);
        let resumed = Resumed { session: session.to_owned(), requests };
        Self::with(world, Some(resumed), ListenerKind::Private, 0)
    }

    fn with(world: &World, resumed: Option<Resumed>, kind: ListenerKind, max_delay: u64) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reader, writer) = split(ours);
        let connections = Connections::default();
        let front = serve(world, &connections, kind);
        let target = Target::private(&format!("/{NAME}/mcp")).unwrap();
        let (count, to) = (AtomicU64::new(0), Arc::clone(&connections));
        let client = Client::over(target, Front { connections: to, max_delay, count });
        let mut bridge = JoinSet::new();
        bridge.spawn(async move {
            let carried = bridge::run(client, resumed, 1 << 20, split(theirs), pending());
            // A client that goes may leave lines unread.
            carried.await.ok();
        });
        Self { reader: BufReader::new(reader), writer, bridge, front, connections, kind }
    }

    /// Its connections are cut, and no daemon runs.
    pub(super) async fn is_cut(&mut self) {
        self.connections.lock().unwrap().take();
        self.front.shutdown().await;
    }

    /// Its connections are cut, and it connects to another daemon.
    pub(super) async fn moves_to(&mut self, world: &World) {
        self.is_cut().await;
        self.front = serve(world, &self.connections, self.kind);
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
        self.writes(&message).await;
    }

    pub(super) async fn writes(&mut self, line: &Value) {
        soon(self.writer.write_all(format!("{line}\n").as_bytes())).await.unwrap();
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

    /// Its process is killed.
    pub(super) async fn killed(&mut self) {
        self.bridge.shutdown().await;
    }

    /// Its daemon drops it.
    pub(super) async fn dropped(mut self) {
        self.front.shutdown().await;
        self.bridge.shutdown().await;
    }
}

/// Serves the servers of a world.
fn serve(world: &World, connections: &Connections, kind: ListenerKind) -> JoinSet<()> {
    let (connect, accepted) = mpsc::channel(8);
    *connections.lock().unwrap() = Some(connect);
    let (servers, mut front) = (Arc::clone(&world.servers), JoinSet::new());
    front.spawn(async move {
        let config = config(None, kind);
        serve_private(accepted, Vec::new(), servers, config, pending()).await;
    });
    front
}
