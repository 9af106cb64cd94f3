//! The HTTP client against servers that write raw text.

mod answers;
mod connections;
mod faults;
mod tls;

use std::net::SocketAddr;

use bytes::Bytes;
use mainstay_mcp::client::{BodyError, Client, Method, Request, Response, SendError, Target};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::soon;

/// More than any answer here.
const ENOUGH: usize = 1 << 20;
const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

struct Host {
    listener: TcpListener,
}

impl Host {
    async fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn client(&self) -> Client {
        client(&[self.addr()])
    }

    async fn accept(&self) -> TcpStream {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Takes a request on a new connection, writes an answer, and gives the open connection.
    async fn answers(&self, text: &str) -> TcpStream {
        let mut stream = self.accept().await;
        answers(&mut stream, text).await;
        stream
    }
}

fn client(addrs: &[SocketAddr]) -> Client {
    Client::new(Target::local(addrs.to_vec(), "/mcp").unwrap())
}

fn post(body: &[u8]) -> Request<'_> {
    Request { method: Method::Post, headers: &[("accept", "application/json")], body }
}

/// Takes a request on this connection and writes an answer.
async fn answers(stream: &mut TcpStream, text: &str) {
    request(stream).await;
    soon(stream.write_all(text.as_bytes())).await.unwrap();
}

/// The text of one request.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    loop {
        let head = text.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
        if head.is_some_and(|head| text.len() == head + length(&text[..head])) {
            return String::from_utf8(text).unwrap();
        }
        assert_ne!(soon(stream.read_buf(&mut text)).await.unwrap(), 0, "{text:?}");
    }
}

fn length(head: &[u8]) -> usize {
    let head = str::from_utf8(head).unwrap();
    let value = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    value.map_or(0, |value| value.parse().unwrap())
}

async fn sends(client: &Client, request: Request<'_>) -> Result<Response, SendError> {
    soon(client.send(request)).await
}

/// Sends a request and reads the whole answer.
async fn call(client: &Client) -> (u16, Bytes) {
    let mut response = sends(client, post(b"{}")).await.unwrap();
    (response.status(), whole(&mut response).await.unwrap())
}

async fn whole(response: &mut Response) -> Result<Bytes, BodyError> {
    soon(response.bytes(ENOUGH)).await
}

/// Waits until the client has closed this connection.
async fn is_closed(stream: &mut TcpStream) {
    let mut rest = [0; 64];
    // A connection closed with something unread is reset.
    assert!(matches!(soon(stream.read(&mut rest)).await, Ok(0) | Err(_)));
}

/// The whole chain of an error.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
