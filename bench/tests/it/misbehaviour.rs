//! The flags that make the fixture misbehave.

use std::fs;

use rustix::process::{Pid, Signal, getsid, kill_process};
use serde_json::json;

use crate::fixture::{Fixture, text};

fn pid(raw: u32) -> Pid {
    Pid::from_raw(i32::try_from(raw).unwrap()).unwrap()
}

#[test]
fn exits_at_start_after_its_words() {
    let mut fixture = Fixture::start(&["--exit-at-start", "3", "--stderr", "no key"]);
    assert_eq!(fixture.stderr_line().as_deref(), Some("no key"));
    assert_eq!(fixture.ended().code(), Some(3));
}

#[test]
fn exits_after_a_while() {
    let mut fixture = Fixture::start(&["--exit-after", "1"]);
    assert_eq!(fixture.ended().code(), Some(1));
}

#[test]
fn never_answers() {
    let mut fixture = Fixture::start(&["--never-answer"]);
    fixture.send(1, "ping", &json!({}));
    fixture.close_stdin();
    assert_eq!(fixture.line(), None);
}

#[test]
fn answers_initialize_late() {
    let mut fixture = Fixture::start(&["--ready-after", "1"]);
    fixture.send(1, "initialize", &json!({"protocolVersion": "2025-11-25"}));
    assert_eq!(fixture.answer()["id"], 1);
}

#[test]
fn starts_late() {
    let mut fixture = Fixture::start(&["--start-delay", "1"]);
    fixture.send(1, "ping", &json!({}));
    assert_eq!(fixture.answer()["id"], 1);
}

#[test]
fn ignores_term() {
    let mut fixture = Fixture::start(&["--ignore-term"]);
    fixture.send(1, "ping", &json!({}));
    fixture.answer();
    kill_process(pid(fixture.pid()), Signal::TERM).unwrap();
    fixture.send(2, "ping", &json!({}));
    assert_eq!(fixture.answer()["id"], 2);
}

#[test]
fn ignores_the_end_of_stdin() {
    use std::os::unix::process::ExitStatusExt as _;
    let mut fixture = Fixture::start(&["--ignore-stdin-eof"]);
    fixture.call(1, "sleep", &json!({"ms": 300}));
    fixture.close_stdin();
    assert_eq!(fixture.answer()["id"], 1, "only a process that lives on can answer after the end");
    kill_process(pid(fixture.pid()), Signal::TERM).unwrap();
    assert_eq!(fixture.ended().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn floods_before_serving() {
    let mut fixture = Fixture::start(&["--flood-stdout", "100000", "--flood-stderr", "200000"]);
    fixture.send(1, "ping", &json!({}));
    let mut flooded = 0;
    let answer = loop {
        let line = fixture.line().unwrap();
        if line.starts_with('{') {
            break line;
        }
        flooded += line.len() + 1;
    };
    assert_eq!((flooded, answer.contains("\"id\":1")), (100_000, true));
    fixture.close_stdin();
    let stderr: usize = std::iter::from_fn(|| fixture.stderr_line()).map(|l| l.len() + 1).sum();
    assert_eq!(stderr, 200_000);
}

#[test]
fn prints_junk_between_answers() {
    let mut fixture = Fixture::start(&["--junk-stdout"]);
    for id in [1, 2] {
        fixture.send(id, "ping", &json!({}));
        let lines: Vec<_> = std::iter::from_fn(|| fixture.line()).take(4).collect();
        assert_eq!(lines[0], "Loading model...");
        assert!(lines[3].contains(&format!("\"id\":{id}")), "{lines:?}");
    }
}

#[test]
fn leaves_an_orphan_in_a_session_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orphan.pid");
    let mut fixture =
        Fixture::start(&["--daemonize-child", "--child-pid-file", file.to_str().unwrap()]);
    fixture.call(1, "pid", &json!({}));
    assert_eq!(text(&fixture.answer()), fixture.pid().to_string());
    let orphan = pid(fs::read_to_string(&file).unwrap().parse().unwrap());
    let session = getsid(Some(orphan)).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", orphan.as_raw_pid())).unwrap();
    kill_process(orphan, Signal::KILL).unwrap();
    assert_eq!(session, orphan);
    let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
    assert_ne!(parent, fixture.pid().to_string());
}
