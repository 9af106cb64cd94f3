//! The outer parts of a JSON-RPC message.
//!
//! The proxy works on the text of messages and changes only the bytes that must change. [`scan`]
//! finds out what a message is and where its parts are; [`Parsed`] keeps that beside the text, so
//! that a message is scanned once. Payloads (`params`, `result`, `error`) are
//! checked to be JSON but looked into only for single members that the proxy has to know.
//! [`splice()`] changes parts; new messages are written with payloads copied as they are.
//!
//! A member that stands in a message twice is refused wherever the proxy reads it, because the
//! server may believe the other one.

mod initialize;
mod members;
mod method;
mod parsed;
mod splice;
mod write;

use std::borrow::Cow;
use std::fmt;
use std::str::Utf8Error;

use serde_json::error::Category;
use serde_json::value::RawValue;

pub use self::initialize::{Handshake, result_for_client};
pub use self::members::members;
pub(crate) use self::members::string;
pub use self::method::Method;
pub use self::parsed::{BadParams, Kind, Parsed, Progress};
pub use self::splice::{Edit, Span, in_one_line, splice};
pub use self::write::{
    cancelled, empty_result, error, error_text, error_with_data, log_message, notification,
    progress, request, resource_updated, result_text, tool_error,
};

/// The code of an answer to what is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The code of an answer to JSON that is not a JSON-RPC message.
pub const INVALID_REQUEST: i64 = -32600;
/// The code of an answer to a method that the receiver does not have.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The code of an answer to invalid parameters.
pub const INVALID_PARAMS: i64 = -32602;
/// The code for a failure on the answering side.
pub const INTERNAL_ERROR: i64 = -32603;

/// One message, borrowed from its text.
#[derive(Debug, Clone)]
pub enum Frame<'a> {
    /// A call that wants an answer.
    Request {
        /// What the answer must bear.
        id: Id<'a>,
        /// The method called.
        method: Cow<'a, str>,
        /// Its parameters.
        params: Option<&'a RawValue>,
    },
    /// A call that wants none.
    Notification {
        /// The method called.
        method: Cow<'a, str>,
        /// Its parameters.
        params: Option<&'a RawValue>,
    },
    /// An answer.
    Response {
        /// The request that it answers; absent only in an error about a request whose id the other
        /// side could not read.
        id: Option<Id<'a>>,
        /// What became of the request.
        outcome: Outcome<'a>,
    },
}

