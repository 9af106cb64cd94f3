use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parsed(text: &str) -> Parsed {
    Parsed::read(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn call(method: &str, params: &str) -> Parsed {
    parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#))
}

fn value(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

#[test]
fn the_parts_are_kept_with_the_text() {
    let request = parsed(r#" {"id": "a","method":"tools\/call","params":{ },"jsonrpc":"2.0"}"#);
    assert_eq!(request.kind(), Kind::Request);
    assert_eq!(request.id().unwrap().get(), r#""a""#);
    assert_eq!(request.method(), Some(&Method::ToolsCall));
    assert_eq!(request.params(), Some(&b"{ }"[..]));
    assert!(request.result().is_none() && request.error().is_none());

    let answer = parsed(r#"{"jsonrpc":"2.0","id":1,"result":[1]}"#);
    assert_eq!((answer.kind(), answer.result()), (Kind::Result, Some(&b"[1]"[..])));
    assert!(answer.method().is_none() && answer.params().is_none() && answer.error().is_none());

    let error = parsed(r#"{"jsonrpc":"2.0","id":null,"error":{}}"#);
    assert_eq!((error.kind(), error.error()), (Kind::Error, Some(&b"{}"[..])));
    assert!(error.id().is_none() && error.result().is_none());
    assert_eq!(error.with_id("7"), error.text());

    let notification = parsed(r#"{"jsonrpc":"2.0","method":"x"}"#);
    assert_eq!(notification.kind(), Kind::Notification);
    assert_eq!(notification.method().unwrap().as_str(), "x");
    assert!(notification.params().is_none());
}

struct Refused;

fn check_token(params: &str, expected: Result<Option<&str>, Refused>) {
    let request = call("tools/call", params);
    let token = request.progress_token().ok();
    let told = token.map(|token| token.map(|token| request.get(token)));
    assert_eq!(told, expected.ok(), "{params}");
}

#[test]
fn only_the_token_in_the_metadata_counts() {
    check_token(r#"{"_meta":{"progressToken":7}}"#, Ok(Some("7")));
    check_token(
        r#"{"a":"progressToken","_meta": {"x":1, "progressToken" : "t"}}"#,
        Ok(Some(r#""t""#)),
    );
    check_token(r#"{"_meta":{"progress\u0054oken":7}}"#, Ok(Some("7")));
    check_token(r#"{"\u005fmeta":{"progressToken":7}}"#, Ok(Some("7")));
    for without in [
        r#"{"progressToken":7}"#,
        r#"{"arguments":{"_meta":{"progressToken":7}}}"#,
        r#"{"_meta":{"x":{"progressToken":7}}}"#,
        r#"{"_meta":{"x":"\"progressToken\":7"}}"#,
        r#"{"_meta":null,"progressToken":7}"#,
        r#"{"_meta":{"progressToken":null}}"#,
        "{}",
    ] {
        check_token(without, Ok(None));
    }
}

#[test]
fn a_token_that_two_readers_may_read_differently_is_refused() {
    check_token(r#"{"_meta":{"progressToken":7,"progressToken":8}}"#, Err(Refused));
    check_token(r#"{"_meta":{"progressToken":7},"_meta":{}}"#, Err(Refused));
    check_token(r#"{"_meta":[{"progressToken":7}]}"#, Err(Refused));
    check_token(r#"[{"progressToken":7}]"#, Err(Refused));
}

#[test]
fn progress_and_cancellation_name_their_request() {
    let progress = call(
        "notifications/progress",
        r#"{"progress":0.5,"total":1,"progressToken":"a","message":"x"}"#,
    );
    let reported @ Progress { token, value: how_far, .. } = progress.progress().unwrap();
    assert_eq!((progress.get(token), how_far), (r#""a""#, 0.5));
    assert_eq!(
        progress.with(token, "9"),
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/progress","params":{"progress":0.5,"total":1,"progressToken":9,"message":"x"}}"#,
    );
    assert_eq!(
        progress.with_progress(reported, "9", 1.000_001),
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/progress","params":{"progress":1.000001,"total":1,"progressToken":9,"message":"x"}}"#,
    );
    for nonsense in [r#"{"progress":"1","progressToken":1}"#, r#"{"progressToken":1}"#, "[]"] {
        assert_eq!(call("notifications/progress", nonsense).progress(), None);
    }

    let cancelled = call("notifications/cancelled", r#"{"requestId":12,"reason":"r"}"#);
    assert_eq!(cancelled.get(cancelled.cancelled_id().unwrap()), "12");
    assert_eq!(call("notifications/cancelled", r#"{"requestId":{}}"#).cancelled_id(), None);
    assert_eq!(call("notifications/cancelled", "{}").cancelled_id(), None);
}

#[test]
fn single_parameters_are_read() {
    let request = call("x", r#"{"arguments":{"name":"no"},"name":"a\n","uri":"u","cursor":3}"#);
    assert_eq!(request.name().as_deref(), Some("a\n"));
    assert_eq!(request.uri().as_deref(), Some("u"));
    assert_eq!(request.level(), None);
    assert_eq!(request.cursor(), None);
    assert_eq!(call("x", r#"{"name":"a","name":"b"}"#).name(), None);
    assert_eq!(parsed(r#"{"jsonrpc":"2.0","id":1,"result":{"name":"a"}}"#).name(), None);
}

fn check_note(result: &str, expected: &str) {
    let answer = parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));
    let noted = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{expected}}}"#);
    assert_eq!(answer.with_note("n\""), noted);
}

#[test]
fn a_note_joins_the_content() {
    check_note(
        r#"{"content":[ {"type":"text","text":"]"} ],"isError":false}"#,
        r#"{"content":[ {"type":"text","text":"]"} ,{"type":"text","text":"n\""}],"isError":false}"#,
    );
    check_note(r#"{"content":[ ]}"#, r#"{"content":[ {"type":"text","text":"n\""}]}"#);
    for unchanged in ["{}", "[]", r#"{"content":"x"}"#, r#"{"x":{"content":[]}}"#, "null"] {
        check_note(unchanged, unchanged);
    }
    let error = parsed(r#"{"jsonrpc":"2.0","id":1,"error":{"content":[]}}"#);
    assert_eq!(error.with_note("n"), error.text());
}

#[track_caller]
fn check_first_note(result: &str, expected: &str) {
    let answer = parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));
    let noted = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{expected}}}"#);
    assert_eq!(answer.with_first_note("n\"", "k", "{}"), noted);
}

#[test]
fn a_first_note_comes_before_the_content_and_into_the_metadata() {
    check_first_note(
        r#"{"content":[{"type":"text","text":"]"}],"isError":false}"#,
        r#"{"_meta":{"k":{}},"content":[{"type":"text","text":"n\""},{"type":"text","text":"]"}],"isError":false}"#,
    );
    check_first_note(
        r#"{ "_meta" : { "a":1 }, "content":[ ] }"#,
        r#"{ "_meta" : {"k":{}, "a":1 }, "content":[{"type":"text","text":"n\""} ] }"#,
    );
    check_first_note("{}", r#"{"_meta":{"k":{}}}"#);
    check_first_note(r#"{"_meta":{}}"#, r#"{"_meta":{"k":{}}}"#);
    check_first_note(r#"{"_meta":null}"#, r#"{"_meta":null}"#);
    for unchanged in ["[]", "null", "7"] {
        check_first_note(unchanged, unchanged);
    }
    let error = parsed(r#"{"jsonrpc":"2.0","id":1,"error":{"content":[]}}"#);
    assert_eq!(error.with_first_note("n", "k", "1"), error.text());
}

/// Any JSON, with keys that matter to us in places where they do not.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let key = prop_oneof![Just("_meta".to_owned()), Just("progressToken".to_owned()), ".{0,3}"];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn any_id() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ]
}

/// The members of an object as text, in this order, with white space.
fn written(members: &[(&str, Value)], pretty: bool) -> String {
    let space = if pretty { " \r\n\t" } else { "" };
    let member = |(name, value): &(&str, Value)| {
        let value = if pretty { format!("{value:#}") } else { value.to_string() };
        format!("{space}{}{space}:{space}{value}{space}", json!(name))
    };
    format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
}

proptest! {
    #[test]
    fn splicing_is_the_same_as_parsing_changing_and_writing(
        id in any_id(), new_id in any_id(), token in any_id(), new_token in any_id(),
        arguments in any_json(), others in any_json(), pretty: bool,
        order in Just([0_usize, 1, 2, 3, 4]).prop_shuffle(),
    ) {
        let params = json!({
            "a": arguments, "_meta": { "a": others, "progressToken": token, "z": others },
        });
        let all = [
            ("jsonrpc", json!("2.0")), ("id", id), ("method", json!("tools/call")),
            ("params", params), ("x", arguments),
        ];
        let text = written(&order.map(|place| all[place].clone()), pretty);
        let request = parsed(&text);
        let place = request.progress_token().unwrap().unwrap();
        prop_assert_eq!(value(request.get(place).as_bytes()), token);

        let mut expected = value(text.as_bytes());
        expected["id"] = new_id.clone();
        prop_assert_eq!(value(&request.with_id(&new_id.to_string())), expected.clone());
        expected["params"]["_meta"]["progressToken"] = new_token.clone();
        let spliced =
            request.with_id_and_token(&new_id.to_string(), place, &new_token.to_string());
        prop_assert_eq!(value(&spliced), expected);
    }

    #[test]
    fn a_note_is_one_more_item(items in prop::collection::vec(any_json(), 0..4), note: String,
        pretty: bool)
    {
        let result = json!({ "content": items, "x": items });
        let all = [("jsonrpc", json!("2.0")), ("id", json!(1)), ("result", result)];
        let text = written(&all, pretty);
        let mut expected = value(text.as_bytes());
        let item = json!({ "type": "text", "text": note });
        expected["result"]["content"].as_array_mut().unwrap().push(item);
        prop_assert_eq!(value(&parsed(&text).with_note(&note)), expected);
    }

    #[test]
    fn nothing_in_a_payload_makes_a_reader_panic(payload in any_json()) {
        let request = call("x", &payload.to_string());
        let token = payload.get("_meta").and_then(|meta| meta.get("progressToken"));
        let token = token.filter(|token| token.is_string() || token.is_number());
        if let Ok(found) = request.progress_token() {
            let found = found.map(|found| value(request.get(found).as_bytes()));
            prop_assert_eq!(found.as_ref(), token);
        }
        request.progress();
        request.cancelled_id();
        request.name();
        parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{payload}}}"#)).with_note("n");
        let answer = parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{payload}}}"#));
        let noted = value(&answer.with_first_note("n", "k", "1"));
        if payload.is_object() && payload.get("_meta").is_none_or(Value::is_object) {
            prop_assert_eq!(&noted["result"]["_meta"]["k"], 1);
        }
    }
}
