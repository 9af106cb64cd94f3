//! Podman, which speaks Docker's language with an accent.

use std::rc::Rc;

use mainstay_testkit::docker::Engine;
use serde_json::{Value, json};

use super::scene::{Scene, Wire};
use crate::proxy::client::Sdk;

#[test]
fn sessions_outlive_kills_stops_and_restarts() {
    let engine = Rc::new(Engine::podman());
    for wire in [Wire::Stdio, Wire::Http] {
        let scene = Scene::on(&engine, wire, &[], &[]);
        let client = scene.client(Sdk::Rust);
        assert_eq!(scene.server()["engine"], "podman");
        let server = scene.kill();
        assert_eq!(server["last_exit"]["signal"], 9, "{server:#}");
        scene.assert_goes_on(&[&client]);
        scene.docker(&["stop"]);
        scene.back(3);
        scene.assert_goes_on(&[&client]);
        scene.docker(&["restart"]);
        scene.env.once(&scene.name, "was restarted", |server| {
            server["status"] == "running" && server["generation"].as_u64() > Some(3)
        });
        scene.assert_goes_on(&[&client]);
    }
}

#[test]
fn a_server_is_removed_with_its_container() {
    let engine = Rc::new(Engine::podman());
    let scene = Scene::on(&engine, Wire::Stdio, &[], &[]);
    scene.docker(&["rm", "--force"]);
    scene.env.once(&scene.name, "was gone", Value::is_null);
}

#[test]
fn its_service_may_go_away_and_come_back() {
    let engine = Rc::new(Engine::podman());
    // Its containers live on, but those that are attached to lose their standard input with the service.
    for (wire, generation) in [(Wire::Http, 1), (Wire::Stdio, 2)] {
        let scene = Scene::on(&engine, wire, &[], &[]);
        let client = scene.client(Sdk::Rust);
        engine.kill();
        scene.status("waiting");
        engine.start();
        let server = scene.back(generation);
        assert_eq!(server["restarts"], json!(0));
        scene.assert_goes_on(&[&client]);
    }
}