/// How a request was answered.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// With this result.
    Ok(&'a RawValue),
    /// With this error object.
    Error(&'a RawValue),
}

/// The id of a request: a string or a number, kept as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id<'a>(&'a str);

impl<'a> Id<'a> {
    /// None unless the JSON text is a string or a number.
    pub fn new(json: &'a str) -> Option<Self> {
        matches!(json.as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9')).then_some(Self(json))
    }

    /// The id as JSON text.
    pub fn get(self) -> &'a str {
        self.0
    }

    /// The id as the whole number it is, if it is one.
    pub fn as_u64(self) -> Option<u64> {
        self.0.parse().ok().or_else(|| whole(self.0.parse().ok()?))
    }
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Why a text is not a JSON-RPC message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("not UTF-8")]
    Encoding(#[source] Utf8Error),
    /// It is not a JSON object, or one with outer parts of the wrong type.
    #[error("not a JSON-RPC object")]
    Syntax(#[source] serde_json::Error),
    #[error("the object does not say that it is JSON-RPC 2.0")]
    Version,
    /// The id is neither string nor number, or missing where it is needed.
    #[error("the id is missing or neither string nor number")]
    Id,
    /// It is neither request, notification nor response.
    #[error("the object needs either a method, a result or an error")]
    Kind,
}

impl FrameError {
    /// The code of the JSON-RPC error for the sender.
    pub fn code(&self) -> i64 {
        match self {
            Self::Encoding(_) => PARSE_ERROR,
            Self::Syntax(error) => match error.classify() {
                Category::Io | Category::Syntax | Category::Eof => PARSE_ERROR,
                Category::Data => INVALID_REQUEST,
            },
            Self::Version | Self::Id | Self::Kind => INVALID_REQUEST,
        }
    }
}

/// The messages in a text: the members of a batch, or else the text itself.
pub fn split(text: &[u8]) -> Vec<&[u8]> {
    if text.trim_ascii_start().first() != Some(&b'[') {
        return vec![text];
    }
    match serde_json::from_slice::<Vec<&RawValue>>(text) {
        Ok(batch) if !batch.is_empty() => batch.iter().map(|raw| raw.get().as_bytes()).collect(),
        Ok(_) | Err(_) => vec![text],
    }
}

/// Finds out what one message is.
pub fn scan(text: &[u8]) -> Result<Frame<'_>, FrameError> {
    if text.trim_ascii_start().first() == Some(&b'[') {
        return Err(FrameError::Kind);
    }
    let text = str::from_utf8(text).map_err(FrameError::Encoding)?;
    let parts = ["jsonrpc", "id", "method", "params", "result", "error"];
    let [jsonrpc, id, method, params, result, error] =
        members::members_of_str(text, parts).map_err(FrameError::Syntax)?;
    if jsonrpc.and_then(string).as_deref() != Some("2.0") {
        return Err(FrameError::Version);
    }
    // Some servers write both parts of an answer and leave one of them null.
    let real_result = result.filter(|result| !is_null(result) || error.is_none());
    match (present(method), real_result, present(error)) {
        (Some(method), None, None) => {
            let (method, params) = (name(method)?, present(params));
            match id {
                Some(id) => Ok(Frame::Request { id: checked(id)?, method, params }),
                None => Ok(Frame::Notification { method, params }),
            }
        }
        (None, Some(result), None) => {
            let id = checked(id.ok_or(FrameError::Id)?)?;
            Ok(Frame::Response { id: Some(id), outcome: Outcome::Ok(result) })
        }
        (None, None, Some(error)) => {
            let id = present(id).map(checked).transpose()?;
            Ok(Frame::Response { id, outcome: Outcome::Error(error) })
        }
        (Some(_), _, _) | (None, Some(_), Some(_)) | (None, None, None) => Err(FrameError::Kind),
    }
}

fn present(part: Option<&RawValue>) -> Option<&RawValue> {
    part.filter(|part| !is_null(part))
}

fn is_null(part: &RawValue) -> bool {
    part.get() == "null"
}

fn checked(id: &RawValue) -> Result<Id<'_>, FrameError> {
    Id::new(id.get()).ok_or(FrameError::Id)
}

fn name(method: &RawValue) -> Result<Cow<'_, str>, FrameError> {
    match string(method) {
        Some(name) => Ok(name),
        None => serde_json::from_str(method.get()).map(Cow::Owned).map_err(FrameError::Syntax),
    }
}

/// Some servers know only floating point numbers, and write `1.0` or `4.294967296e9`.
fn whole(number: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the guard admits only whole numbers that both types hold exactly"
    )]
    ((0.0..=EXACT).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}

