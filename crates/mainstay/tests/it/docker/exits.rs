//! Containers that exit, whatever for.

use rustix::process::Signal;
use serde_json::json;

use super::scene::{QUICK, Scene, Wire, refused};
use crate::env::kill;
use crate::proxy::client::{Sdk, text_of};

#[test]
fn a_killed_container_is_started_again_behind_every_session() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let clients = Sdk::ALL.map(|sdk| scene.client(sdk));
    let clients: Vec<_> = clients.iter().collect();
    let container = scene.container();
    let server = scene.kill();
    assert_eq!(server["container_id"], json!(container), "the same container is started");
    assert_eq!((&server["restarts"], &server["restarts_total"]), (&json!(1), &json!(1)));
    let exit = &server["last_exit"];
    assert_eq!((&exit["cause"], &exit["signal"]), (&json!("exited"), &json!(9)), "{exit}");
    scene.assert_goes_on(&clients);
    let why = scene.env.ok(["why", &scene.name]);
    assert!(why.contains("137"), "{why}");
    assert!(scene.log().contains("server exited"), "{}", scene.log());
}

#[test]
fn a_killed_container_that_speaks_http_is_found_at_its_new_port() {
    let scene = Scene::new(Wire::Http, &[], &[]);
    let (ts, py) = (scene.client(Sdk::Ts1), scene.client(Sdk::Py1));
    kill(scene.engine.pid(&scene.container()), Signal::KILL);
    scene.back(2);
    scene.assert_goes_on(&[&ts, &py]);
}

#[test]
fn a_call_while_the_container_is_down_is_held() {
    let scene = Scene::new(Wire::Stdio, &QUICK, &[]);
    let client = scene.client(Sdk::Rust);
    scene.kill();
    for round in 2..5 {
        scene.docker(&["kill"]);
        assert_eq!(client.text("echo", &json!({"text": "held"})), "held");
        scene.back(round + 1);
    }
    scene.assert_goes_on(&[&client]);
}

#[test]
fn kills_in_a_loop_end_in_giving_up_and_a_restart_helps() {
    let scene = Scene::new(Wire::Stdio, &[&["--restart-max", "3"], &QUICK[..]].concat(), &[]);
    let client = scene.client(Sdk::Rust);
    for _ in 0..3 {
        scene.kill();
    }
    scene.docker(&["kill"]);
    let server = scene.status("error");
    let reason = server["reason"].as_str().unwrap();
    assert!(reason.contains("gave up after 3 restarts"), "{reason}");
    let told = refused(&client);
    assert!(told.contains("gave up after 3 restarts"), "{told}");
    scene.env.ok(["restart", &scene.name]);
    scene.status("running");
    scene.assert_goes_on(&[&client]);
}

#[test]
fn kills_after_stable_runs_never_end_in_giving_up() {
    let scene = Scene::new(Wire::Stdio, &["--restart-max", "1", "--stable-after", "0s"], &[]);
    let client = scene.client(Sdk::Rust);
    for kills in 1..=5 {
        let server = scene.kill();
        assert_eq!(server["restarts_total"], json!(kills));
    }
    scene.assert_goes_on(&[&client]);
}

#[test]
fn an_exit_without_an_error_is_an_exit() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let client = scene.client(Sdk::Rust);
    let result = client.call("crash", &json!({"code": 0}));
    assert_eq!(result["isError"], true, "its effect is unknown: {result}");
    let server = scene.back(2);
    let exit = &server["last_exit"];
    assert_eq!((&exit["cause"], &exit["code"]), (&json!("exited"), &json!(0)), "{exit}");
    assert_eq!(server["restarts"], 1);
    scene.assert_goes_on(&[&client]);
}

#[test]
fn a_container_that_runs_out_of_memory_is_told_so() {
    let scene = Scene::new(Wire::Stdio, &["--memory", "48m"], &[]);
    let client = scene.client(Sdk::Rust);
    let result = client.call("hoard", &json!({"n": 200_000_000}));
    assert_eq!(result["isError"], true, "{result}");
    assert!(text_of(&result, 0).contains("OOM"), "{result}");
    let server = scene.back(2);
    let exit = &server["last_exit"];
    assert_eq!((&exit["oom"], &exit["cause"]), (&json!(true), &json!("exited")), "{exit}");
    let why = scene.env.ok(["why", &scene.name]);
    assert!(why.contains("OOM"), "{why}");
    scene.assert_goes_on(&[&client]);
}
