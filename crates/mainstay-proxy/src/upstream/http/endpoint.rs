//! Sending one HTTP request to an MCP endpoint.
//!
//! Each request has a connection of its own. A kept one may be closed by the server at the very
//! moment we write to it, and a tool call that may have arrived cannot be repeated.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::upstream::{Hello, HttpLink, UpstreamError, closed, protocol, unsent};

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
    /// Where it was sent.
    addr: SocketAddr,
    /// Whether the request named a session.
    pub(super) in_session: bool,
    /// Drives the connection while the body is read, and is aborted with it.
    _connection: JoinSet<()>,
}

impl Endpoint {
    pub(super) fn new(link: HttpLink) -> Self {
        Self { link, session: Mutex::default() }
    }

    /// Forgets the session, and where it was.
    pub(super) fn leave(&self) {
        self.with_session(|session| *session = Session::default());
    }

    /// Keeps where `initialize` was answered, and the id that the server gives in its answer.
    pub(super) fn keep_session(&self, opened: &Exchange) {
        let id = opened.response.headers().get(SESSION_ID).cloned();
        self.with_session(|session| (session.id, session.addr) = (id, Some(opened.addr)));
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
        self.with_session(|session| (session.id, session.version) = (id, version));
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
        let path = self.link.path.as_str();
        let mut request = head.uri(path).body(Full::new(body)).map_err(|source| {
            UpstreamError::BadPath { method: method.to_owned(), path: path.to_owned(), source }
        })?;
        let (stream, addr) = self.connect(method, session.addr).await?;
        request.headers_mut().insert(header::HOST, host(addr));
        request.headers_mut().extend(session.headers());
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| unsent(method))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // An error of the connection also reaches whoever waits for the answer.
            connection.await.ok();
        });
        let response = sender.try_send_request(request).await.map_err(|failed| {
            if failed.error().is_parse() {
                let error = failed.error();
                protocol(method, format_args!("something that is no HTTP: {error}"))
            } else {
                // A request that was not begun to be written comes back.
                closed(method, failed.message().is_none())
            }
        })?;
        Ok(Exchange { response, addr, in_session, _connection: driver })
    }

    /// Connects to where the session is, or else to the first candidate that accepts.
    async fn connect(
        &self,
        method: &str,
        session_at: Option<SocketAddr>,
    ) -> Result<(TcpStream, SocketAddr), UpstreamError> {
        let candidates = session_at.map_or_else(|| self.link.addrs.clone(), |addr| vec![addr]);
        let mut first_error = None;
        for &addr in &candidates {
            match dial(addr).await {
                Ok(stream) => return Ok((stream, addr)),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let unknown = || io::Error::new(io::ErrorKind::InvalidInput, "no address is known");
        let source = first_error.unwrap_or_else(unknown);
        Err(UpstreamError::Connect { method: method.to_owned(), addrs: candidates, source })
    }

    fn with_session<T>(&self, work: impl FnOnce(&mut Session) -> T) -> T {
        // Every change is one assignment, so a panic elsewhere leaves nothing half done.
        work(&mut self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn host(addr: SocketAddr) -> HeaderValue {
    HeaderValue::from_str(&addr.to_string()).expect("an address is written in plain ASCII")
}

async fn dial(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[derive(Debug, Clone, Default)]
struct Session {
    /// Where it was opened; none if it was resumed, or is not open yet.
    addr: Option<SocketAddr>,
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
