//! Ownership of containers: labels alone prove nothing.

use std::rc::Rc;

use mainstay_testkit::docker::{Engine, IMAGE};
use serde_json::json;

use super::setup::{Rest, Setup, Wire, assert_works, engine_env, run, server_name};
use crate::env::until;

#[test]
fn containers_with_our_labels_are_left_alone_when_the_daemon_starts() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    let instance = setup.env.json(["daemon", "status", "--json"])["instance"].clone();
    let instance = instance.as_str().unwrap();
    let owned = |instance: &str, name: &str| {
        let labels = [format!("mainstay.instance={instance}"), format!("mainstay.server={name}")];
        setup.engine.docker(&[
            "run",
            "-d",
            "-i",
            "--label",
            &labels[0],
            "--label",
            &labels[1],
            "--label",
            "mainstay.run=1",
            "--label",
            &format!("mainstay-test={}", setup.name),
            IMAGE,
        ])
    };
    let orphan = owned(instance, &server_name("ghost"));
    let double = owned(instance, &setup.name);
    let neighbour = owned("another-instance", &server_name("ghost"));
    let foreign = setup.engine.docker(&[
        "run",
        "-d",
        "-i",
        "--label",
        &format!("mainstay-test={}", setup.name),
        IMAGE,
    ]);
    setup.env.kill_mainstay();
    let server = setup.back(1);
    until("the log names what is left alone", || {
        let log = setup.log();
        let is_named = |id: &str| {
            log.lines()
                .any(|line| line.contains("Mainstay labels but no record") && line.contains(id))
        };
        (is_named(&orphan) && is_named(&double)).then_some(())
    });
    for id in [&orphan, &double, &neighbour, &foreign] {
        assert_eq!(setup.engine.inspect(id, "{{.State.Running}}"), "true");
    }
    assert_eq!(server["restarts_total"], 0, "the wanted server keeps running");
    assert_works(&session);
    setup.engine.sweep(&format!("mainstay-test={}", setup.name));
}

#[test]
fn a_new_daemon_recovers_the_runs_of_the_old_one() {
    for wire in [Wire::Stdio, Wire::Http] {
        let setup = Setup::new(wire, &[], &[]);
        let session = setup.raw();
        let (container, pid) = (setup.container(), setup.engine.pid(&setup.container()));
        setup.env.kill_mainstay();
        let server = setup.back(1);
        assert_eq!(server["container_id"], json!(container));
        assert_eq!(setup.engine.pid(&container), pid);
        assert_works(&session);
        setup.kill();
        assert_works(&session);
    }
}

#[test]
fn two_instances_share_an_engine_without_interference() {
    let engine = Rc::new(Engine::shared());
    let name = server_name("fx");
    let (one, two) = (engine_env(&engine, &engine.host()), engine_env(&engine, &engine.host()));
    let _rest = Rest::new(&engine, &name);
    let first = run(&one, &name, Wire::Stdio, &[], &[]);
    let second = run(&two, &name, Wire::Stdio, &[], &[]);
    assert_ne!(first["container_id"], second["container_id"]);
    one.kill_mainstay();
    one.once_running(&name, 1);
    engine.docker(&["kill", first["container_id"].as_str().unwrap()]);
    one.once_running(&name, 2);
    one.ok(["rm", &name]);
    let server = two.once_running(&name, 1);
    assert_eq!(server["container_id"], second["container_id"]);
    assert_eq!(two.call(&name, "echo", r#"{"text": "hello"}"#), "hello");
}
