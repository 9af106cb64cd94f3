//! The outer parts of a JSON-RPC message.
//!
//! [`scan`] finds out what a message is and where its parts are. It borrows everything from the
//! text, and payloads (`params`, `result`, `error`) are checked to be JSON but not looked into. The
//! functions below it write messages, with payloads copied as they are.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// The code of an answer to a method that the receiver does not have.
pub const METHOD_NOT_FOUND: i64 = -32601;

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
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(transparent)]
pub struct Id<'a>(&'a RawValue);

impl<'a> Id<'a> {
    /// The id as JSON text.
    pub fn get(self) -> &'a str {
        self.0.get()
    }

    /// The id as the whole number it is, if it is one.
    pub fn as_u64(self) -> Option<u64> {
        self.get().parse().ok().or_else(|| whole(self.get().parse().ok()?))
    }
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

/// Why a text is no JSON-RPC message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It is no JSON object, or one with outer parts of the wrong type.
    #[error("not a JSON-RPC object")]
    Syntax(#[source] serde_json::Error),
    /// It does not say `"jsonrpc": "2.0"`.
    #[error("the object does not say that it is JSON-RPC 2.0")]
    Version,
    /// The id is neither string nor number, or missing where it is needed.
    #[error("the id is missing or neither string nor number")]
    Id,
    /// It is neither request, notification nor response.
    #[error("the object needs either a method, a result or an error")]
    Kind,
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
    // Serde would also take an array, as a struct without names.
    if text.trim_ascii_start().first() == Some(&b'[') {
        return Err(FrameError::Kind);
    }
    let Envelope { jsonrpc, id, method, params, result, error } =
        serde_json::from_slice(text).map_err(FrameError::Syntax)?;
    if jsonrpc.as_deref() != Some("2.0") {
        return Err(FrameError::Version);
    }
    // Some servers write both parts of an answer and leave one of them null.
    let real_error = error.filter(|error| error.get() != "null");
    let real_result = result.filter(|result| result.get() != "null" || error.is_none());
    match (method, real_result, real_error) {
        (Some(method), None, None) => match id {
            Some(id) => Ok(Frame::Request { id: checked(id)?, method, params }),
            None => Ok(Frame::Notification { method, params }),
        },
        (None, Some(result), None) => {
            let id = checked(id.ok_or(FrameError::Id)?)?;
            Ok(Frame::Response { id: Some(id), outcome: Outcome::Ok(result) })
        }
        (None, None, Some(error)) => {
            let id = id.filter(|id| id.get() != "null").map(checked).transpose()?;
            Ok(Frame::Response { id, outcome: Outcome::Error(error) })
        }
        (Some(_), _, _) | (None, Some(_), Some(_)) | (None, None, None) => Err(FrameError::Kind),
    }
}

/// Writes a request.
pub fn request(id: u64, method: &str, params: Option<&RawValue>) -> Bytes {
    write(&Call { jsonrpc: V2, id: Some(id), method, params })
}

/// Writes a notification.
pub fn notification(method: &str, params: Option<&RawValue>) -> Bytes {
    write(&Call { jsonrpc: V2, id: None, method, params })
}

/// Writes an answer with a result.
pub fn result(id: Id<'_>, result: &RawValue) -> Bytes {
    #[derive(Serialize)]
    struct Answer<'a> {
        jsonrpc: &'a str,
        id: Id<'a>,
        result: &'a RawValue,
    }
    write(&Answer { jsonrpc: V2, id, result })
}

/// Writes an answer with an error.
pub fn error(id: Id<'_>, code: i64, message: &str) -> Bytes {
    #[derive(Serialize)]
    struct Refusal<'a> {
        code: i64,
        message: &'a str,
    }
    #[derive(Serialize)]
    struct Answer<'a> {
        jsonrpc: &'a str,
        id: Id<'a>,
        error: Refusal<'a>,
    }
    write(&Answer { jsonrpc: V2, id, error: Refusal { code, message } })
}

const V2: &str = "2.0";

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Call<'a> {
    jsonrpc: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
}

/// Tells `null`, which is a value, from nothing.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

fn checked(id: &RawValue) -> Result<Id<'_>, FrameError> {
    match id.get().as_bytes().first() {
        Some(b'"' | b'-' | b'0'..=b'9') => Ok(Id(id)),
        _ => Err(FrameError::Id),
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

fn write(message: &impl Serialize) -> Bytes {
    serde_json::to_vec(message).expect("strings, integers and raw JSON can be written").into()
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
    fn payloads_are_written_as_they_are() {
        let params = RawValue::from_string(r#"{ "b":1.0, "a":"\u00e4" }"#.to_owned()).unwrap();
        assert_eq!(
            request(7, "tools/call", Some(&params)),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{ "b":1.0, "a":"\u00e4" }}"#,
        );
        assert_eq!(notification("n", None), r#"{"jsonrpc":"2.0","method":"n"}"#);
        let id = RawValue::from_string(r#""x\ty""#.to_owned()).unwrap();
        assert_eq!(
            result(Id(&id), &params),
            r#"{"jsonrpc":"2.0","id":"x\ty","result":{ "b":1.0, "a":"\u00e4" }}"#,
        );
        assert_eq!(
            error(Id(&id), METHOD_NOT_FOUND, "no"),
            r#"{"jsonrpc":"2.0","id":"x\ty","error":{"code":-32601,"message":"no"}}"#,
        );
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
