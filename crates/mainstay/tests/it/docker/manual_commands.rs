//! `docker` commands on a container that Mainstay supervises.

use mainstay_testkit::docker::{Engine, IMAGE};
use serde_json::json;
use std::rc::Rc;

use super::setup::{Rest, Setup, Wire, engine_env, refused, run, server_name};
use crate::proxy::client::Sdk;

#[test]
fn a_stopped_container_is_restarted_and_the_stop_is_reported() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let client = setup.client(Sdk::Rust);
    setup.docker(&["stop"]);
    setup.back(2);
    let server =
        setup.env.once(&setup.name, "knew why", |server| server["last_exit"]["cause"] == "stopped");
    assert_eq!((&server["restarts"], &server["generation"]), (&json!(1), &json!(2)));
    let why = setup.env.ok(["why", &setup.name]);
    assert!(why.contains("stopped by someone else"), "{why}");
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_stop_is_respected_if_configured() {
    let setup = Setup::new(Wire::Stdio, &["--on-stop", "respect"], &[]);
    let client = setup.client(Sdk::Py2);
    setup.docker(&["stop"]);
    let server = setup.status("stopped");
    assert_eq!((&server["generation"], &server["restarts"]), (&json!(1), &json!(0)));
    let reported = refused(&client);
    assert!(reported.contains("stopped"), "{reported}");
    setup.env.ok(["start", &setup.name]);
    setup.back(2);
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_kill_is_not_a_stop_even_if_stops_are_respected() {
    let setup = Setup::new(Wire::Stdio, &["--on-stop", "respect"], &[]);
    let client = setup.client(Sdk::Rust);
    setup.kill();
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_restart_keeps_sessions_and_is_not_counted() {
    restart(Wire::Stdio, Sdk::Ts2);
}

#[test]
fn a_restart_keeps_sessions_and_is_not_counted_over_http() {
    restart(Wire::Http, Sdk::Py1);
}

/// Docker publishes another port then, and no event of the container says so.
#[test]
fn a_server_is_reached_after_it_was_disconnected_from_its_network_and_connected_again() {
    let setup = Setup::new(Wire::Http, &["--restart-max", "1"], &[]);
    let (rust, other) = (setup.client(Sdk::Rust), setup.client(Sdk::Ts1));
    for _ in 0..2 {
        setup.docker(&["network", "disconnect", "bridge"]);
        let held = rust.send_call("echo", &json!({"text": "held"}));
        setup.docker(&["network", "connect", "bridge"]);
        assert_eq!(held.text(), "held");
        let server = setup.back(1);
        assert_eq!((&server["restarts_total"], &server["status"]), (&json!(0), &json!("running")));
        setup.assert_goes_on(&[&rust, &other]);
    }
}

fn restart(wire: Wire, sdk: Sdk) {
    let setup = Setup::new(wire, &["--restart-max", "1"], &[]);
    let (rust, other) = (setup.client(Sdk::Rust), setup.client(sdk));
    for round in 1..=3 {
        setup.docker(&["restart"]);
        let server = setup.env.once(&setup.name, "took the restart for what it is", |server| {
            server["status"] == "running"
                && server["last_exit"]["cause"] == "restarted"
                && server["generation"] == round + 1
        });
        assert_eq!(server["restarts"], 0, "{server:#}");
        setup.assert_goes_on(&[&rust, &other]);
    }
}

#[test]
fn a_container_that_is_started_by_hand_is_adopted() {
    let setup = Setup::new(Wire::Stdio, &["--no-restart"], &[]);
    let client = setup.client(Sdk::Rust);
    let container = setup.container();
    setup.docker(&["kill"]);
    setup.status("error");
    setup.engine.docker(&["start", &container]);
    let server = setup.back(2);
    assert_eq!(server["container_id"], json!(container));
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_call_to_a_paused_container_waits_until_it_resumes() {
    for wire in [Wire::Stdio, Wire::Http] {
        let setup = Setup::new(wire, &[], &[]);
        let client = setup.client(Sdk::Rust);
        let container = setup.container();
        setup.engine.docker(&["pause", &container]);
        setup.event("paused");
        let held = client.send_call("echo", &json!({"text": "held"}));
        assert_eq!(setup.server()["generation"], 1);
        setup.engine.docker(&["unpause", &container]);
        assert_eq!(held.text(), "held");
        setup.event("unpaused");
        let server = setup.back(1);
        assert_eq!((&server["restarts_total"], &server["last_exit"]), (&json!(0), &json!(null)));
        setup.assert_goes_on(&[&client]);
    }
}

#[test]
fn a_renamed_container_stays_supervised() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let client = setup.client(Sdk::Rust);
    let container = setup.container();
    setup.engine.docker(&["rename", &container, &server_name("renamed")]);
    setup.assert_goes_on(&[&client]);
    assert_eq!(setup.generation(), 1);
    let server = setup.kill();
    assert_eq!(server["container_id"], json!(container));
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_container_of_someone_else_with_our_name_is_not_touched() {
    let engine = Rc::new(Engine::shared());
    let name = server_name("fx");
    let label = format!("mainstay-test={name}");
    let foreign_name = format!("mainstay-{name}");
    let foreign =
        engine.docker(&["run", "-d", "-i", "--label", &label, "--name", &foreign_name, IMAGE]);
    let started = engine.inspect(&foreign, "{{.State.StartedAt}} {{.State.Running}}");
    let env = engine_env(&engine, &engine.host());
    let rest = Rest::new(&engine, &name);
    let server = run(&env, &name, Wire::Stdio, &[], &[]);
    assert_ne!(server["container_id"], json!(foreign));
    assert_eq!(env.call(&name, "echo", r#"{"text": "hello"}"#), "hello");
    env.ok(["rm", &name]);
    assert_eq!(engine.inspect(&foreign, "{{.State.StartedAt}} {{.State.Running}}"), started);
    assert_eq!(engine.labelled(&format!("mainstay.server={name}")), [""; 0]);
    drop((env, rest));
    engine.sweep(&label);
}

#[test]
fn a_server_outlives_its_image_and_a_new_one_is_refused_clearly() {
    let engine = Rc::new(Engine::shared());
    let image = format!("{}:test", server_name("short-lived"));
    engine.docker(&["tag", IMAGE, &image]);
    let env = engine_env(&engine, &engine.host());
    let name = server_name("fx");
    let _rest = Rest::new(&engine, &name);
    env.run_server(&name, &["--image", &image], &[]);
    engine.docker(&["rmi", "--force", &image]);
    let container = env.server(&name)["container_id"].as_str().unwrap().to_owned();
    engine.docker(&["kill", &container]);
    env.once_running(&name, 2);
    assert_eq!(env.call(&name, "echo", r#"{"text": "hello"}"#), "hello");

    let other = server_name("other");
    let output = env.run(["run", &other, "--image", &image, "--wait"]);
    assert_eq!(output.code, 1, "{output}");
    assert!(output.stderr.contains(&image), "{output}");
    assert!(env.server(&other).is_null(), "nothing is left of it");
}
