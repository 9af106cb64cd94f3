//! The fixture over stdio.

use std::fs;

use serde_json::json;

use crate::fixture::{Fixture, text};

#[test]
fn it_answers_over_stdio() {
    let mut fixture = Fixture::start(&[]);
    fixture.send(1, "initialize", &json!({"protocolVersion": "2025-06-18"}));
    assert_eq!(fixture.answer()["result"]["protocolVersion"], "2025-06-18");
    fixture.send_line(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    fixture.call(2, "echo", &json!({"text": "grüße\n"}));
    let answer = fixture.answer();
    assert_eq!((&answer["id"], text(&answer)), (&json!(2), "grüße\n"));
    fixture.call(3, "pid", &json!({}));
    assert_eq!(text(&fixture.answer()), fixture.pid().to_string());
    fixture.close_stdin();
    assert!(fixture.ended().success());
}

#[test]
fn lines_that_arrive_together_are_all_answered_in_order() {
    let mut fixture = Fixture::start(&[]);
    let ping = |id: u32| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
    fixture.send_line(&(0..1000).map(ping).collect::<Vec<_>>().join("\n"));
    for id in 0..1000 {
        assert_eq!(fixture.answer()["id"], id);
    }
}

#[test]
fn a_sleeping_call_holds_up_nobody() {
    let mut fixture = Fixture::start(&[]);
    fixture.call(1, "sleep", &json!({"ms": 600_000}));
    fixture.call(2, "sleep", &json!({"ms": 1}));
    assert_eq!(fixture.answer()["id"], 2);
    fixture.call(3, "echo", &json!({"text": "a"}));
    assert_eq!(fixture.answer()["id"], 3);
}

#[test]
fn large_answers_come_whole() {
    let mut fixture = Fixture::start(&[]);
    fixture.call(1, "bytes", &json!({"n": 1_000_000}));
    assert_eq!(text(&fixture.answer()).len(), 1_000_000);
}

#[test]
fn appended_lines_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lines");
    let mut fixture = Fixture::start(&[]);
    for (id, line) in [(1, "one"), (2, "two")] {
        fixture.call(id, "append", &json!({"path": path, "line": line}));
        assert_eq!(text(&fixture.answer()), "appended");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    fixture.call(3, "append", &json!({"path": dir.path(), "line": "x"}));
    assert_eq!(fixture.answer()["result"]["isError"], true);
}

#[test]
fn a_crash_leaves_the_call_unanswered_and_earlier_ones_answered() {
    use std::os::unix::process::ExitStatusExt as _;
    let crash = |arguments| {
        let mut fixture = Fixture::start(&[]);
        fixture.call(1, "count", &json!({}));
        fixture.call(2, "crash", &arguments);
        assert_eq!(fixture.answer()["id"], 1);
        assert_eq!(fixture.line(), None);
        fixture.ended()
    };
    assert_eq!(crash(json!({})).code(), Some(1));
    assert_eq!(crash(json!({"code": 7})).code(), Some(7));
    assert_eq!(crash(json!({"signal": 9})).signal(), Some(9));
}
