//! The scanner of messages and what is changed in them: it accepts nothing that is no JSON, and a
//! change by splicing is the same as one by parsing, changing and writing.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mainstay_mcp::frame::{self, Handshake, Parsed};
use mainstay_mcp::lists::{ListKind, Lists, Walk};
use mainstay_mcp::loss::is_session_lost;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

fuzz_target!(|text: &[u8]| {
    is_session_lost(Some(400), text);
    is_session_lost(None, text);
    for message in frame::split(text) {
        if let Ok(parsed) = Parsed::read(Bytes::copy_from_slice(message)) {
            check(&parsed);
        }
    }
});

fn check(parsed: &Parsed) {
    serde_json::from_slice::<IgnoredAny>(parsed.text()).expect("what is accepted is JSON");
    check_changes(parsed);
    parsed.progress();
    parsed.cancelled_id();
    parsed.uri();
    for payload in [parsed.params(), parsed.result()].into_iter().flatten() {
        check_handshake(payload);
        check_lists(payload);
    }
}

fn check_changes(parsed: &Parsed) {
    // Some JSON is too deep or has numbers too large for a value.
    let Some(mut whole) = value(parsed.text()) else { return };
    let line = frame::in_one_line(parsed.text().clone());
    assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
    assert_eq!(value(&line).as_ref(), Some(&whole));

    let mut noted = whole.clone();
    if parsed.result().is_some()
        && let Some(content) = noted["result"].get_mut("content").and_then(Value::as_array_mut)
    {
        content.push(json!({ "type": "text", "text": "n" }));
    }
    let note = value(&parsed.with_note("n")).expect("a note leaves JSON");
    // Content that stands there twice is left alone.
    assert!(note == noted || parsed.with_note("n") == parsed.text());

    if parsed.id().is_some() {
        whole["id"] = json!("new");
        assert_eq!(value(&parsed.with_id(r#""new""#)).as_ref(), Some(&whole));
        if let Ok(Some(token)) = parsed.progress_token() {
            whole["params"]["_meta"]["progressToken"] = json!(7);
            let changed = parsed.with_id_and_token(r#""new""#, token, "7");
            assert_eq!(value(&changed).as_ref(), Some(&whole));
        }
    }
}

fn check_handshake(payload: &[u8]) {
    Handshake::read(payload);
    let Some(told) = frame::result_for_client(payload, "v") else { return };
    serde_json::from_slice::<IgnoredAny>(&told).expect("what a client is told is JSON");
    let again = frame::result_for_client(&told, "v").expect("it can be read again");
    assert_eq!(again, told);
}

fn check_lists(payload: &[u8]) {
    for kind in ListKind::ALL {
        let page = Bytes::copy_from_slice(payload);
        Walk::new(kind).take(page.clone()).ok();
        let mut lists = Lists::default();
        if lists.offer(kind, vec![page]).is_ok() {
            let restored = Lists::restore(&lists.stored()).expect("what was stored is found again");
            let first = |lists: &Lists| lists.get(kind).map(|list| list.page(None));
            assert_eq!(first(&restored), first(&lists));
        }
    }
}

fn value(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok()
}
