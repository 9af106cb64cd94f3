//! A stdio server that says what a test tells it to.

use bytes::Bytes;
use mainstay_proxy::{Hello, LineLink, Link, Upstream, UpstreamError};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::{HELLO, raw, soon};

/// The server's end of the lines.
pub(crate) struct Fake {
    pub(crate) stdin: mpsc::Receiver<Bytes>,
    pub(crate) stdout: mpsc::Sender<Bytes>,
    pub(crate) junk: mpsc::Receiver<Bytes>,
}

impl Fake {
    pub(crate) fn new(room: usize) -> (Self, Link) {
        let (to_server, stdin) = mpsc::channel(room);
        let (stdout, from_server) = mpsc::channel(room);
        let (junk_in, junk) = mpsc::channel(room);
        let link = LineLink { to_server, from_server, junk: junk_in };
        (Self { stdin, stdout, junk }, Link::Lines(link))
    }

    /// A server with which a session was initialized.
    pub(crate) fn resumed(room: usize, epoch: u32) -> (Self, Upstream) {
        let (fake, link) = Self::new(room);
        (fake, Upstream::resume(link, &hello(), epoch))
    }

    pub(crate) async fn reads(&mut self) -> Value {
        let line = soon(self.stdin.recv()).await.expect("the link should be open");
        assert!(!line.contains(&b'\n'), "{line:?}");
        serde_json::from_slice(&line).unwrap()
    }

    /// Reads a request and gives its id.
    pub(crate) async fn reads_request(&mut self, method: &str) -> u64 {
        let request = self.reads().await;
        assert_eq!(request["method"], method, "{request}");
        request["id"].as_u64().unwrap()
    }

    pub(crate) async fn says(&self, line: impl Into<Bytes>) {
        soon(self.stdout.send(line.into())).await.unwrap();
    }

    pub(crate) async fn answers(&self, id: u64, result: &str) {
        self.says(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
    }
}

fn hello() -> Hello {
    Hello {
        protocol_version: "2025-11-25".to_owned(),
        server_name: None,
        server_version: None,
        result: raw(HELLO),
        http_session: None,
    }
}

/// Makes a request in the background.
pub(crate) fn asks(
    upstream: &Upstream,
    method: &'static str,
) -> JoinHandle<Result<String, UpstreamError>> {
    let upstream = upstream.clone();
    tokio::spawn(async move { Ok(upstream.request(method, None).await?.get().to_owned()) })
}
