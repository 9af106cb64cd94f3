//! `mainstay connect` while the real daemon dies, is stopped and started again.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, fixture, kill, until, until_dead};
use crate::fake_daemon::Client;

/// How long slow calls take: longer than a restart of the daemon.
const SLOW: u64 = 3_000;

/// How long a call is in flight before the daemon is killed: well past the 150 ms after which it survives the daemon.
const UNDER_WAY: Duration = Duration::from_secs(1);

#[test]
fn a_stopped_daemon_stays_stopped_and_sessions_continue_with_the_next() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    let mut client = open(&env);
    call(&mut client, 1, "count", &json!({}));
    assert_eq!(text(&client.message()), (json!(1), "1".to_owned()));
    env.ok(["daemon", "stop", "--keep-servers"]);
    call(&mut client, 2, "count", &json!({}));
    let (id, refused) = text(&client.message());
    assert_eq!(id, 2);
    assert!(refused.contains("Mainstay is stopped"), "{refused}");
    assert_eq!(env.run(["daemon", "status"]).code, 4, "a client does not start it");
    assert!(client.is_alive());
    env.ok(["daemon", "start"]);
    call(&mut client, 3, "count", &json!({}));
    assert_eq!(text(&client.message()), (json!(3), "2".to_owned()));
    let (code, lines, stderr) = client.end();
    assert_eq!((code, lines), (Some(0), Vec::new()), "{stderr}");
}

#[test]
fn a_stopping_daemon_delivers_answers_first() {
    let env = TestEnv::new();
    let counted = env.work().join("count");
    env.run_server("time", &[], &[&fixture(), "--count-file", counted.to_str().unwrap()]);
    let mut client = open(&env);
    call(&mut client, 1, "sleep", &json!({"ms": 1_000}));
    let by_hand = thread::scope(|scope| {
        let by_hand = scope.spawn(|| env.call("time", "sleep", r#"{"ms": 1000}"#));
        until("the server has both", || (lines(&counted) == 2).then_some(()));
        env.ok(["daemon", "stop"]);
        by_hand.join().unwrap()
    });
    assert_eq!(by_hand, "slept 1000 ms");
    assert_eq!(text(&client.message()), (json!(1), "slept 1000 ms".to_owned()));
}

#[test]
fn connect_restarts_a_daemon_that_died_with_its_holder() {
    let env = TestEnv::new();
    let server = env.run_server("time", &[], &[&fixture()]);
    let mut client = open(&env);
    call(&mut client, 1, "count", &json!({}));
    assert_eq!(text(&client.message()), (json!(1), "1".to_owned()));
    env.kill_mainstay();
    call(&mut client, 2, "count", &json!({}));
    assert_eq!(text(&client.message()), (json!(2), "2".to_owned()));
    assert_eq!(env.server("time")["pid"], server["pid"]);
    let (code, lines, stderr) = client.end();
    assert_eq!((code, lines), (Some(0), Vec::new()), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn slow_calls_survive_a_killed_daemon() {
    let env = TestEnv::new();
    let (counted, effects) = (env.work().join("count"), env.work().join("effects"));
    let flags = [&fixture(), "--count-file", counted.to_str().unwrap()];
    env.run_server("time", &[], &flags);
    let mut client = open(&env);
    call(&mut client, 1, "sleep_readonly", &json!({"ms": SLOW}));
    call(&mut client, 2, "append", &json!({"path": effects, "line": "x", "ms": SLOW}));
    until("the server has both", || (lines(&counted) == 2).then_some(()));
    thread::sleep(UNDER_WAY);
    let old = env.daemon();
    kill(old, Signal::KILL);
    until_dead(old);
    env.ok(["ls"]);

    let mut answers = [client.message(), client.message()].map(|answer| text(&answer));
    answers.sort_by_key(|(id, _)| id.as_u64());
    let [(first, slept), (second, appended)] = answers;
    assert_eq!((first, second), (json!(1), json!(2)));
    assert_eq!(slept, format!("slept {SLOW} ms"));
    assert_eq!(appended, "appended");
    assert_eq!(lines(&counted), 2, "each was executed once");
    assert_eq!(lines(&effects), 1);
    call(&mut client, 3, "echo", &json!({"text": "after"}));
    assert_eq!(text(&client.message()), (json!(3), "after".to_owned()));
    let (code, rest, stderr) = client.end();
    assert_eq!((code, rest), (Some(0), Vec::new()), "{stderr}");
}

#[test]
fn calls_that_are_made_all_the_time_are_executed_once_each_through_reloads() {
    const RELOADS: usize = 8;
    const AT_ONCE: u64 = 64;
    let env = TestEnv::new();
    let effects = env.work().join("effects");
    env.run_server("time", &[], &[&fixture()]);
    let mut client = open(&env);
    let (mut made, mut answered) = (0, 0);
    thread::scope(|scope| {
        let reloads = scope.spawn(|| (0..RELOADS).for_each(|_| drop(env.ok(["daemon", "reload"]))));
        while !reloads.is_finished() {
            made += 1;
            call(&mut client, made, "append", &json!({"path": effects, "line": made.to_string()}));
            while made - answered == AT_ONCE {
                assert_appended(&client.message());
                answered += 1;
            }
        }
        reloads.join().unwrap();
    });
    for _ in answered..made {
        assert_appended(&client.message());
    }
    let (code, rest, stderr) = client.end();
    assert_eq!((code, rest, stderr.as_str()), (Some(0), Vec::new(), ""), "nothing broke");
    let effects = fs::read_to_string(&effects).unwrap();
    let mut effects: Vec<u64> = effects.lines().map(|line| line.parse().unwrap()).collect();
    effects.sort_unstable();
    assert!(effects.into_iter().eq(1..=made), "each was executed once");
}

/// A client with an open session.
fn open(env: &TestEnv) -> Client {
    let mut client = Client::start(env);
    let info = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
    say(&mut client, &json!({"id": 0, "method": "initialize", "params": params}));
    assert_eq!(client.message()["id"], 0);
    say(&mut client, &json!({"method": "notifications/initialized"}));
    client
}

fn call(client: &mut Client, id: u64, tool: &str, arguments: &Value) {
    let params = json!({"name": tool, "arguments": arguments});
    say(client, &json!({"id": id, "method": "tools/call", "params": params}));
}

fn say(client: &mut Client, message: &Value) {
    let mut message = message.clone();
    message["jsonrpc"] = json!("2.0");
    client.say(&message.to_string());
}

/// Which request a message answers, and the first text of its result.
#[track_caller]
fn text(answer: &Value) -> (Value, String) {
    let text = answer["result"]["content"][0]["text"].as_str();
    (answer["id"].clone(), text.unwrap_or_else(|| panic!("{answer}")).to_owned())
}

#[track_caller]
fn assert_appended(answer: &Value) {
    assert_eq!(text(answer).1, "appended", "{answer}");
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}
