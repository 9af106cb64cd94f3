//! Calls that do more than answer, over stdio.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::{Fixture, text};

fn open(arguments: &[&str], capabilities: &Value) -> Fixture {
    let mut fixture = Fixture::start(arguments);
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities});
    fixture.send(0, "initialize", &params);
    assert_eq!(fixture.answer()["id"], 0);
    fixture
}

fn respond(fixture: &mut Fixture, request: &Value, result: &Value) {
    let id = &request["id"];
    fixture.send_line(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
}

#[test]
fn a_call_asks_the_client_and_uses_the_reply() {
    let all = json!({"sampling": {}, "elicitation": {}, "roots": {}});
    let mut fixture = open(&["--conformance"], &all);
    for (tool, arguments, method) in [
        ("sample", json!({"prompt": "why?"}), "sampling/createMessage"),
        ("elicit", json!({"message": "who?"}), "elicitation/create"),
        ("roots", json!({}), "roots/list"),
        ("test_sampling", json!({"prompt": "why?"}), "sampling/createMessage"),
        ("test_elicitation_sep1330_enums", json!({}), "elicitation/create"),
    ] {
        fixture.call(1, tool, &arguments);
        let request = fixture.answer();
        assert_eq!(request["method"], method);
        let result = json!({"action": "accept", "content": {"text": "because"}});
        respond(&mut fixture, &request, &result);
        let answer = fixture.answer();
        assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(1), &json!(false)));
        let expected = if tool == "roots" { "accept" } else { "because" };
        assert!(text(&answer).contains(expected), "{answer}");
    }
}

#[test]
fn a_client_that_cannot_answer_is_not_asked() {
    let mut fixture = open(&[], &json!({}));
    for tool in ["sample", "elicit", "roots"] {
        fixture.call(1, tool, &json!({"prompt": "why?", "message": "who?"}));
        assert_eq!(fixture.answer()["result"]["isError"], true, "{tool}");
    }
}

#[test]
fn a_cancelled_call_is_not_answered() {
    let mut fixture = open(&[], &json!({"elicitation": {}}));
    fixture.call(1, "elicit", &json!({"message": "who?"}));
    let request = fixture.answer();
    let cancelled = json!({"requestId": 1});
    let cancelled = json!({"method": "notifications/cancelled", "params": cancelled});
    fixture.send_line(&cancelled.to_string());
    respond(&mut fixture, &request, &json!({"action": "accept"}));
    fixture.call(2, "sleep_readonly", &json!({"ms": 1}));
    assert_eq!(fixture.answer()["id"], 2);
}

#[test]
fn progress_is_reported_until_the_server_dies_and_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let once = dir.path().join("once");
    let arguments = json!({"steps": 3, "die_at": 2, "once": once});
    let call = json!({
        "name": "progress_die", "arguments": arguments, "_meta": {"progressToken": "t"},
    });
    let mut fixture = Fixture::start(&[]);
    fixture.send(1, "tools/call", &call);
    for step in [1, 2] {
        let params = json!({"progressToken": "t", "progress": step, "total": 3});
        assert_eq!(fixture.answer()["params"], params);
    }
    assert_eq!(fixture.line(), None);
    assert_eq!(fixture.ended().code(), Some(1));
    let mut fixture = Fixture::start(&[]);
    fixture.send(1, "tools/call", &call);
    let messages = [(); 4].map(|()| fixture.answer());
    assert_eq!(text(&messages[3]), "3 steps");
}

#[test]
fn a_call_can_be_deadly_with_a_code() {
    let mut fixture = Fixture::start(&[]);
    fixture.call(1, "die", &json!({"code": 9}));
    assert_eq!(fixture.line(), None);
    assert_eq!(fixture.ended().code(), Some(9));
}

#[test]
fn log_messages_are_filtered_and_updates_go_to_subscribers() {
    let mut fixture = open(&[], &json!({}));
    fixture.send(1, "logging/setLevel", &json!({"level": "warning"}));
    fixture.answer();
    fixture.call(2, "log", &json!({"level": "info", "text": "quiet"}));
    assert_eq!(fixture.answer()["id"], 2);
    fixture.call(3, "log", &json!({"level": "error", "text": "loud"}));
    let message = fixture.answer();
    assert_eq!((&message["params"]["data"], &fixture.answer()["id"]), (&json!("loud"), &json!(3)));
    let uri = json!({"uri": "fixture://greeting"});
    fixture.call(4, "touch", &uri);
    assert_eq!(fixture.answer()["id"], 4);
    fixture.send(5, "resources/subscribe", &uri);
    fixture.answer();
    fixture.call(6, "touch", &uri);
    assert_eq!(fixture.answer()["method"], "notifications/resources/updated");
    assert_eq!(fixture.answer()["id"], 6);
}

#[test]
fn memory_lasts_as_long_as_the_process() {
    let mut fixture = Fixture::start(&[]);
    fixture.call(1, "remember", &json!({"key": "colour", "value": "blue"}));
    fixture.answer();
    fixture.call(2, "recall", &json!({"key": "colour"}));
    assert_eq!(text(&fixture.answer()), "blue");
    let mut other = Fixture::start(&[]);
    other.call(1, "recall", &json!({"key": "colour"}));
    assert_eq!(other.answer()["result"]["isError"], true);
}

#[test]
fn executions_and_messages_are_written_down_before_death() {
    use std::os::unix::process::ExitStatusExt as _;
    let dir = tempfile::tempdir().unwrap();
    let [count, record] = ["count", "record"].map(|name| dir.path().join(name));
    let flags = ["--count-file", count.to_str().unwrap(), "--record", record.to_str().unwrap()];
    let mut fixture = Fixture::start(&flags);
    fixture.send(1, "ping", &json!({}));
    fixture.call(2, "echo", &json!({"text": "a"}));
    fixture.call(3, "crash", &json!({"signal": 9}));
    assert_eq!(fixture.ended().signal(), Some(Signal::KILL.as_raw()));
    assert_eq!(fs::read_to_string(count).unwrap(), "echo\ncrash\n");
    let messages = fs::read_to_string(record).unwrap();
    let ids: Vec<_> = messages
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone())
        .collect();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn tools_come_by_flag_and_by_file_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tools");
    fs::write(&file, "third\n\nfourth\n").unwrap();
    let flags = ["--extra-tool", "first", "--extra-tool", "second", "--page-size", "5"];
    let file = ["--tools-file", file.to_str().unwrap()];
    let mut fixture = Fixture::start(&[&flags[..], &file].concat());
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        fixture.send(1, "tools/list", &params);
        let result = fixture.answer()["result"].clone();
        let page = result["tools"].as_array().unwrap();
        assert!(page.len() <= 5);
        names.extend(page.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        match &result["nextCursor"] {
            Value::Null => break,
            cursor => params = json!({"cursor": cursor}),
        }
    }
    assert!(
        names.ends_with(&["first", "second", "third", "fourth"].map(String::from)),
        "{names:?}"
    );
    fixture.call(2, "third", &json!({}));
    assert_eq!(text(&fixture.answer()), "third");
    let mut other = Fixture::start(&["--page-size", "5"]);
    other.send(1, "tools/list", &params);
    assert_eq!(other.answer()["error"]["code"], -32602, "a cursor dies with its process");
}
