//! One request and the head of its answer, over one connection.
//!
//! The whole request is one write if the kernel takes it. While it does not, the connection is also read: a server that
//! refuses a long body may respond and stop reading, and its response is worth more than a write error.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::conn::Conn;
use super::error::SendError;
use super::head::{Head, HeadError, MAX_HEAD};
use super::request::Outgoing;

/// How much is read at once, at least.
pub(super) const READ: usize = 4 << 10;

/// The head of an answer, and what came with it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: Head,
    pub(super) text: Bytes,
    pub(super) rest: BytesMut,
}

/// Sends a request and reads the head of its answer. A failure that was not [`SendError::sent`]
/// leaves the request whole, so that another connection can be tried.
pub(super) async fn exchange(conn: &mut Conn, out: &mut Outgoing<'_>) -> Result<Answer, SendError> {
    let mut early = BytesMut::new();
    let mut done = 0;
    let written = poll_fn(|cx| poll_send(conn, cx, out, &mut done, &mut early)).await;
    match written {
        Ok(()) if early.is_empty() => {
            let mut room = mem::take(&mut out.front);
            room.clear();
            read_head(conn, room).await
        }
        Ok(()) => read_head(conn, early).await,
        Err(error) if done == 0 && conn.writes_directly() => Err(SendError::Unsent(error)),
        Err(error) => match read_head(conn, early).await {
            Ok(mut answer) => {
                // The server may wait for the rest of the request forever.
                answer.head.keep = None;
                Ok(answer)
            }
            Err(SendError::Cut(_)) => Err(SendError::Cut(Some(error))),
            Err(other) => Err(other),
        },
    }
}

/// Writes all of `out`; fails also when the server ends the connection or refuses the request
/// first.
fn poll_send(
    conn: &mut Conn,
    cx: &mut Context<'_>,
    out: &Outgoing<'_>,
    done: &mut usize,
    early: &mut BytesMut,
) -> Poll<io::Result<()>> {
    while *done < out.len() {
        match poll_write(Pin::new(conn), cx, out.after(*done)) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => *done += written,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return poll_refusal(conn, cx, early).map(Err),
        }
    }
    Pin::new(conn).poll_flush(cx)
}

fn poll_write(
    conn: Pin<&mut Conn>,
    cx: &mut Context<'_>,
    [front, rest]: [&[u8]; 2],
) -> Poll<io::Result<usize>> {
    if rest.is_empty() {
        conn.poll_write(cx, front)
    } else {
        conn.poll_write_vectored(cx, &[IoSlice::new(front), IoSlice::new(rest)])
    }
}

/// Listens while the request is being written. What comes is kept in `early`.
fn poll_refusal(conn: &mut Conn, cx: &mut Context<'_>, early: &mut BytesMut) -> Poll<io::Error> {
    loop {
        early.reserve(READ);
        let mut read = std::pin::pin!(conn.read_buf(early));
        let outcome = ready!(read.as_mut().poll(cx));
        match outcome {
            Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Poll::Ready(error),
            Ok(_) => {}
        }
        // Anything but a refusal can wait until the request is written; so can nonsense.
        if refused(early) {
            return Poll::Ready(io::Error::other("the server answered before the request's end"));
        }
    }
}

fn refused(text: &[u8]) -> bool {
    match Head::parse(text) {
        Ok(Some(head)) if head.is_interim() => refused(&text[head.len..]),
        Ok(Some(head)) => head.status >= 400,
        Ok(None) => false,
        Err(_) => true,
    }
}

async fn read_head(conn: &mut Conn, mut buf: BytesMut) -> Result<Answer, SendError> {
    // A head ends with a line, so it is parsed again only after the end of one.
    let mut due = !buf.is_empty();
    // Interim responses are limited, too.
    let mut interim = 0;
    loop {
        while due && let Some(head) = Head::parse(&buf)? {
            if !head.is_interim() {
                let text = buf.split_to(head.len).freeze();
                return Ok(Answer { head, text, rest: buf });
            }
            interim += head.len;
            if interim > MAX_HEAD {
                return Err(HeadError::TooLong.into());
            }
            buf.advance(head.len);
            due = !buf.is_empty();
        }
        let seen = buf.len();
        buf.reserve(READ);
        match conn.read_buf(&mut buf).await {
            Ok(0) => return Err(SendError::Cut(None)),
            Ok(_) => due = seen == 0 || buf.len() >= MAX_HEAD || buf[seen..].contains(&b'\n'),
            Err(error) => return Err(SendError::Cut(Some(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::client::request::{Method, Request};

    /// An idle connection that the server resets after it was checked.
    #[tokio::test]
    async fn a_request_that_cannot_be_begun_stays_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        peer.set_zero_linger().unwrap();
        drop(peer);
        stream.readable().await.unwrap();

        let request = Request { method: Method::Post, headers: &[], body: b"{}" };
        let room = BytesMut::new();
        let mut out = Outgoing::new(room, b" / HTTP/1.1\r\n", &[], &request).unwrap();
        let error = exchange(&mut Conn::plain(stream), &mut out).await.unwrap_err();
        assert!(matches!(error, SendError::Unsent(_)) && !error.sent(), "{error:?}");
        assert!(out.front.starts_with(b"POST / ") && out.front.ends_with(b"{}"));
    }
}
