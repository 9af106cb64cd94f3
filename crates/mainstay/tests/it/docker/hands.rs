//! Somebody uses `docker` on a container that Mainstay keeps alive.

use mainstay_testkit::docker::{Engine, IMAGE};
use serde_json::json;
use std::rc::Rc;

use super::scene::{Rest, Scene, Wire, refused, run, server_name, stage};
use crate::proxy::client::Sdk;

#[test]
fn a_stop_is_answered_by_a_restart_that_names_it() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let client = scene.client(Sdk::Rust);
    scene.docker(&["stop"]);
    scene.back(2);
    let server =
        scene.env.once(&scene.name, "knew why", |server| server["last_exit"]["cause"] == "stopped");
    assert_eq!((&server["restarts"], &server["generation"]), (&json!(1), &json!(2)));
    let why = scene.env.ok(["why", &scene.name]);
    assert!(why.contains("stopped by someone else"), "{why}");
    scene.assert_goes_on(&[&client]);
}

#[test]
fn a_stop_is_respected_if_asked_for() {
    let scene = Scene::new(Wire::Stdio, &["--on-stop", "respect"], &[]);
    let client = scene.client(Sdk::Py2);
    scene.docker(&["stop"]);
    let server = scene.status("stopped");
    assert_eq!((&server["generation"], &server["restarts"]), (&json!(1), &json!(0)));
    let told = refused(&client);
    assert!(told.contains("stopped"), "{told}");
    scene.env.ok(["start", &scene.name]);
    scene.back(2);
    scene.assert_goes_on(&[&client]);
}

#[test]
fn a_kill_is_no_stop_even_if_stops_are_respected() {
    let scene = Scene::new(Wire::Stdio, &["--on-stop", "respect"], &[]);
    let client = scene.client(Sdk::Rust);
    scene.kill();
    scene.assert_goes_on(&[&client]);
}

#[test]
fn a_restart_keeps_the_sessions_and_costs_nothing() {
    restart(Wire::Stdio, Sdk::Ts2);
}

#[test]
fn a_restart_keeps_the_sessions_and_costs_nothing_over_http() {
    restart(Wire::Http, Sdk::Py1);
}

/// Docker publishes another port then, and no event of the container says so.
#[test]
fn a_server_is_reached_after_it_was_disconnected_from_its_network_and_connected_again() {
    let scene = Scene::new(Wire::Http, &["--restart-max", "1"], &[]);
    let (rust, other) = (scene.client(Sdk::Rust), scene.client(Sdk::Ts1));
    for _ in 0..2 {
        scene.docker(&["network", "disconnect", "bridge"]);
        let held = rust.send_call("echo", &json!({"text": "held"}));
        scene.docker(&["network", "connect", "bridge"]);
        assert_eq!(held.text(), "held");
        let server = scene.back(1);
        assert_eq!((&server["restarts_total"], &server["status"]), (&json!(0), &json!("running")));
        scene.assert_goes_on(&[&rust, &other]);
    }
}

fn restart(wire: Wire, sdk: Sdk) {
    let scene = Scene::new(wire, &["--restart-max", "1"], &[]);
    let (rust, other) = (scene.client(Sdk::Rust), scene.client(sdk));
    for round in 1..=3 {
        scene.docker(&["restart"]);
        let server = scene.env.once(&scene.name, "took the restart for what it is", |server| {
            server["status"] == "running"
                && server["last_exit"]["cause"] == "restarted"
                && server["generation"] == round + 1
        });
        assert_eq!(server["restarts"], 0, "{server:#}");
        scene.assert_goes_on(&[&rust, &other]);
    }
}

#[test]
fn a_container_that_is_started_by_hand_is_adopted() {
    let scene = Scene::new(Wire::Stdio, &["--no-restart"], &[]);
    let client = scene.client(Sdk::Rust);
    let container = scene.container();
    scene.docker(&["kill"]);
    scene.status("error");
    scene.engine.docker(&["start", &container]);
    let server = scene.back(2);
    assert_eq!(server["container_id"], json!(container));
    scene.assert_goes_on(&[&client]);
}

#[test]
fn a_call_to_a_paused_container_waits_until_it_goes_on() {
    for wire in [Wire::Stdio, Wire::Http] {
        let scene = Scene::new(wire, &[], &[]);
        let client = scene.client(Sdk::Rust);
        let container = scene.container();
        scene.engine.docker(&["pause", &container]);
        scene.event("paused");
        let held = client.send_call("echo", &json!({"text": "held"}));
        assert_eq!(scene.server()["generation"], 1);
        scene.engine.docker(&["unpause", &container]);
        assert_eq!(held.text(), "held");
        scene.event("unpaused");
        let server = scene.back(1);
        assert_eq!((&server["restarts_total"], &server["last_exit"]), (&json!(0), &json!(null)));
        scene.assert_goes_on(&[&client]);
    }
}

#[test]
fn a_renamed_container_stays_what_it_is() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let client = scene.client(Sdk::Rust);
    let container = scene.container();
    scene.engine.docker(&["rename", &container, &server_name("renamed")]);
    scene.assert_goes_on(&[&client]);
    assert_eq!(scene.generation(), 1);
    let server = scene.kill();
    assert_eq!(server["container_id"], json!(container));
    scene.assert_goes_on(&[&client]);
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
    let env = stage(&engine, &engine.host());
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
    let env = stage(&engine, &engine.host());
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
