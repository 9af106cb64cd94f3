//! What the head of a request asks for. Pure.

use hyper::Request;
use hyper::body::Body;
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    USER_AGENT,
};

use super::{Refusal, Scope};
use crate::front::ProtocolVersion;
use crate::private_headers::{self, REPEATED};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// The version of clients that do not send theirs.
pub(super) const OLDEST_VERSION: ProtocolVersion = ProtocolVersion::V2025_03_26;

/// What nearly all clients send, which is compared because parsing it takes 3 % of the instructions of a call.
const USUAL_ACCEPT: &str = "application/json, text/event-stream";

/// The server that a path belongs to.
pub(super) fn server<'a>(path: &'a str, scope: &'a Scope) -> Option<&'a str> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    let name = || path.strip_suffix("/mcp").filter(|name| !name.is_empty() && !name.contains('/'));
    match scope {
        Scope::AllServers => name(),
        Scope::One(server) if path == "mcp" => Some(server),
        Scope::One(server) => name().filter(|name| name == server),
    }
}

/// Which content types a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accept {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accept {
    /// Reads the `Accept` headers; a client without one accepts all types.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let anything = Self { json: true, events: true };
        match headers.get(ACCEPT) {
            None => anything,
            Some(first) if first == USUAL_ACCEPT => anything,
            Some(_) => Self::of_all(headers.get_all(ACCEPT).into_iter()),
        }
    }

    fn of_all<'a>(values: impl Iterator<Item = &'a HeaderValue>) -> Self {
        let ranges =
            values.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
        ranges.fold(Self { json: false, events: false }, |accept, range| {
            let is = |name: &str| names(range, name);
            Self {
                json: accept.json || is("application/json") || is("application/*") || is("*/*"),
                events: accept.events || is("text/event-stream") || is("text/*") || is("*/*"),
            }
        })
    }

    pub(super) fn is_nothing(self) -> bool {
        !self.json && !self.events
    }
}

/// Whether JSON whose length is not known is to end with its connection.
///
/// Version 2 of the Python SDK, which is recognised by `httpx2`, refuses events above 1 MiB, so it always gets JSON. If the
/// connection is lost in a chunked body, it tears the whole client down; if the body ends with the connection, it fails
/// to parse the JSON, and only that call fails.
pub(super) fn is_json_until_close(headers: &HeaderMap, accept: Accept) -> bool {
    let agent = headers.get(USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
    accept.json && agent.starts_with(b"python-httpx2/")
}

/// Whether streams begin with an event that has an id and no data, for clients of this version.
pub(super) fn has_priming(version: Option<ProtocolVersion>) -> bool {
    version >= Some(ProtocolVersion::V2025_11_25)
}

/// Whether a client sends a request again, and if so whether the server had asked it something on its account.
pub(super) fn repeated(headers: &HeaderMap) -> Option<bool> {
    headers.get(&REPEATED).map(private_headers::was_asked)
}

/// Whether the content type is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| names(kind, "application/json"))
}

/// Whether the body is compressed, or encoded in another way.
pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).into_iter().any(|encoding| encoding != "identity")
}

/// The protocol version of the client. Clients without the header are of 2025-03-26 or older.
pub(super) fn version(headers: &HeaderMap) -> Result<ProtocolVersion, Refusal> {
    let Some(version) = headers.get(PROTOCOL_VERSION) else { return Ok(OLDEST_VERSION) };
    version.to_str().unwrap_or_default().parse().map_err(Refusal::Version)
}

/// The length of a whole request as clients send it: one space behind each colon. A body of unknown length gives `None`.
pub(super) fn length<B: Body>(request: &Request<B>) -> Option<usize> {
    let body = usize::try_from(request.body().size_hint().exact()?).ok()?;
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let start = request.method().as_str().len() + target + "  HTTP/1.1\r\n".len();
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    Some(start + fields.sum::<usize>() + "\r\n".len() + body)
}

/// Whether the client expects that the connection is closed after the response.
pub(super) fn is_last<B>(request: &Request<B>) -> bool {
    let closes = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"close");
    request.headers().get_all(CONNECTION).iter().any(closes)
}

/// The session that a request belongs to.
pub(super) fn session_id(headers: &HeaderMap) -> Result<&str, Refusal> {
    let id = headers.get(SESSION_ID).ok_or(Refusal::NoSessionId)?;
    // An id that is not ASCII was never issued.
    Ok(id.to_str().unwrap_or_default())
}

pub(super) fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("ids of sessions are visible ASCII")
}

/// Whether a media range is this one, whatever its parameters; one of weight 0 is refused.
fn names(range: &str, name: &str) -> bool {
    if range == name {
        return true;
    }
    let mut parts = range.split(';').map(str::trim);
    let is_refused = |part: &str| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
    parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(name)) && !parts.any(is_refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_request_is_that_of_its_text() {
        let text =
            "POST /time/mcp?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody";
        let request = Request::post("/time/mcp?a=b")
            .header("host", "localhost")
            .header("content-length", "4")
            .body(http_body_util::Full::new(&b"body"[..]));
        assert_eq!(length(&request.unwrap()), Some(text.len()));
    }

    #[test]
    fn a_path_names_a_server() {
        let (all, one) = (Scope::AllServers, Scope::One("time".to_owned()));
        for (path, in_all, in_one) in [
            ("/time/mcp", Some("time"), Some("time")),
            ("/time/mcp/", Some("time"), Some("time")),
            ("/other/mcp", Some("other"), None),
            ("/mcp", None, Some("time")),
            ("/mcp/", None, Some("time")),
            ("/", None, None),
            ("//mcp", None, None),
            ("/time", None, None),
            ("/time/sse", None, None),
            ("/a/time/mcp", None, None),
            ("/time/mcp//", None, None),
            ("*", None, None),
        ] {
            assert_eq!(server(path, &all), in_all, "{path}");
            assert_eq!(server(path, &one), in_one, "{path}");
        }
    }

    #[test]
    fn clients_say_what_they_accept() {
        let check = |values: &[&str], json, events| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT, HeaderValue::from_str(value).unwrap());
            }
            assert_eq!(Accept::of(&headers), Accept { json, events }, "{values:?}");
        };
        check(&[], true, true);
        check(&["*/*"], true, true);
        check(&["application/json, text/event-stream"], true, true);
        check(&["application/json", "text/event-stream;q=0.5"], true, true);
        check(&["Application/JSON; charset=utf-8"], true, false);
        check(&["text/event-stream, application/json;q=0"], false, true);
        check(&["text/html, application/*"], true, false);
        check(&["text/*"], false, true);
        check(&["text/html"], false, false);
        check(&[""], false, false);
    }

    #[test]
    fn python_clients_of_version_2_get_json_that_ends_with_its_connection() {
        let [both, events] = [true, false].map(|json| Accept { json, events: true });
        for (agent, accept, expected) in [
            ("python-httpx2/2.16.0", both, true),
            ("python-httpx2/2.16.0", events, false),
            ("python-httpx/0.28.1", both, false),
            ("node", both, false),
            ("Mozilla/5.0 python-httpx2/2.16.0", both, false),
        ] {
            let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(agent))]);
            assert_eq!(is_json_until_close(&headers, accept), expected, "{agent} {accept:?}");
        }
        assert!(!is_json_until_close(&HeaderMap::new(), both));
    }

    #[test]
    fn a_body_is_json_or_not() {
        for (kind, expected) in [
            ("application/json", true),
            ("application/JSON; charset=utf-8", true),
            ("application/jsonl", false),
            ("text/plain", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(is_json(&headers), expected, "{kind}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
