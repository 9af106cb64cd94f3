//! What others do to containers while no daemon is there, and what is left when nobody can be asked.

use mainstay_testkit::docker::Options;
use serde_json::json;

use super::scene::{Scene, Wire, assert_works, run, server_name};
use crate::env::{fixture, until};

/// A second server of the same Mainstay, so that not all containers go at once.
fn bystander(scene: &Scene) -> String {
    let name = server_name("by");
    run(&scene.env, &name, Wire::Stdio, &[], &[]);
    name
}

#[test]
fn a_removal_that_no_daemon_saw_is_found() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let other = bystander(&scene);
    let container = scene.container();
    scene.env.kill_mainstay();
    scene.engine.docker(&["rm", "--force", &container]);
    let listed = || scene.env.json(["ls", "-a", "--json"]).as_array().unwrap().clone();
    until("it is forgotten", || {
        (!listed().iter().any(|server| server["name"] == json!(scene.name))).then_some(())
    });
    assert_eq!(scene.env.events_called(&scene.name, "removed").len(), 1);
    assert_eq!(scene.env.server(&other)["restarts_total"], 0);
    scene.env.ok(["rm", &other]);
}

#[test]
fn an_end_that_no_daemon_saw_is_told_and_not_charged() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let session = scene.raw();
    let container = scene.container();
    scene.env.kill_mainstay();
    scene.engine.docker(&["kill", &container]);
    let server = scene.back(2);
    assert_eq!(server["restarts"], 0, "{server:#}");
    assert_eq!(server["last_exit"]["code"], 137, "{server:#}");
    let ended = scene.env.events_called(&scene.name, "ended");
    assert!(
        ended[0]["detail"].as_str().unwrap().contains("while no daemon was there"),
        "{ended:?}"
    );
    assert_works(&session);
}

#[test]
fn a_pause_that_no_daemon_saw_is_found_and_nothing_is_killed() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let container = scene.container();
    scene.env.kill_mainstay();
    scene.engine.docker(&["pause", &container]);
    scene.status("waiting");
    scene.engine.docker(&["unpause", &container]);
    let server = scene.back(1);
    assert_eq!(server["restarts_total"], 0, "{server:#}");
}

#[test]
fn servers_that_are_removed_together_are_all_forgotten() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let other = bystander(&scene);
    let second = scene.env.server(&other)["container_id"].as_str().unwrap().to_owned();
    scene.engine.docker(&["rm", "--force", &scene.container(), &second]);
    until("both are forgotten", || {
        scene.env.json(["ls", "-a", "--json"]).as_array().unwrap().is_empty().then_some(())
    });
}

#[test]
fn a_container_is_removed_with_its_server_even_if_its_engine_was_away() {
    let scene = Scene::alone(Options::default(), Wire::Stdio, &[]);
    let label = format!("mainstay.server={}", scene.name);
    let other = server_name("by");
    run(&scene.env, &other, Wire::Stdio, &[], &[]);
    scene.engine.stop();
    scene.status("waiting");
    scene.env.ok(["rm", &scene.name]);
    scene.env.kill_mainstay();
    scene.engine.start();
    scene.env.once_running(&other, 2);
    until("its container is gone", || scene.engine.labelled(&label).is_empty().then_some(()));
}

#[test]
fn a_container_goes_when_its_server_becomes_a_process() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let session = scene.raw();
    scene.env.ok(["run", &scene.name, "--replace", "--wait", "--", &fixture()]);
    assert_eq!(scene.server()["engine"], "process");
    let label = format!("mainstay.server={}", scene.name);
    until("its container is gone", || scene.engine.labelled(&label).is_empty().then_some(()));
    assert_works(&session);
}
