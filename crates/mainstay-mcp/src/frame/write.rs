//! Writing messages. Payloads are copied as they are.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Id;

pub fn request(id: u64, method: &str, params: Option<&RawValue>) -> Bytes {
    let id = id.to_string();
    call(Some(Id(&id)), method, params.map(RawValue::get))
}

pub fn notification(method: &str, params: Option<&RawValue>) -> Bytes {
    call(None, method, params.map(RawValue::get))
}

/// Writes the notification that a request is given up.
pub fn cancelled(id: Id<'_>, reason: &str) -> Bytes {
    let params = [r#"{"requestId":"#, id.get(), r#","reason":"#, &json(reason), "}"].concat();
    call(None, "notifications/cancelled", Some(&params))
}

/// Writes the notification of progress for a token, which is given as JSON.
pub fn progress(token: &str, progress: f64, message: &str) -> Bytes {
    let (progress, message) = (progress.to_string(), json(message));
    let params = [
        r#"{"progressToken":"#,
        token,
        r#","progress":"#,
        &progress,
        r#","message":"#,
        &message,
        "}",
    ];
    call(None, "notifications/progress", Some(&params.concat()))
}

/// Writes the notification that a resource may have changed.
pub fn resource_updated(uri: &str) -> Bytes {
    let params = [r#"{"uri":"#, &json(uri), "}"].concat();
    call(None, "notifications/resources/updated", Some(&params))
}

/// Writes a log message of Mainstay.
pub fn log_message(level: &str, text: &str) -> Bytes {
    let params =
        [r#"{"level":""#, level, r#"","logger":"mainstay","data":"#, &json(text), "}"].concat();
    call(None, "notifications/message", Some(&params))
}

/// Writes an answer with a result that is JSON text.
pub fn result_text(id: Id<'_>, result: &[u8]) -> Bytes {
    answer(id, r#","result":"#, result)
}

/// Writes an answer with an error object that is JSON text.
pub fn error_text(id: Id<'_>, error: &[u8]) -> Bytes {
    answer(id, r#","error":"#, error)
}

/// Writes an answer with an empty result.
pub fn empty_result(id: Id<'_>) -> Bytes {
    result_text(id, b"{}")
}

pub fn error(id: Id<'_>, code: i64, message: &str) -> Bytes {
    error_text(id, json(&Refusal::<()> { code, message, data: None }).as_bytes())
}

/// Writes an answer with an error that has data for programs.
///
/// # Panics
///
/// If `data` cannot be written as JSON.
pub fn error_with_data(id: Id<'_>, code: i64, message: &str, data: &impl Serialize) -> Bytes {
    error_text(id, json(&Refusal { code, message, data: Some(data) }).as_bytes())
}

/// Writes the answer to `tools/call` for a failure, which the model reads.
pub fn tool_error(id: Id<'_>, text: &str) -> Bytes {
    let result = [r#"{"content":["#, &text_item(text), r#"],"isError":true}"#].concat();
    result_text(id, result.as_bytes())
}

/// A text as an item of a tool's content.
pub(super) fn text_item(text: &str) -> String {
    [r#"{"type":"text","text":"#, &json(text), "}"].concat()
}

pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("the value can be written as JSON")
}

#[derive(Serialize)]
struct Refusal<'a, T> {
    code: i64,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<T>,
}

fn call(id: Option<Id<'_>>, method: &str, params: Option<&str>) -> Bytes {
    let (before_id, id) = id.map_or(("", ""), |id| (r#","id":"#, id.get()));
    let (before_params, params) = params.map_or(("", ""), |params| (r#","params":"#, params));
    let method = json(method);
    let begin = r#"{"jsonrpc":"2.0""#;
    let parts = [begin, before_id, id, r#","method":"#, &method, before_params, params, "}"];
    parts.concat().into()
}

fn answer(id: Id<'_>, before_payload: &str, payload: &[u8]) -> Bytes {
    let (begin, id) = (br#"{"jsonrpc":"2.0","id":"#, id.get().as_bytes());
    [begin, id, before_payload.as_bytes(), payload, b"}"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::super::METHOD_NOT_FOUND;
    use super::*;

    #[test]
    fn payloads_are_written_as_they_are() {
        let params = RawValue::from_string(r#"{ "b":1.0, "a":"\u00e4" }"#.to_owned()).unwrap();
        assert_eq!(
            request(7, "tools/call", Some(&params)),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{ "b":1.0, "a":"\u00e4" }}"#,
        );
        assert_eq!(notification("n", None), r#"{"jsonrpc":"2.0","method":"n"}"#);
        let id = Id::new(r#""x\ty""#).unwrap();
        assert_eq!(
            result_text(id, params.get().as_bytes()),
            r#"{"jsonrpc":"2.0","id":"x\ty","result":{ "b":1.0, "a":"\u00e4" }}"#,
        );
        assert_eq!(
            error(id, METHOD_NOT_FOUND, "no"),
            r#"{"jsonrpc":"2.0","id":"x\ty","error":{"code":-32601,"message":"no"}}"#,
        );
    }

    #[test]
    fn what_we_say_ourselves_is_escaped() {
        let id = Id::new("7").unwrap();
        assert_eq!(
            error_with_data(id, -32603, "\"no\"", &serde_json::json!({ "sent": true })),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"\"no\"","data":{"sent":true}}}"#,
        );
        assert_eq!(
            tool_error(id, "a\nb"),
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a\nb"}],"isError":true}}"#,
        );
        assert_eq!(
            cancelled(id, "it's over"),
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"it's over"}}"#,
        );
        assert_eq!(
            resource_updated("file:///\""),
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///\""}}"#,
        );
    }
}
