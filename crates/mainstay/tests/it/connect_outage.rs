//! `mainstay connect` while the real daemon dies, is stopped and comes back.

use serde_json::{Value, json};

use crate::env::{TestEnv, fixture};
use crate::stand_in::Client;

#[test]
fn a_daemon_that_is_stopped_stays_so_and_the_session_goes_on_with_the_next_one() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    let mut client = open(&env);
    call(&mut client, 1, "count", &json!({}));
    assert_eq!(text(&client.message()), (json!(1), "1".to_owned()));
    env.ok(["daemon", "stop", "--keep-servers"]);
    call(&mut client, 2, "count", &json!({}));
    assert_eq!(env.run(["daemon", "status"]).code, 4, "an open connection is no wish for a daemon");
    assert!(client.is_alive());
    env.ok(["ls"]);
    assert_eq!(text(&client.message()), (json!(2), "2".to_owned()));
    let (code, lines, stderr) = client.end();
    assert_eq!((code, lines), (Some(0), Vec::new()), "{stderr}");
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
