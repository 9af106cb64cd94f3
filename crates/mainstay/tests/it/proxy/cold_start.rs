//! A slow first start, like that of a server that downloads its packages.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::raw::{BOTH, Raw, parts, request};
use super::setup::{NAME, test_env};
use crate::env::{TestEnv, fixture};
use crate::fake_daemon::Client;

/// Longer than a list is waited for that a copy can answer.
const DOWNLOAD: Duration = Duration::from_secs(10);

const SERVER: &str =
    r#"echo "fetching packages" >&2; while test -e barred; do sleep 0.05; done; exec "$0""#;

#[test]
fn every_kind_of_client_waits_for_the_first_start() {
    let env = test_env();
    let barred = env.write("barred", "");
    env.ok(["run", NAME, "--", "sh", "-c", SERVER, &fixture()]);
    thread::scope(|scope| {
        let connect = scope.spawn(|| over_connect(&env));
        let http = scope.spawn(|| over_http(&env));
        let tools = scope.spawn(|| env.ok(["tools", NAME]));
        let call = scope.spawn(|| env.call(NAME, "echo", r#"{"text": "hi"}"#));
        thread::sleep(DOWNLOAD);
        std::fs::remove_file(barred).unwrap();
        for reported in [connect.join().unwrap(), http.join().unwrap()] {
            assert_eq!(reported[0]["progressToken"], "t", "{reported:?}");
            assert_eq!(reported[0]["message"], "starting fx: fetching packages", "{reported:?}");
            assert!(reported.len() >= 2, "the wait continues: {reported:?}");
        }
        assert!(tools.join().unwrap().contains("echo"));
        assert_eq!(call.join().unwrap(), "hi");
    });
}

fn initialize() -> Value {
    let params = json!({
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"}, "_meta": {"progressToken": "t"},
    });
    request(1, "initialize", &params)
}

/// The progress that the client receives.
fn over_connect(env: &TestEnv) -> Vec<Value> {
    let mut client = Client::spawn(env.command(["connect", NAME]));
    client.say(&initialize().to_string());
    told_before_answer(|| client.message())
}

fn over_http(env: &TestEnv) -> Vec<Value> {
    let url = env.server(NAME)["url"].as_str().unwrap().to_owned();
    let (address, path) = parts(&url);
    let session = Raw { address, path, id: String::new(), authorization: None };
    let mut response = session.post(BOTH, &initialize());
    assert_eq!(response.status, 200);
    told_before_answer(|| response.message().expect("an answer"))
}

fn told_before_answer(mut next: impl FnMut() -> Value) -> Vec<Value> {
    let mut reported = Vec::new();
    loop {
        let message = next();
        if message["method"] == "notifications/progress" {
            reported.push(message["params"].clone());
        } else {
            assert!(message["result"]["serverInfo"].is_object(), "{message}");
            return reported;
        }
    }
}
