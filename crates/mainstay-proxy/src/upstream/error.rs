//! Why an upstream request has no result.

use std::io;
use std::net::SocketAddr;

use serde_json::value::RawValue;

use super::MAX_LINE;

/// Why an upstream request has no result.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The server went away; whether it acted on the request is unknown.
    #[error("the server went away before it answered `{method}`")]
    Closed {
        /// The method of the request.
        method: String,
    },
    /// The server answered with an error of its own.
    #[error("the server answered `{method}` with error {code}: {message}")]
    Rpc {
        /// The method of the request.
        method: String,
        /// The JSON-RPC error code.
        code: i64,
        /// The server's words.
        message: String,
        /// More about it, as the server wrote it.
        data: Option<Box<RawValue>>,
    },
    /// The server does not keep to the protocol; the text names the request.
    #[error("{0}")]
    Protocol(String),
    /// The request is longer than a line may be, so it was not sent.
    #[error("`{method}` is too large: {bytes} bytes, at most {MAX_LINE} fit on a line")]
    TooLarge {
        /// The method of the request.
        method: String,
        /// Its length.
        bytes: usize,
    },
    /// The server answered with an HTTP error.
    #[error("the server answered `{method}` with HTTP status {status}{}", said(.body))]
    Http {
        /// The method of the request.
        method: String,
        /// The HTTP status code.
        status: u16,
        /// The beginning of the body.
        body: String,
    },
    /// The HTTP server no longer knows the session that it opened for us.
    #[error("the server no longer knows the session in which `{method}` was sent")]
    SessionLost {
        /// The method of the request.
        method: String,
    },
    /// No connection to the HTTP server came about, so the request was not sent.
    #[error("cannot connect to {addr} to send `{method}`")]
    Connect {
        /// The method of the request.
        method: String,
        /// Where the server should listen.
        addr: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The beginning of a text of the server, at most 300 characters, fit for a message.
pub(super) fn excerpt(text: &[u8]) -> String {
    const MOST: usize = 300;
    let text = String::from_utf8_lossy(text);
    let mut shown: String = text.trim().chars().take(MOST).map(plain).collect();
    if text.trim().chars().nth(MOST).is_some() {
        shown.pop();
        shown.push('…');
    }
    shown
}

fn plain(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

fn said(body: &str) -> String {
    if body.is_empty() { String::new() } else { format!(": {body}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_short_and_printable() {
        assert_eq!(excerpt(b" no\n\x1b[1msession "), "no  [1msession");
        assert_eq!(excerpt("ä".repeat(300).as_bytes()), "ä".repeat(300));
        let long = excerpt("ä".repeat(301).as_bytes());
        assert_eq!((long.chars().count(), long.ends_with("ä…")), (300, true));
    }

    #[test]
    fn an_empty_body_is_not_quoted() {
        let error = |body: &str| UpstreamError::Http {
            method: "ping".to_owned(),
            status: 500,
            body: body.to_owned(),
        };
        assert_eq!(error("").to_string(), "the server answered `ping` with HTTP status 500");
        assert_eq!(
            error("oops").to_string(),
            "the server answered `ping` with HTTP status 500: oops"
        );
    }
}
