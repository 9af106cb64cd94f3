//! A session with one run of a server.
//!
//! An [`Upstream`] is a cheap handle; one task owns what it stands for (see [`lines`] and [`http`])
//! and ends when the last handle is dropped or the link is gone. Requests may be made at the same
//! time from any number of clones. Up to [`IN_FLIGHT`] are with the server at once; others wait.

mod cancel;
mod cut;
mod error;
mod hello;
mod http;
mod lines;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc;

use self::cancel::CancelOnDrop;
pub use self::error::{Fault, UpstreamError};
pub use self::hello::{Hello, Identity};
use crate::frame::{self, Id, Outcome};

/// How many requests can be with one server at the same time.
const IN_FLIGHT: usize = 1024;
/// How many pages of a list are read before a server counts as never ending.
const MAX_PAGES: usize = 1000;
/// No line to a stdio server is longer, and none from it.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// The lines to and from a stdio server. They carry no newline.
#[derive(Debug)]
pub struct LineLink {
    /// Lines for the server's stdin.
    pub to_server: mpsc::Sender<Bytes>,
    /// Lines from its stdout. When this ends, the link is gone. Of a line that was too long to keep
    /// only the two ends come, with a newline between them, which no other line holds.
    pub from_server: mpsc::Receiver<Bytes>,
    /// Takes the lines from stdout that are no JSON-RPC; they are dropped while it is full.
    pub junk: mpsc::Sender<Bytes>,
}

/// Where a streamable HTTP server listens.
#[derive(Debug, Clone)]
pub struct HttpLink {
    /// Where it may listen, most likely address first. A new session belongs to the first of them
    /// at which it could be opened; a resumed one looks for the server at each of them every time.
    pub addrs: Vec<SocketAddr>,
    /// The path of its MCP endpoint, such as `/mcp`.
    pub path: String,
}

/// The way to a server.
#[derive(Debug)]
pub enum Link {
    /// A stdio server.
    Lines(LineLink),
    /// A streamable HTTP server.
    Http(HttpLink),
}

/// A handle on one initialized MCP session with one run of a server.
#[derive(Debug, Clone)]
pub struct Upstream {
    wire: Wire,
    next_id: Arc<AtomicU64>,
}

impl Upstream {
    /// Opens a session: `initialize`, then `notifications/initialized`.
    ///
    /// It goes on until the server has answered, and has no time limit: the caller sets one, and
    /// drops the future when it has passed, which leaves nothing behind. While an HTTP server is
    /// still coming up (it refuses or cuts connections, or answers 404, 502 or 503), it is asked
    /// again every 50 ms. `epoch` is as for [`resume`](Self::resume).
    pub async fn initialize(
        link: Link,
        identity: &Identity,
        epoch: u32,
    ) -> Result<(Self, Hello), UpstreamError> {
        let upstream = Self::new(link, epoch);
        let id = upstream.new_id();
        let params = hello::params(identity);
        let hello = match &upstream.wire {
            Wire::Lines(lines) => {
                Hello::read(lines.ask(id, "initialize", Some(&params)).await?, None)?
            }
            Wire::Http(http) => {
                let (result, session) = http.initialize(id, &params).await?;
                let hello = Hello::read(result, session)?;
                http.enter(&hello);
                hello
            }
        };
        upstream.notify("notifications/initialized").await?;
        Ok((upstream, hello))
    }

    /// Takes up a session that an earlier daemon initialized; `hello` is what it stored.
    ///
    /// Request ids are numbers that begin at `epoch << 32`, so that a late answer to a daemon with
    /// another epoch is never taken for one to this daemon. Must be called within a Tokio runtime.
    pub fn resume(link: Link, hello: &Hello, epoch: u32) -> Self {
        let upstream = Self::new(link, epoch);
        match &upstream.wire {
            Wire::Lines(_) => {}
            Wire::Http(http) => http.enter(hello),
        }
        upstream
    }

    /// Makes a request and waits for its result. Dropping the future cancels the request.
    pub async fn request(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let id = self.new_id();
        // Declared before the request, so that it is dropped after it.
        let cancel =
            CancelOnDrop::arm(self.wire.cancels(), id).await.ok_or_else(|| unsent(method))?;
        let answer = match &self.wire {
            Wire::Lines(lines) => lines.ask(id, method, params.as_deref()).await,
            Wire::Http(http) => http.ask(id, method, params.as_deref()).await,
        };
        cancel.disarm();
        answer
    }

