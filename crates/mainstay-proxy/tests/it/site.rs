//! A streamable HTTP server that writes raw text.

use std::net::SocketAddr;

use mainstay_proxy::{Hello, HttpLink, Link, Upstream, UpstreamError};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::{HELLO, identity, raw, soon};

pub(crate) struct Site {
    pub(crate) listener: TcpListener,
}

/// One request, to be answered.
pub(crate) struct Turn {
    pub(crate) head: String,
    pub(crate) body: String,
    pub(crate) stream: TcpStream,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// A session as if initialized before.
    pub(crate) fn resumed(&self, session: Option<&str>) -> Upstream {
        Self::resumed_at(&[self.addr()], session)
    }

    pub(crate) fn resumed_at(addrs: &[SocketAddr], session: Option<&str>) -> Upstream {
        let hello = Hello {
            protocol_version: "2025-06-18".to_owned(),
            server_name: None,
            server_version: None,
            result: raw(HELLO),
            http_session: session.map(str::to_owned),
        };
        Upstream::resume(link(addrs), &hello, 1)
    }

    /// Waits for the next request.
    pub(crate) async fn turn(&self) -> Turn {
        let (mut stream, _) = soon(self.listener.accept()).await.unwrap();
        let mut text = Vec::new();
        let head = loop {
            if let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            assert_ne!(soon(stream.read_buf(&mut text)).await.unwrap(), 0, "{text:?}");
        };
        let mut body = text.split_off(head);
        let head = String::from_utf8(text).unwrap().to_lowercase();
        let length: usize = header(&head, "content-length").map_or(0, |text| text.parse().unwrap());
        while body.len() < length {
            assert_ne!(soon(stream.read_buf(&mut body)).await.unwrap(), 0, "{body:?}");
        }
        Turn { head, body: String::from_utf8(body).unwrap(), stream }
    }
}

impl Turn {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub(crate) fn message(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) async fn writes(&mut self, text: &str) {
        soon(self.stream.write_all(text.as_bytes())).await.unwrap();
    }

    /// Answers with a body of known length.
    pub(crate) async fn answers(mut self, head: &str, body: &str) {
        let length = body.len();
        self.writes(&format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\n\r\n{body}")).await;
    }

    /// Answers the request with a result as JSON.
    pub(crate) async fn gives(self, headers: &str, result: &str) {
        let head = format!("200 OK\r\nContent-Type: application/json; charset=utf-8{headers}");
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.message()["id"]);
        self.answers(&head, &body).await;
    }

    /// Begins an event stream, whose end is the end of the connection.
    pub(crate) async fn streams(&mut self, events: &str) {
        self.writes(&format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{events}"))
            .await;
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

pub(crate) fn link(addrs: &[SocketAddr]) -> Link {
    Link::Http(HttpLink { addrs: addrs.into(), path: "/mcp".to_owned() })
}

pub(crate) fn opens(addrs: &[SocketAddr]) -> JoinHandle<Result<(Upstream, Hello), UpstreamError>> {
    let link = link(addrs);
    tokio::spawn(async move { Upstream::initialize(link, &identity(), 1).await })
}

/// A port at which nobody listens while the socket is kept.
pub(crate) fn silent() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

pub(crate) fn asks(upstream: &Upstream) -> JoinHandle<Result<String, UpstreamError>> {
    let upstream = upstream.clone();
    tokio::spawn(async move { Ok(upstream.request("tools/list", None).await?.get().to_owned()) })
}
