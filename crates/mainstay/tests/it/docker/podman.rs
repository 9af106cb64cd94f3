//! Podman, whose API differs from Docker's in details.

use std::rc::Rc;

use mainstay_testkit::docker::Engine;
use serde_json::{Value, json};

use super::setup::{Setup, Wire};
use crate::proxy::client::Sdk;

#[test]
fn sessions_outlive_kills_stops_and_restarts() {
    let engine = Rc::new(Engine::podman());
    for wire in [Wire::Stdio, Wire::Http] {
        let setup = Setup::on(&engine, wire, &[], &[]);
        let client = setup.client(Sdk::Rust);
        assert_eq!(setup.server()["engine"], "podman");
        let server = setup.kill();
        assert_eq!(server["last_exit"]["signal"], 9, "{server:#}");
        setup.assert_goes_on(&[&client]);
        setup.docker(&["stop"]);
        setup.back(3);
        setup.assert_goes_on(&[&client]);
        setup.docker(&["restart"]);
        setup.env.once(&setup.name, "was restarted", |server| {
            server["status"] == "running" && server["generation"].as_u64() > Some(3)
        });
        setup.assert_goes_on(&[&client]);
    }
}

#[test]
fn a_server_is_removed_with_its_container() {
    let engine = Rc::new(Engine::podman());
    let setup = Setup::on(&engine, Wire::Stdio, &[], &[]);
    setup.docker(&["rm", "--force"]);
    setup.env.once(&setup.name, "was gone", Value::is_null);
}

#[test]
fn the_podman_service_may_stop_and_start_again() {
    let engine = Rc::new(Engine::podman());
    // Its containers live on, but those that are attached to lose their standard input with the service.
    for (wire, generation) in [(Wire::Http, 1), (Wire::Stdio, 2)] {
        let setup = Setup::on(&engine, wire, &[], &[]);
        let client = setup.client(Sdk::Rust);
        engine.kill();
        setup.status("waiting");
        engine.start();
        let server = setup.back(generation);
        assert_eq!(server["restarts"], json!(0));
        setup.assert_goes_on(&[&client]);
    }
}
