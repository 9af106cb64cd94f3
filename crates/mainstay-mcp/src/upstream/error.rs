//! Why an upstream request has no result.

use std::error::Error;

use serde_json::value::RawValue;

use super::MAX_LINE;
use crate::client::SendError;

/// Why an upstream request has no result.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("the server went away before {}", missed(.method, *.sent))]
    Closed {
        method: String,
        /// Whether the request was on its way: its line was handed to the link, or its first byte
        /// may have been written. Then it is unknown whether the server acted on it.
        sent: bool,
    },
    #[error("the server answered `{method}` with error {code}: {message}")]
    Rpc {
        method: String,
        code: i64,
        message: String,
        /// More about it, as the server wrote it.
        data: Option<Box<RawValue>>,
    },
    /// The server is not available, for this reason.
    #[error("{0}")]
    Unavailable(String),
    /// The server does not keep to the protocol; the text names the request.
    #[error("{0}")]
    Protocol(String),
    /// The request is longer than a line may be, so it was not sent.
    #[error("`{method}` is too large: {bytes} bytes, at most {MAX_LINE} fit on a line")]
    TooLarge { method: String, bytes: usize },
    #[error("the server answered `{method}` with HTTP status {status}{}", said(.body))]
    Http { method: String, status: u16, body: String },
    #[error("the server no longer knows the session in which `{method}` was sent")]
    SessionLost { method: String },
    /// The HTTP server could not be reached, so the request was not sent.
    #[error("`{method}` cannot be sent: {}", with_cause(.source))]
    Connect {
        method: String,
        #[source]
        source: SendError,
    },
}

/// The beginning of a text of the server, at most 300 characters, fit for a message. A page for
/// browsers is not shown.
pub fn excerpt(text: &[u8]) -> String {
    const MOST: usize = 300;
    let text = String::from_utf8_lossy(text);
    if text.trim_start().starts_with('<') {
        return "a page for browsers".to_owned();
    }
    let blank = |c: char| c.is_control() || c.is_whitespace();
    let messages: Vec<&str> = text.split(blank).filter(|word| !word.is_empty()).collect();
    let line = messages.join(" ");
    let mut shown: String = line.chars().take(MOST).collect();
    if line.chars().nth(MOST).is_some() {
        shown.pop();
        shown.push('…');
    }
    shown
}

fn missed(method: &str, sent: bool) -> String {
    if sent { format!("it answered `{method}`") } else { format!("`{method}` was sent") }
}

fn with_cause(error: &SendError) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn said(body: &str) -> String {
    if body.is_empty() { String::new() } else { format!(": {body}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_short_and_printable() {
        assert_eq!(excerpt(b" no\n\x1b[1msession "), "no [1msession");
        assert_eq!(excerpt(b"\n<!DOCTYPE html><html>"), "a page for browsers");
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

    fn check(error: &UpstreamError, text: &str) {
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn an_error_says_what_went_wrong() {
        let method = || "ping".to_owned();
        let closed = |sent| UpstreamError::Closed { method: method(), sent };
        check(&closed(true), "the server went away before it answered `ping`");
        check(&closed(false), "the server went away before `ping` was sent");
        check(
            &UpstreamError::SessionLost { method: method() },
            "the server no longer knows the session in which `ping` was sent",
        );
        check(
            &UpstreamError::Connect {
                method: method(),
                source: SendError::Connect {
                    tried: ["127.0.0.1:80", "[::1]:80"].map(|addr| addr.parse().unwrap()).into(),
                    source: std::io::ErrorKind::ConnectionRefused.into(),
                },
            },
            "`ping` cannot be sent: cannot connect to 127.0.0.1:80 or [::1]:80: connection refused",
        );
        check(
            &UpstreamError::TooLarge { method: method(), bytes: 1 },
            "`ping` is too large: 1 bytes, at most 16777216 fit on a line",
        );
        check(&UpstreamError::Protocol("odd".to_owned()), "odd");
        let code = -32602;
        let message = "no".to_owned();
        let error = UpstreamError::Rpc { method: method(), code, message, data: None };
        check(&error, "the server answered `ping` with error -32602: no");
    }
}
