//! The tools during which the fixture reads nothing.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread;

use serde_json::{Value, json};

use crate::fixture::{Fixture, text};

#[track_caller]
fn check(tool: &str, arguments: &Value) {
    let mut fixture = Fixture::start(&["--blocking-tools"]);
    fixture.call(1, tool, arguments);
    fixture.call(2, "echo", &json!({"text": "behind"}));
    let mut answers =
        std::iter::repeat_with(|| fixture.answer()).filter(|it| it.get("id").is_some());
    let first = answers.next().unwrap();
    assert_eq!((&first["id"], text(&first)), (&json!(1), "300 ms"));
    assert_eq!(answers.next().unwrap()["id"], 2);
}

#[test]
fn each_answers_before_the_call_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    for tool in ["stall", "compute", "child", "chat"] {
        check(tool, &json!({"ms": 300}));
    }
    check("disk", &json!({"ms": 300, "path": dir.path().join("data")}));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the file is removed");
}

#[test]
fn a_response_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Input that is not read would reset the connection.
        let lines = BufReader::new(&stream).lines().map(Result::unwrap);
        let request: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n300 ms").unwrap();
        request
    });
    check("fetch", &json!({"address": address, "path": "/300"}));
    assert_eq!(server.join().unwrap()[0], "GET /300 HTTP/1.1");
}

#[test]
fn a_chat_sends_messages_meanwhile() {
    let mut fixture = Fixture::start(&["--blocking-tools"]);
    fixture.call(1, "chat", &json!({"ms": 300}));
    assert_eq!(fixture.answer()["method"], "notifications/message");
}

#[test]
fn after_a_deadlock_nothing_is_answered() {
    let mut fixture = Fixture::start(&["--blocking-tools"]);
    fixture.call(1, "deadlock", &json!({}));
    assert_eq!(text(&fixture.answer()), "deadlocked");
    fixture.call(2, "echo", &json!({"text": "unread"}));
    // The end of its input ends a server that reads.
    fixture.close_stdin();
    let tasks = format!("/proc/{}/task", fixture.pid());
    let sleeps = |entry: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(entry.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
    };
    for _ in 0..500 {
        let threads: Vec<_> = std::fs::read_dir(&tasks).unwrap().map(sleeps).collect();
        if threads.len() == 2 && threads.iter().all(|sleeps| *sleeps) {
            return;
        }
        thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it has two threads that wait for each other");
}

#[test]
fn they_are_offered_by_flag_only() {
    for (flags, offered) in [(&[][..], false), (&["--blocking-tools"], true)] {
        let mut fixture = Fixture::start(flags);
        fixture.send(1, "tools/list", &json!({}));
        let tools = fixture.answer()["result"]["tools"].to_string();
        assert_eq!(tools.contains(r#""name":"stall""#), offered);
        fixture.call(2, "stall", &json!({"ms": 0}));
        assert_eq!(fixture.answer().get("error").is_none(), offered);
    }
}
