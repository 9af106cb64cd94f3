//! Requests that a killed daemon did not answer.
//!
//! Their connections stayed open ([`ConnectionStore`](super::ConnectionStore)), and this daemon answers them: several
//! clients end their whole session if a connection is closed before the head of a response. A request that was being
//! read is read again.

use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown};
use tokio::time::timeout;

use super::connection_state::ConnectionState;
use super::reply;
use super::socket::Socket;
use super::store::{IDLE, Interrupted};
use super::unfinished::{Finished, write_all};

/// How long to wait for a request on a connection of which it is not known whether its client waits for a response.
const NEXT_REQUEST: Duration = Duration::from_secs(2);

const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// A response without an answer. A client that takes the end of the connection for the end of the response fails to
/// parse it, and only that call fails.
const NO_ANSWER: &[u8] = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n";

/// Answers the request that a connection was interrupted at.
pub(super) async fn answer(
    socket: &impl Socket,
    conn: &ConnectionState,
    state: &Interrupted,
) -> Finished {
    let next_request = async || {
        let peeked = timeout(NEXT_REQUEST, socket.peek()).await;
        matches!(peeked, Ok(Ok(1..)))
    };
    let response = match state {
        // What was read of a request is read again with its rest.
        Interrupted::Idle | Interrupted::Reading(_) => return Finished::Reusable,
        Interrupted::Writing if next_request().await => {
            conn.record(IDLE, b"");
            return Finished::Reusable;
        }
        // The response may have been written in part.
        Interrupted::Writing => return Finished::Close,
        Interrupted::Accepted => ACCEPTED.into(),
        Interrupted::Answering(Some(id)) => failure(id),
        Interrupted::Answering(None) => NO_ANSWER.into(),
        Interrupted::ReadingLong => {
            // The rest of it may be on its way.
            next_request().await;
            NO_ANSWER.into()
        }
    };
    // What the killed daemon had read behind the request is lost, and the client may have wanted the connection to be
    // closed.
    if write_all(socket, conn, &response).await.is_ok()
        && rustix::net::shutdown(socket, Shutdown::Write).is_ok()
    {
        // If something is unread when it is closed, the client may lose the response.
        drop(timeout(NEXT_REQUEST, discard(socket)).await);
    }
    Finished::Close
}

/// Reads until the client closes the connection.
async fn discard(socket: &impl Socket) {
    let mut bytes = [0; 4096];
    while matches!(socket.receive(&mut bytes, RecvFlags::empty()).await, Ok(1..)) {}
}

/// The response to a request with this id.
fn failure(id: &str) -> Vec<u8> {
    let body = reply::failed(Some(id), reply::INTERRUPTED);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}