/// Whether the message asks for a panic. Used by tests, in debug builds only.
pub fn is_test_panic(message: &Parsed) -> bool {
    message.method().map(Method::as_str) == Some("mainstay/test-panic")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame in one line: kind, id, method or outcome, payload.
    fn told(text: &str) -> String {
        let raw = |params: Option<&RawValue>| params.map_or("-", RawValue::get).to_owned();
        match scan(text.as_bytes()) {
            Ok(Frame::Request { id, method, params }) => {
                format!("request {id} {method} {}", raw(params))
            }
            Ok(Frame::Notification { method, params }) => {
                format!("notification {method} {}", raw(params))
            }
            Ok(Frame::Response { id, outcome }) => {
                let id = id.map_or("-", Id::get);
                match outcome {
                    Outcome::Ok(result) => format!("ok {id} {result}"),
                    Outcome::Error(error) => format!("error {id} {error}"),
                }
            }
            Err(FrameError::Encoding(_)) => "encoding".to_owned(),
            Err(FrameError::Syntax(_)) => "syntax".to_owned(),
            Err(FrameError::Version) => "version".to_owned(),
            Err(FrameError::Id) => "id".to_owned(),
            Err(FrameError::Kind) => "kind".to_owned(),
        }
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(told(text), expected, "{text}");
    }

    #[test]
    fn messages_are_told_apart() {
        check(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "request 1 ping -");
        check(
            r#" {"method":"a","params":{ "x" : 1e2 },"id":"q","jsonrpc":"2.0"} "#,
            r#"request "q" a { "x" : 1e2 }"#,
        );
        check(r#"{"jsonrpc":"2.0","method":"n","params":null}"#, "notification n -");
        check(r#"{"jsonrpc":"2.0","method":"a\/b","extra":[1]}"#, "notification a/b -");
        check(r#"{"jsonrpc":"2.0","id":-3,"result":{"a":[]}}"#, r#"ok -3 {"a":[]}"#);
        check(r#"{"jsonrpc":"2.0","id":3,"result":null}"#, "ok 3 null");
        check(r#"{"jsonrpc":"2.0","id":3,"result":1,"error":null}"#, "ok 3 1");
        check(r#"{"jsonrpc":"2.0","id":3,"result":null,"error":{}}"#, "error 3 {}");
        check(r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, "error - {}");
        check(r#"{"jsonrpc":"2.0","error":{}}"#, "error - {}");
    }

    #[test]
    fn what_is_no_json_rpc_is_refused() {
        for text in ["", "listening on stdio", "{", "7", "null", r#""x""#, "{} {}", "\u{feff}{}"] {
            check(text, "syntax");
        }
        check(r#"{"jsonrpc":"2.0","method":7}"#, "syntax");
        check(r#"{"level":"info","msg":"up"}"#, "version");
        check(r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#, "version");
        check(r#"{"jsonrpc":"2.0","id":null,"method":"a"}"#, "id");
        check(r#"{"jsonrpc":"2.0","id":[1],"method":"a"}"#, "id");
        check(r#"{"jsonrpc":"2.0","result":1}"#, "id");
        check(r#"{"jsonrpc":"2.0","id":1}"#, "kind");
        check(r#"{"jsonrpc":"2.0","id":1,"error":null}"#, "kind");
        check(r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, "kind");
        check(r#"{"jsonrpc":"2.0","id":1,"method":"a","result":1}"#, "kind");
        check(r#"["2.0",1,"a",null,null,null]"#, "kind");
    }

    #[test]
    fn a_null_result_beside_a_null_error_is_no_answer() {
        check(r#"{"jsonrpc":"2.0","id":1,"result":null,"error":null}"#, "kind");
    }

    #[test]
    fn batches_are_taken_apart() {
        let split = |text: &'static str| -> Vec<&str> {
            super::split(text.as_bytes()).iter().map(|m| str::from_utf8(m).unwrap()).collect()
        };
        assert_eq!(split(r#" [ {"a": 1} , 2 ] "#), [r#"{"a": 1}"#, "2"]);
        assert_eq!(split("[]"), ["[]"]);
        assert_eq!(split("[info] up"), ["[info] up"]);
        assert_eq!(split("{}"), ["{}"]);
    }

    #[test]
    fn ids_are_compared_as_numbers() {
        let of = |id: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
            match scan(text.as_bytes()).unwrap() {
                Frame::Response { id: Some(id), .. } => id.as_u64(),
                other => panic!("{other:?}"),
            }
        };
        for id in ["4294967296", "4294967296.0", "4.294967296e9"] {
            assert_eq!(of(id), Some(1 << 32), "{id}");
        }
        assert_eq!(of("18446744073709551615"), Some(u64::MAX));
        for id in ["-1", "1.5", "1e300", r#""1""#] {
            assert_eq!(of(id), None, "{id}");
        }
    }

    #[test]
    fn the_sender_is_told_whether_it_was_json() {
        let code = |text: &[u8]| scan(text).unwrap_err().code();
        for text in [&b"\xff"[..], b"{", b"", b"hello", br#"{"id":1,}"#] {
            assert_eq!(code(text), PARSE_ERROR, "{}", text.escape_ascii());
        }
        for text in [&b"7"[..], b"{}", b"[]", br#"{"jsonrpc":"2.0","id":1,"id":1,"method":"a"}"#] {
            assert_eq!(code(text), INVALID_REQUEST, "{}", text.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: Vec<u8>) {
            for message in split(&text) {
                scan(message).ok();
            }
        }

        #[test]
        fn near_misses_never_panic(
            text in r#"(\[|\{|\]|\}|,|:|"jsonrpc":"2\.0"|"id":|"method":|"result":|"error":|null|1|"a"|\\){0,12}"#,
        ) {
            for message in split(text.as_bytes()) {
                scan(message).ok();
            }
        }

        #[test]
        fn a_request_is_read_as_written(id: u64, method: String, value in "[ -~]*") {
            let params = serde_json::value::to_raw_value(&[value]).unwrap();
            let text = request(id, &method, Some(&params));
            match scan(&text).unwrap() {
                Frame::Request { id: read, method: name, params: Some(payload) } => {
                    prop_assert_eq!(read.as_u64(), Some(id));
                    prop_assert_eq!(name, method);
                    prop_assert_eq!(payload.get(), params.get());
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
