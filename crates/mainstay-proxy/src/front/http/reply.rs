//! Answers that need no server, and the one place where errors become HTTP responses.

use bytes::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Response, StatusCode};

use super::body::{Body, Streamed};
use super::caller::TokenReason;
use crate::frame::{self, FrameError, INTERNAL_ERROR, INVALID_REQUEST, Id, METHOD_NOT_FOUND};
use crate::front::batch::BatchError;
use crate::front::{
    NO_DISCOVER, NOT_INITIALIZED, SESSION_NOT_FOUND, UnknownVersion, about_no_request,
};
use crate::server::Lookup;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");
/// Makes reverse proxies pass events on as they come.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Why a request is refused before it reaches a server: an error of the client.
///
/// None of them is a 5xx, on which some clients close down. Other failures are JSON-RPC answers ([`failure`]).
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the Host header is missing")]
    NoHost,
    #[error("the Host or Origin header names a place that may not talk to this server")]
    Foreign,
    #[error(
        "{0}; create a token with `mainstay token create`, and send it as \
         `Authorization: Bearer TOKEN`"
    )]
    NoToken(TokenReason),
    #[error("the token is unknown, or is for another server; `mainstay token ls` lists the tokens")]
    BadToken,
    #[error("mainstay {version}: the MCP endpoint of a server is /NAME/mcp")]
    NoSuchPath { version: String },
    #[error("the methods of this endpoint are POST, GET and DELETE")]
    Method,
    #[error("there is nothing more to read on that stream")]
    NoMoreEvents,
    #[error("the Accept header must allow application/json or text/event-stream")]
    NotAcceptable,
    #[error("the Accept header must allow text/event-stream")]
    NoEventsAccepted,
    #[error("the Content-Type must be application/json")]
    ContentType,
    #[error("the body must not be compressed")]
    ContentEncoding,
    #[error("the body is longer than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the body ended early")]
    Cut,
    #[error("the body came too slowly")]
    TooSlow,
    #[error("too many large requests are being read at the moment; try again later")]
    TooManyLarge,
    #[error("an earlier message of this client has not arrived")]
    OutOfOrder,
    #[error("{0}")]
    Version(UnknownVersion),
    #[error("{0}")]
    Frame(FrameError),
    #[error("{0}")]
    Batch(BatchError),
    #[error("the Mcp-Session-Id header is missing; {NOT_INITIALIZED}")]
    NoSessionId,
    #[error("the session is initialized already; leave out Mcp-Session-Id to begin another one")]
    Initialized,
    #[error("{NO_DISCOVER}")]
    Discover { id: Option<Box<str>> },
    #[error("{0}")]
    Lookup(Lookup),
}

impl Refusal {
    pub(super) fn into_response(self) -> Response<Body> {
        let id = match &self {
            Self::Discover { id } => id.as_deref(),
            _ => None,
        };
        let (status, code) = self.status_and_code();
        let text = error(id, code, &self.to_string());
        let mut response = whole(text, JSON, HeaderMap::new());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if let Self::Method = self {
            headers.insert(ALLOW, HeaderValue::from_static("POST, GET, DELETE"));
        }
        if let Self::NoMoreEvents = self {
            headers.insert(ALLOW, HeaderValue::from_static("POST, DELETE"));
        }
        if self.leaves_body_unread() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn leaves_body_unread(&self) -> bool {
        matches!(
            self,
            Self::NoToken(_)
                | Self::BadToken
                | Self::TooLarge { .. }
                | Self::TooSlow
                | Self::TooManyLarge
        )
    }

    /// The status of the response, and the code of the JSON-RPC error in it.
    fn status_and_code(&self) -> (StatusCode, i64) {
        use StatusCode as S;
        match self {
            Self::Frame(error) => (S::BAD_REQUEST, error.code()),
            Self::Discover { .. } => (S::BAD_REQUEST, METHOD_NOT_FOUND),
            Self::Lookup(Lookup::NoSuchServer | Lookup::NoSuchSession) => {
                (S::NOT_FOUND, SESSION_NOT_FOUND)
            }
            Self::Lookup(Lookup::Unreadable) => (S::BAD_REQUEST, INTERNAL_ERROR),
            Self::Foreign | Self::NoToken(_) | Self::BadToken => (S::FORBIDDEN, INVALID_REQUEST),
            Self::NoSuchPath { .. } => (S::NOT_FOUND, INVALID_REQUEST),
            Self::Method | Self::NoMoreEvents => (S::METHOD_NOT_ALLOWED, INVALID_REQUEST),
            Self::NotAcceptable | Self::NoEventsAccepted => (S::NOT_ACCEPTABLE, INVALID_REQUEST),
            Self::ContentType | Self::ContentEncoding => {
                (S::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST)
            }
            Self::TooLarge { .. } => (S::PAYLOAD_TOO_LARGE, INVALID_REQUEST),
            Self::TooSlow => (S::REQUEST_TIMEOUT, INVALID_REQUEST),
            Self::TooManyLarge => (S::TOO_MANY_REQUESTS, INVALID_REQUEST),
            Self::OutOfOrder => (S::TOO_EARLY, INVALID_REQUEST),
            Self::NoHost
            | Self::Cut
            | Self::Version(_)
            | Self::Batch(_)
            | Self::NoSessionId
            | Self::Initialized => (S::BAD_REQUEST, INVALID_REQUEST),
        }
    }
}

/// An answer of known length. `headers` is an empty map, reused from the request where there is one.
pub(super) fn plain(answer: Bytes, headers: HeaderMap) -> Response<Body> {
    whole(answer, JSON, headers)
}

/// The failure of a request as an answer like any other, because the session continues.
pub(super) fn failure(id: Option<&str>, message: &str) -> Response<Body> {
    plain(failed(id, message), HeaderMap::new())
}

/// The error for a request whose stream is no longer known, and whose client still waits for an answer.
const LOST: &str = "the connection was lost, and with it the answer to this request; \
                    its effect is unknown";

/// The error for a request that was not answered when the daemon was killed.
pub(super) const INTERRUPTED: &str = "Mainstay was killed while it worked on this request, and was restarted; its \
                                      effect is unknown";

/// An event stream that ends at once with the failure of a request whose stream is not known any more.
pub(super) fn lost_stream(id: &str) -> Response<Body> {
    whole(lost(id, false), EVENTS, HeaderMap::new())
}

/// The failure of a request whose stream is not known any more: as JSON, or as an event.
pub(super) fn lost(id: &str, is_json: bool) -> Bytes {
    let error = failed(Some(id), LOST);
    if is_json { error } else { [b"event: message\ndata: ", &error[..], b"\n\n"].concat().into() }
}

pub(super) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Full(Bytes::new()));
    *response.status_mut() = status;
    response
}

pub(super) fn failed(id: Option<&str>, message: &str) -> Bytes {
    error(id, INTERNAL_ERROR, message)
}

fn error(id: Option<&str>, code: i64, message: &str) -> Bytes {
    match id.and_then(Id::new) {
        Some(id) => frame::error(id, code, message),
        None => about_no_request(code, message),
    }
}

fn whole(content: Bytes, kind: HeaderValue, mut headers: HeaderMap) -> Response<Body> {
    headers.insert(CONTENT_TYPE, kind);
    let mut response = Response::new(Body::Full(content));
    *response.headers_mut() = headers;
    response
}

/// Events, or a JSON answer whose length is not known yet.
pub(super) fn streamed(body: Streamed) -> Response<Body> {
    let kind = if body.is_json() { JSON } else { EVENTS };
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, NO_CACHE);
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}
