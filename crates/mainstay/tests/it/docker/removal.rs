//! `docker rm` removes the server in every state.

use serde_json::{Value, json};

use super::setup::{SLOW, Setup, Wire};
use crate::env::until;
use crate::proxy::client::{Sdk, text_of};
use crate::proxy::raw::{BOTH, JSON, call, exchange, parts, request};

#[test]
fn a_server_is_removed_with_its_container() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let client = setup.client(Sdk::Rust);
    let in_flight = client.send_call("sleep", &json!({"ms": 600_000}));
    setup.event("ready");
    setup.docker(&["rm", "--force"]);
    let result = in_flight.result();
    assert_eq!(result["isError"], true, "{result}");
    assert!(text_of(&result, 0).contains("removed"), "{result}");
    assert_gone(&setup);
    let log = setup.log();
    assert!(log.contains("INFO server removed"), "{log}");
}

#[test]
fn an_http_server_is_removed_with_its_container() {
    let setup = Setup::new(Wire::Http, &[], &[]);
    let session = setup.raw();
    setup.docker(&["rm", "--force"]);
    assert_gone(&setup);
    let answer = session.post(BOTH, &call(1, "echo", &json!({"text": "anybody?"})));
    assert_eq!(answer.status, 404);
}

#[test]
fn a_server_that_waits_for_its_next_start_is_removed_with_its_container() {
    let setup = Setup::new(Wire::Stdio, &SLOW, &[]);
    let container = setup.container();
    setup.kill();
    setup.docker(&["kill"]);
    setup.env.once(&setup.name, "waited", |server| server["next_restart_at"].is_string());
    setup.engine.docker(&["rm", "--force", &container]);
    assert_gone(&setup);
}

#[test]
fn a_stopped_server_is_removed_with_its_container() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let container = setup.container();
    setup.env.ok(["stop", &setup.name]);
    setup.engine.docker(&["rm", &container]);
    assert_gone(&setup);
}

#[test]
fn a_server_that_gave_up_is_removed_with_its_container() {
    let setup = Setup::new(Wire::Stdio, &["--no-restart"], &[]);
    let container = setup.container();
    setup.docker(&["kill"]);
    setup.status("error");
    setup.engine.docker(&["rm", &container]);
    assert_gone(&setup);
}

#[test]
fn a_server_is_removed_if_its_container_was_removed_unseen() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let container = setup.container();
    let daemon = setup.env.daemon();
    crate::env::kill(daemon, rustix::process::Signal::STOP);
    setup.engine.docker(&["rm", "--force", &container]);
    crate::env::kill(daemon, rustix::process::Signal::CONT);
    assert_gone(&setup);
}

#[test]
fn rm_removes_the_container() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    setup.env.ok(["rm", &setup.name]);
    assert_eq!(setup.engine.labelled(&format!("mainstay.server={}", setup.name)), [""; 0]);
    assert_gone(&setup);
}

/// Asserts that the server is out of every list, stays out, and its endpoint says so.
#[track_caller]
fn assert_gone(setup: &Setup) {
    let listed = || {
        let all = setup.env.json(["ls", "-a", "--json"]);
        all.as_array().unwrap().iter().any(|server| server["name"] == json!(setup.name))
    };
    until("it is gone from every list", || (!listed()).then_some(()));
    let (address, path) = parts(&setup.url);
    let head = [("Host", &*address), ("Content-Type", JSON), ("Accept", BOTH)];
    let hello = request(1, "initialize", &json!({})).to_string();
    assert_eq!(exchange(&address, "POST", &path, &head, &hello).status, 404);
    let output = setup.env.run(["status", &setup.name]);
    assert_eq!(output.code, 3, "{output}");
    let removed = setup.env.events_called(&setup.name, "removed");
    assert_eq!(removed.len(), 1, "{removed:?}");
    assert_ne!(removed[0]["at"], Value::Null);
}
