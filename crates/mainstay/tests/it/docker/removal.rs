//! `docker rm`, in whatever state the server is: it is gone for good.

use serde_json::{Value, json};

use super::scene::{SLOW, Scene, Wire};
use crate::env::until;
use crate::proxy::client::{Sdk, text_of};
use crate::proxy::raw::{BOTH, JSON, call, exchange, parts, request};

#[test]
fn a_server_is_removed_with_its_container() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let client = scene.client(Sdk::Rust);
    let in_flight = client.send_call("sleep", &json!({"ms": 600_000}));
    scene.event("ready");
    scene.docker(&["rm", "--force"]);
    let result = in_flight.result();
    assert_eq!(result["isError"], true, "{result}");
    assert!(text_of(&result, 0).contains("removed"), "{result}");
    assert_gone(&scene);
    let log = scene.log();
    assert!(log.contains("INFO server removed"), "{log}");
}

#[test]
fn a_server_that_speaks_http_is_removed_with_its_container() {
    let scene = Scene::new(Wire::Http, &[], &[]);
    let session = scene.raw();
    scene.docker(&["rm", "--force"]);
    assert_gone(&scene);
    let answer = session.post(BOTH, &call(1, "echo", &json!({"text": "anybody?"})));
    assert_eq!(answer.status, 404);
}

#[test]
fn a_server_that_waits_for_its_next_start_is_removed_with_its_container() {
    let scene = Scene::new(Wire::Stdio, &SLOW, &[]);
    let container = scene.container();
    scene.kill();
    scene.docker(&["kill"]);
    scene.env.once(&scene.name, "waited", |server| server["next_restart_at"].is_string());
    scene.engine.docker(&["rm", "--force", &container]);
    assert_gone(&scene);
}

#[test]
fn a_stopped_server_is_removed_with_its_container() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let container = scene.container();
    scene.env.ok(["stop", &scene.name]);
    scene.engine.docker(&["rm", &container]);
    assert_gone(&scene);
}

#[test]
fn a_server_that_gave_up_is_removed_with_its_container() {
    let scene = Scene::new(Wire::Stdio, &["--no-restart"], &[]);
    let container = scene.container();
    scene.docker(&["kill"]);
    scene.status("error");
    scene.engine.docker(&["rm", &container]);
    assert_gone(&scene);
}

#[test]
fn a_server_is_removed_even_if_its_container_went_while_nobody_looked() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let container = scene.container();
    let daemon = scene.env.daemon();
    crate::env::kill(daemon, rustix::process::Signal::STOP);
    scene.engine.docker(&["rm", "--force", &container]);
    crate::env::kill(daemon, rustix::process::Signal::CONT);
    assert_gone(&scene);
}

#[test]
fn rm_removes_the_container() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    scene.env.ok(["rm", &scene.name]);
    assert_eq!(scene.engine.labelled(&format!("mainstay.server={}", scene.name)), [""; 0]);
    assert_gone(&scene);
}

/// Asserts that the server is out of every list, stays out, and its endpoint says so.
#[track_caller]
fn assert_gone(scene: &Scene) {
    let listed = || {
        let all = scene.env.json(["ls", "-a", "--json"]);
        all.as_array().unwrap().iter().any(|server| server["name"] == json!(scene.name))
    };
    until("it is gone from every list", || (!listed()).then_some(()));
    let (address, path) = parts(&scene.url);
    let head = [("Host", &*address), ("Content-Type", JSON), ("Accept", BOTH)];
    let hello = request(1, "initialize", &json!({})).to_string();
    assert_eq!(exchange(&address, "POST", &path, &head, &hello).status, 404);
    let output = scene.env.run(["status", &scene.name]);
    assert_eq!(output.code, 3, "{output}");
    let removed = scene.env.events_called(&scene.name, "removed");
    assert_eq!(removed.len(), 1, "{removed:?}");
    assert_ne!(removed[0]["at"], Value::Null);
}
