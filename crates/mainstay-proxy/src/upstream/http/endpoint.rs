//! Sending one HTTP request to an MCP endpoint.
//!
//! Each request has a connection of its own. A kept one may be closed by the server at the very
//! moment we write to it, and a tool call that may have arrived cannot be repeated.

use std::io;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::upstream::{Hello, HttpLink, UpstreamError, closed, protocol};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Where to send, and in which session.
#[derive(Debug)]
pub(super) struct Endpoint {
    link: HttpLink,
    session: Mutex<Session>,
}

/// A request sent and the beginning of its answer.
pub(super) struct Exchange {
    pub(super) response: Response<Incoming>,
    /// Whether the request named a session.
    pub(super) in_session: bool,
    /// Drives the connection while the body is read, and is aborted with it.
    _connection: JoinSet<()>,
}

impl Endpoint {
    pub(super) fn new(link: HttpLink) -> Self {
        Self { link, session: Mutex::default() }
    }

    /// Forgets the session.
    pub(super) fn leave(&self) {
        self.with_session(|session| *session = Session::default());
    }

    /// Keeps the id that the server gives in its answer to `initialize`.
    pub(super) fn keep_session(&self, headers: &HeaderMap) {
        self.with_session(|session| session.id = headers.get(SESSION_ID).cloned());
    }

    /// The id of the session, if it has one.
    pub(super) fn session(&self) -> Option<String> {
        self.with_session(|session| Some(session.id.as_ref()?.to_str().ok()?.to_owned()))
    }

    /// Takes up the session. What cannot be a header was never taken from one, and is left out.
    pub(super) fn enter(&self, hello: &Hello) {
        let value = |text: &String| HeaderValue::from_str(text).ok();
        let id = hello.http_session.as_ref().and_then(value);
        let version = value(&hello.protocol_version);
        self.with_session(|session| *session = Session { id, version });
    }

    /// Posts a message. `method` names it in errors.
    pub(super) async fn post(&self, method: &str, body: Bytes) -> Result<Exchange, UpstreamError> {
        let head = Request::builder()
            .method(Method::POST)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream");
        self.send(method, head, body).await
    }

    /// Asks for what follows an event in a stream that was cut.
    pub(super) async fn get(&self, method: &str, last_id: &str) -> Result<Exchange, UpstreamError> {
        let head = Request::builder()
            .method(Method::GET)
            .header(header::ACCEPT, "text/event-stream")
            .header(LAST_EVENT_ID, last_id);
        self.send(method, head, Bytes::new()).await
    }

    async fn send(
        &self,
        method: &str,
        head: Builder,
        body: Bytes,
    ) -> Result<Exchange, UpstreamError> {
        let session = self.with_session(|session| session.clone());
        let in_session = session.id.is_some();
        let mut request = head
            .uri(self.link.path.as_str())
            .header(header::HOST, self.link.addr.to_string())
            .body(Full::new(body))
            .map_err(|error| {
                let path = &self.link.path;
                UpstreamError::Protocol(format!("cannot send `{method}` to `{path}`: {error}"))
            })?;
        request.headers_mut().extend(session.headers());
        let stream = self.connect(method).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| closed(method))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // An error of the connection also reaches whoever waits for the answer.
            connection.await.ok();
        });
        let response = sender.send_request(request).await.map_err(|error| {
            if error.is_parse() {
                protocol(method, format_args!("something that is no HTTP: {error}"))
            } else {
                closed(method)
            }
        })?;
        Ok(Exchange { response, in_session, _connection: driver })
    }

    async fn connect(&self, method: &str) -> Result<TcpStream, UpstreamError> {
        let addr = self.link.addr;
        let failed =
            |source: io::Error| UpstreamError::Connect { method: method.to_owned(), addr, source };
        let stream = TcpStream::connect(addr).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(stream)
    }

    fn with_session<T>(&self, work: impl FnOnce(&mut Session) -> T) -> T {
        // Every change is one assignment, so a panic elsewhere leaves nothing half done.
        work(&mut self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug, Clone, Default)]
struct Session {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

impl Session {
    fn headers(self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let id = self.id.map(|id| (SESSION_ID, id));
        let version = self.version.map(|version| (PROTOCOL_VERSION, version));
        id.into_iter().chain(version)
    }
}
