//! Changes of containers while no daemon is running or the engine does not answer.

use mainstay_testkit::docker::Options;
use serde_json::json;

use super::setup::{Setup, Wire, assert_works, run, server_name};
use crate::env::{fixture, until};

/// A second server of the same Mainstay, so that not all containers go at once.
fn bystander(setup: &Setup) -> String {
    let name = server_name("by");
    run(&setup.env, &name, Wire::Stdio, &[], &[]);
    name
}

#[test]
fn a_removal_without_a_daemon_is_detected() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let other = bystander(&setup);
    let container = setup.container();
    setup.env.kill_mainstay();
    setup.engine.docker(&["rm", "--force", &container]);
    let listed = || setup.env.json(["ls", "-a", "--json"]).as_array().unwrap().clone();
    until("it is forgotten", || {
        (!listed().iter().any(|server| server["name"] == json!(setup.name))).then_some(())
    });
    assert_eq!(setup.env.events_called(&setup.name, "removed").len(), 1);
    assert_eq!(setup.env.server(&other)["restarts_total"], 0);
    setup.env.ok(["rm", &other]);
}

#[test]
fn an_exit_without_a_daemon_is_reported_and_not_counted() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    let container = setup.container();
    setup.env.kill_mainstay();
    setup.engine.docker(&["kill", &container]);
    let server = setup.back(2);
    assert_eq!(server["restarts"], 0, "{server:#}");
    assert_eq!(server["last_exit"]["code"], 137, "{server:#}");
    let ended = setup.env.events_called(&setup.name, "ended");
    assert!(
        ended[0]["detail"].as_str().unwrap().contains("while no daemon was there"),
        "{ended:?}"
    );
    assert_works(&session);
}

#[test]
fn a_pause_without_a_daemon_is_detected_and_nothing_is_killed() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let container = setup.container();
    setup.env.kill_mainstay();
    setup.engine.docker(&["pause", &container]);
    setup.status("waiting");
    setup.engine.docker(&["unpause", &container]);
    let server = setup.back(1);
    assert_eq!(server["restarts_total"], 0, "{server:#}");
}

#[test]
fn servers_removed_together_are_all_removed() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let other = bystander(&setup);
    let second = setup.env.server(&other)["container_id"].as_str().unwrap().to_owned();
    setup.engine.docker(&["rm", "--force", &setup.container(), &second]);
    until("both are forgotten", || {
        setup.env.json(["ls", "-a", "--json"]).as_array().unwrap().is_empty().then_some(())
    });
}

#[test]
fn a_container_is_removed_with_its_server_after_an_engine_outage() {
    let setup = Setup::alone(Options::default(), Wire::Stdio, &[]);
    let label = format!("mainstay.server={}", setup.name);
    let other = server_name("by");
    run(&setup.env, &other, Wire::Stdio, &[], &[]);
    setup.engine.stop();
    setup.status("waiting");
    setup.env.ok(["rm", &setup.name]);
    setup.env.kill_mainstay();
    setup.engine.start();
    setup.env.once_running(&other, 2);
    until("its container is gone", || setup.engine.labelled(&label).is_empty().then_some(()));
}

#[test]
fn a_container_is_removed_when_its_server_becomes_a_process() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    setup.env.ok(["run", &setup.name, "--replace", "--wait", "--", &fixture()]);
    assert_eq!(setup.server()["engine"], "process");
    let label = format!("mainstay.server={}", setup.name);
    until("its container is gone", || setup.engine.labelled(&label).is_empty().then_some(()));
    assert_works(&session);
}
