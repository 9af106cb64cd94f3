//! Responses that the next daemon continues.
//!
//! When another daemon takes over, a response whose stream is written down stops between two parts of its body. Its
//! connection is passed on together with an [`UnfinishedResponse`], and the next daemon writes the rest
//! ([`finish`]). The client notices nothing.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Body as _;
use mainstay_session::{Arrival, EventId, Found};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::body::{Body, Opening, Streamed};
use super::connection_state::ConnectionState;
use super::head::Accept;
use super::post::Asked;
use super::socket::Socket;
use super::{Front, get, post, reply};
use crate::frame::Parsed;

/// A response of which the rest is still to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedResponse {
    pub(super) server: String,
    pub(super) session: String,
    /// The last event of its stream that the client was sent.
    pub(super) event: String,
    pub(super) form: Form,
    pub(super) framing: Framing,
    /// The `initialize` that it answers, if the next daemon repeats that.
    #[serde(default)]
    pub(super) repeated: Option<String>,
}

/// What the body consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Form {
    Events(Opening),
    Json,
}

/// How the client recognizes the end of the body. Stricter framings come later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Framing {
    /// By the last chunk. The connection can be used again.
    Chunked,
    /// By the last chunk. The connection is closed then.
    ChunkedThenClose,
    /// By the end of the connection.
    UntilClose,
}

impl UnfinishedResponse {
    /// As bytes for another daemon.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Self::encode`] made in another daemon. `None` if that daemon is of a version that describes
    /// responses differently.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// What becomes of a connection after [`finish`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finished {
    /// The response is complete, and the connection can be used again.
    Reusable,
    /// The response is complete or cannot be completed. The connection must be closed.
    Close,
    /// Yet another daemon takes over.
    Left(Box<UnfinishedResponse>),
}

/// Writes the rest of a response that an earlier daemon began.
pub(super) async fn finish(
    front: &Front,
    conn: &Arc<ConnectionState>,
    socket: &impl Socket,
    response: UnfinishedResponse,
) -> Finished {
    if conn.is_passed_on() {
        return Finished::Left(Box::new(response));
    }
    conn.require(response.framing);
    let Some(mut body) = rest(front, &response).await else { return Finished::Close };
    let only_listens = response.form != Form::Json && body.is_general();
    if body.track_stream(conn) {
        conn.start_streaming(only_listens);
    }
    let written = write(socket, &mut body, conn, response.framing).await;
    drop(body);
    match (written, conn.take_unfinished()) {
        (Ok(()), Some(left)) => Finished::Left(left),
        (Ok(()), None) if response.framing == Framing::Chunked => Finished::Reusable,
        (Ok(()), None) | (Err(_), _) => Finished::Close,
    }
}

/// The rest of the body. `None` if nothing is known of the session.
async fn rest(front: &Front, response: &UnfinishedResponse) -> Option<Body> {
    let UnfinishedResponse { server, session, event, form, framing: _, repeated } = response;
    if let Some(request) = repeated {
        return repeat_initialize(front, server, session, (request, *form));
    }
    let session = front.servers.find(server, session, None).await.ok()?;
    let event: EventId = event.parse().ok()?;
    Some(match (session.find(&event), *form) {
        (Found::General(start), form @ Form::Events(_)) => {
            get::general(front, &session, start, Some(event), form)?.into()
        }
        (Found::Request(stream, start), form) => {
            Streamed::new(&session, session.resume(stream, start)?, event, form).into()
        }
        (Found::Gone(Some(id)), form) => Body::Full(reply::lost(&id, form == Form::Json)),
        (Found::Over | Found::Gone(None), _) | (Found::General(_), Form::Json) => {
            Body::Full(Bytes::new())
        }
    })
}

/// The body for an `initialize` that an earlier daemon did not answer.
fn repeat_initialize(
    front: &Front,
    server: &str,
    session: &str,
    (request, form): (&str, Form),
) -> Option<Body> {
    let message = Parsed::read(Bytes::copy_from_slice(request.as_bytes())).ok()?;
    let session = front.servers.open_as(server, session).ok()?;
    let accept = Accept { json: form == Form::Json, events: form != Form::Json };
    let asked = Asked::initialize(session, accept, &message);
    let reader = asked.session.request(message, Arrival::New);
    Some(post::commit(front, asked, reader, Instant::now()).into_body())
}

/// Writes a body until its end, or until it is [left](ConnectionState::leave_response) to another daemon. An error means that
/// the client has gone.
async fn write(
    socket: &impl Socket,
    body: &mut Body,
    conn: &ConnectionState,
    framing: Framing,
) -> io::Result<()> {
    let mut is_watched = true;
    loop {
        let part = tokio::select! {
            biased;
            part = poll_fn(|cx| {
                let part = pin!(&mut *body).poll_frame(cx);
                if part.is_pending() {
                    conn.flushed();
                }
                part
            }) => part,
            () = conn.response_left() => return Ok(()),
            // What else it sends is the next request, which is read after this one.
            left = has_left(socket), if is_watched => {
                left?;
                is_watched = false;
                continue;
            }
        };
        let data = match part {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(never)) => match never {},
            None if framing == Framing::UntilClose => return Ok(()),
            None => {
                conn.start_writing();
                return write_all(socket, conn, b"0\r\n\r\n").await;
            }
        };
        if data.is_empty() {
            continue;
        }
        // Not after it: another daemon must not write it twice.
        conn.start_writing();
        match framing {
            Framing::UntilClose => write_all(socket, conn, &data).await?,
            Framing::Chunked | Framing::ChunkedThenClose => {
                let head = format!("{:X}\r\n", data.len());
                write_all(socket, conn, &[head.as_bytes(), &data, b"\r\n"].concat()).await?;
            }
        }
    }
}

/// Resolves when the client has sent something, or, with an error, has closed the connection.
async fn has_left(socket: &impl Socket) -> io::Result<()> {
    match socket.peek().await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Writes all bytes. Meanwhile the [`ConnectionState`] knows whether the client reads.
pub(super) async fn write_all(
    socket: &impl Socket,
    conn: &ConnectionState,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut writable = pin!(socket.writable());
        poll_fn(|cx| {
            let polled = writable.as_mut().poll(cx);
            conn.record_write(0, polled.is_pending());
            polled
        })
        .await?;
        match socket.try_write(bytes) {
            Ok(count) => {
                conn.record_write(count, false);
                bytes = &bytes[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
