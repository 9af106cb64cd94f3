//! The client-facing half: streamable HTTP ([`http`]).
//!
//! A front speaks a transport and knows nothing of servers; the [`Servers`](crate::Servers) behind it know nothing of
//! transports. They meet in messages ([`Parsed`](crate::frame::Parsed), scanned once) and in the streams of
//! [`Reader`](crate::Reader)s. A front guarantees that
//!
//! - a request is sent to its session once, and its stream is read by at most one connection;
//! - its reader is dropped as soon as its client can no longer get the answer, and not before;
//! - invalid messages are answered without a server.

mod batch;
pub mod http;

use bytes::Bytes;
use mainstay_session::{NO_DISCOVER, NOT_INITIALIZED};
use serde_json::json;

pub use mainstay_mcp::version::{ProtocolVersion, UnknownVersion};

/// The code of an answer about a server or session that does not exist. Clients take it as the end
/// of their session, so it is used for nothing else.
const SESSION_NOT_FOUND: i64 = -32001;

/// An error that answers no request in particular.
pub(crate) fn about_no_request(code: i64, message: &str) -> Bytes {
    let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}});
    error.to_string().into()
}

#[cfg(test)]
mod tests;
