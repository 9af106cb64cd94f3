//! Cross-origin requests: a page that [`guard`] admits may read the response.
//!
//! Browsers send a preflight before a POST of JSON, and hide responses without these headers from the page. Only origins
//! on loopback are named, never all of them.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use super::body::Body;
use super::{guard, reply};

const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, DELETE");
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "accept, authorization, content-type, last-event-id, mcp-protocol-version, mcp-session-id",
);
const RESPONSE_HEADERS: HeaderValue = HeaderValue::from_static("mcp-session-id");
/// For how many seconds a browser caches that.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origin that may read the response, if a page sent the request.
pub(super) fn origin(headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    guard::allows_origin(origin.to_str().ok()?).then(|| origin.clone())
}

pub(super) fn is_preflight(head: &Parts) -> bool {
    head.method == Method::OPTIONS
        && head.headers.contains_key(ORIGIN)
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

pub(super) fn preflight() -> Response<Body> {
    let mut response = reply::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    response
}

/// Lets a page of this origin read a response.
pub(super) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, RESPONSE_HEADERS);
    headers.insert(VARY, HeaderValue::from_static("origin"));
}