    /// The server's tools, from all pages of the list.
    pub async fn tools(&self) -> Result<Vec<Box<RawValue>>, UpstreamError> {
        const METHOD: &str = "tools/list";
        let mut tools = Vec::new();
        let mut cursors = HashSet::new();
        let mut params = None;
        for _ in 0..MAX_PAGES {
            let result = self.request(METHOD, params).await?;
            let page: ToolsPage = serde_json::from_str(result.get()).map_err(|error| {
                protocol(METHOD, format_args!("a result without tools: {error}"))
            })?;
            tools.extend(page.tools);
            let Some(cursor) = page.next_cursor.filter(|cursor| !cursor.is_empty()) else {
                return Ok(tools);
            };
            params = Some(raw(&PageParams { cursor: &cursor }));
            if !cursors.insert(cursor) {
                return Err(protocol(METHOD, "a cursor that it had given before"));
            }
        }
        Err(protocol(METHOD, format_args!("more than {MAX_PAGES} pages")))
    }

    /// Calls a tool. The result is as the server wrote it; it may itself say `isError`.
    pub async fn call(
        &self,
        tool: &str,
        arguments: Box<RawValue>,
    ) -> Result<Box<RawValue>, UpstreamError> {
        let params = raw(&CallParams { name: tool, arguments: &arguments });
        self.request("tools/call", Some(params)).await
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<(), UpstreamError> {
        self.request("ping", None).await.map(drop)
    }

    /// Waits until the session can no longer be used: the lines ended, or the HTTP server said that
    /// it no longer knows the session. An HTTP server that cannot be reached may come back.
    pub async fn closed(&self) {
        match &self.wire {
            Wire::Lines(lines) => lines.closed().await,
            Wire::Http(http) => http.closed().await,
        }
    }

    fn new(link: Link, epoch: u32) -> Self {
        let wire = match link {
            Link::Lines(link) => Wire::Lines(lines::Lines::spawn(link)),
            Link::Http(link) => Wire::Http(http::Http::spawn(link)),
        };
        Self { wire, next_id: Arc::new(AtomicU64::new(first_id(epoch))) }
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    async fn notify(&self, method: &str) -> Result<(), UpstreamError> {
        let message = frame::notification(method, None);
        match &self.wire {
            Wire::Lines(lines) => lines.notify(method, message).await,
            Wire::Http(http) => http.notify(method, message).await,
        }
    }
}

#[derive(Debug, Clone)]
enum Wire {
    Lines(lines::Lines),
    Http(Arc<http::Http>),
}

impl Wire {
    fn cancels(&self) -> &mpsc::Sender<u64> {
        match self {
            Self::Lines(lines) => lines.cancels(),
            Self::Http(http) => http.cancels(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolsPage {
    tools: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct PageParams<'a> {
    cursor: &'a str,
}

#[derive(Serialize)]
struct CallParams<'a> {
    name: &'a str,
    arguments: &'a RawValue,
}

/// Servers written in JavaScript read numbers exactly up to 2^53 only, which leaves 21 bits for the
/// epoch. One run does not see two million daemons.
fn first_id(epoch: u32) -> u64 {
    u64::from(epoch & 0x1f_ffff) << 32
}

/// The answer to a request that the server makes of us.
fn reply(id: Id<'_>, method: &str) -> Bytes {
    if method == "ping" {
        return frame::result(id, &raw(&serde_json::Map::new()));
    }
    let message = format!("`{method}` is not offered: no client capability was announced");
    frame::error(id, frame::METHOD_NOT_FOUND, &message)
}

/// Turns the outcome that the server wrote into ours.
fn settled(method: &str, outcome: Outcome<'_>) -> Result<Box<RawValue>, UpstreamError> {
    #[derive(Deserialize)]
    struct RpcError {
        code: i64,
        #[serde(default)]
        message: String,
        data: Option<Box<RawValue>>,
    }
    let error = match outcome {
        Outcome::Ok(result) => return Ok(result.to_owned()),
        Outcome::Error(error) => error.get(),
    };
    let RpcError { code, message, data } = serde_json::from_str(error).map_err(|_| {
        let error = error::excerpt(error.as_bytes());
        protocol(method, format_args!("something that is no error object: {error}"))
    })?;
    Err(UpstreamError::Rpc { method: method.to_owned(), code, message, data })
}

fn cancelled(id: u64) -> Bytes {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        request_id: u64,
    }
    frame::notification("notifications/cancelled", Some(&raw(&Params { request_id: id })))
}

/// The server went away with the request, or before the request was on its way.
fn closed(method: &str, sent: bool) -> UpstreamError {
    UpstreamError::Closed { method: method.to_owned(), sent }
}

fn unsent(method: &str) -> UpstreamError {
    closed(method, false)
}

fn protocol(method: &str, what: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::Protocol(format!("the server answered `{method}` with {what}"))
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("our parameters are strings, numbers and raw JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_different_daemons_differ_and_javascript_can_read_them() {
        assert_eq!(first_id(0), 0);
        assert_eq!(first_id(3), 3 << 32);
        assert!(first_id(u32::MAX) + u64::from(u32::MAX) < 1 << 53);
    }
}
