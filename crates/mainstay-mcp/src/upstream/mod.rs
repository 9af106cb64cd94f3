//! Connections to servers, and the requests of Mainstay itself.

pub mod cut;
mod error;
mod hello;

use std::fmt::Display;

use bytes::Bytes;
use mainstay_core::Interruption;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, watch};

pub use self::error::{UpstreamError, excerpt};
pub use self::hello::{Hello, Identity, params, plain_params};
use crate::client::{SendError, Target};
use crate::frame::{Kind, Parsed};

/// Marks lines of a log that a server wrote to standard output although they are not MCP messages.
pub const NO_MESSAGE: &str = "[stdout] ";

/// No line to a stdio server is longer, and none from it, and no answer of any server.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// The lines to and from a stdio server. They carry no newline.
#[derive(Debug)]
pub struct LineLink {
    /// Lines for the server's stdin.
    pub to_server: mpsc::Sender<Bytes>,
    /// Lines from its stdout. When this ends, the link is gone. Of a line that was too long to keep
    /// only the two ends come, with a newline between them, which no other line holds.
    pub from_server: mpsc::Receiver<Bytes>,
    /// Takes the lines from stdout that are not JSON-RPC; they are dropped while it is full.
    pub other_output: mpsc::Sender<Bytes>,
    /// How many lines have been written whole to the server since its start.
    pub written: watch::Receiver<u64>,
    /// How many lines of `from_server` have been processed, so that those before need not be kept
    /// for another daemon.
    pub consumed: watch::Sender<u64>,
    /// What the server may have written while no daemon was connected; some of it may have been received by an
    /// earlier daemon. Only answers to requests that are still open count. None if all that was not received
    /// comes with `from_server`.
    pub earlier_output: Option<Vec<Bytes>>,
    /// Every interruption of the link, when it is over. None if there can be none.
    pub interruptions: Option<watch::Receiver<Interruption>>,
}

#[derive(Debug)]
pub enum UpstreamTransport {
    /// A stdio server.
    Lines(LineLink),
    /// A streamable HTTP server that is starting: `initialize` is retried until it answers.
    Http(Target),
    /// A streamable HTTP server that runs elsewhere: `initialize` is sent once.
    Remote(Target),
}

/// The first id of requests to a server. Late answers to requests of another epoch are never taken for
/// answers to those of this one. Servers written in JavaScript read numbers exactly up to 2^53 only,
/// which leaves 21 bits for the epoch. One run does not see two million of them.
pub fn first_id(epoch: u32) -> u64 {
    u64::from(epoch & 0x1f_ffff) << 32
}

/// The result in an answer of the server.
pub fn result_of(method: &str, answer: &Parsed) -> Result<Box<RawValue>, UpstreamError> {
    #[derive(Deserialize)]
    struct RpcError {
        code: i64,
        #[serde(default)]
        message: String,
        data: Option<Box<RawValue>>,
    }
    let odd = || {
        let text = excerpt(answer.text());
        protocol(method, format_args!("something that is not an answer: {text}"))
    };
    match answer.kind() {
        Kind::Result => {
            let result = answer.result().unwrap_or_default();
            serde_json::from_slice::<&RawValue>(result).map(ToOwned::to_owned).map_err(|_| odd())
        }
        Kind::Error => {
            let error = answer.error().unwrap_or_default();
            let RpcError { code, message, data } =
                serde_json::from_slice(error).map_err(|_| odd())?;
            Err(UpstreamError::Rpc { method: method.to_owned(), code, message, data })
        }
        Kind::Request | Kind::Notification => Err(odd()),
    }
}

/// The error for an answer that breaks the protocol.
pub fn protocol(method: &str, what: impl Display) -> UpstreamError {
    UpstreamError::Protocol(format!("the server answered `{method}` with {what}"))
}

/// The error for an HTTP status other than 200.
pub fn bad_status(method: &str, status: u16, body: &[u8]) -> UpstreamError {
    if crate::loss::is_session_lost(Some(status), body) {
        return UpstreamError::SessionLost { method: method.to_owned() };
    }
    UpstreamError::Http { method: method.to_owned(), status, body: excerpt(body) }
}

/// The error for an HTTP request without an answer.
pub fn not_sent(method: &str, error: SendError) -> UpstreamError {
    let method = method.to_owned();
    if error.sent() {
        UpstreamError::Closed { method, sent: true }
    } else {
        UpstreamError::Connect { method, source: error }
    }
}

/// Writes the parameters of a request.
///
/// # Panics
///
/// If the value cannot be written as JSON.
pub fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("our parameters are strings, numbers and raw JSON")
}

/// Parameters that are one string.
pub fn string_param(name: &str, value: &str) -> Box<RawValue> {
    let params = serde_json::Map::from_iter([(name.to_owned(), value.into())]);
    raw(&params)
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

    #[test]
    fn parameters_are_escaped() {
        assert_eq!(string_param("uri", "a\"b").get(), r#"{"uri":"a\"b"}"#);
    }
}
