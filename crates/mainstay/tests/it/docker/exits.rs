//! Containers that exit.

use rustix::process::Signal;
use serde_json::json;

use super::setup::{QUICK, Setup, Wire, refused};
use crate::env::kill;
use crate::proxy::client::{Sdk, text_of};

#[test]
fn a_killed_container_is_restarted_and_sessions_survive() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let clients = Sdk::ALL.map(|sdk| setup.client(sdk));
    let clients: Vec<_> = clients.iter().collect();
    let container = setup.container();
    let server = setup.kill();
    assert_eq!(server["container_id"], json!(container), "the same container is started");
    assert_eq!((&server["restarts"], &server["restarts_total"]), (&json!(1), &json!(1)));
    let exit = &server["last_exit"];
    assert_eq!((&exit["cause"], &exit["signal"]), (&json!("exited"), &json!(9)), "{exit}");
    setup.assert_goes_on(&clients);
    let why = setup.env.ok(["why", &setup.name]);
    assert!(why.contains("137"), "{why}");
    assert!(setup.log().contains("server exited"), "{}", setup.log());
}

#[test]
fn a_killed_http_container_is_found_at_its_new_port() {
    let setup = Setup::new(Wire::Http, &[], &[]);
    let (ts, py) = (setup.client(Sdk::Ts1), setup.client(Sdk::Py1));
    kill(setup.engine.pid(&setup.container()), Signal::KILL);
    setup.back(2);
    setup.assert_goes_on(&[&ts, &py]);
}

#[test]
fn a_call_while_the_container_is_down_is_held() {
    let setup = Setup::new(Wire::Stdio, &QUICK, &[]);
    let client = setup.client(Sdk::Rust);
    setup.kill();
    for round in 2..5 {
        setup.docker(&["kill"]);
        assert_eq!(client.text("echo", &json!({"text": "held"})), "held");
        setup.back(round + 1);
    }
    setup.assert_goes_on(&[&client]);
}

#[test]
fn repeated_kills_use_up_the_budget_and_a_restart_resets_it() {
    let setup = Setup::new(Wire::Stdio, &[&["--restart-max", "3"], &QUICK[..]].concat(), &[]);
    let client = setup.client(Sdk::Rust);
    for _ in 0..3 {
        setup.kill();
    }
    setup.docker(&["kill"]);
    let server = setup.status("error");
    let reason = server["reason"].as_str().unwrap();
    assert!(reason.contains("gave up after 3 restarts"), "{reason}");
    let reported = refused(&client);
    assert!(reported.contains("gave up after 3 restarts"), "{reported}");
    setup.env.ok(["restart", &setup.name]);
    setup.status("running");
    setup.assert_goes_on(&[&client]);
}

#[test]
fn kills_after_stable_runs_never_use_up_the_budget() {
    let setup = Setup::new(Wire::Stdio, &["--restart-max", "1", "--stable-after", "0s"], &[]);
    let client = setup.client(Sdk::Rust);
    for kills in 1..=5 {
        let server = setup.kill();
        assert_eq!(server["restarts_total"], json!(kills));
    }
    setup.assert_goes_on(&[&client]);
}

#[test]
fn an_exit_with_code_0_is_an_exit() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let client = setup.client(Sdk::Rust);
    let result = client.call("crash", &json!({"code": 0}));
    assert_eq!(result["isError"], true, "its effect is unknown: {result}");
    let server = setup.back(2);
    let exit = &server["last_exit"];
    assert_eq!((&exit["cause"], &exit["code"]), (&json!("exited"), &json!(0)), "{exit}");
    assert_eq!(server["restarts"], 1);
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_container_that_runs_out_of_memory_is_reported_as_such() {
    let setup = Setup::new(Wire::Stdio, &["--memory", "48m"], &[]);
    let client = setup.client(Sdk::Rust);
    let result = client.call("hoard", &json!({"n": 200_000_000}));
    assert_eq!(result["isError"], true, "{result}");
    assert!(text_of(&result, 0).contains("OOM"), "{result}");
    let server = setup.back(2);
    let exit = &server["last_exit"];
    assert_eq!((&exit["oom"], &exit["cause"]), (&json!(true), &json!("exited")), "{exit}");
    let why = setup.env.ok(["why", &setup.name]);
    assert!(why.contains("OOM"), "{why}");
    setup.assert_goes_on(&[&client]);
}
