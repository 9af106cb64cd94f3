//! The run directory, or a part of it, is removed while everything runs.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use super::scene::{Blow, NAME, SLOW, Scene, say};
use crate::env::{fixture, free_port, is_alive, kill, pid_of, shim_of, until, until_dead};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, call};

fn run_dir(scene: &Scene) -> std::path::PathBuf {
    scene.env.mainstay_home().join("run")
}

fn wipe(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }
}

/// Waits until everything that was removed is back.
fn until_healed(scene: &Scene) {
    let dir = run_dir(scene);
    until("the control socket is back", || dir.join("daemon.sock").exists().then_some(()));
    let shim = dir.join("runs").join(NAME).join("1/shim.sock");
    until("the socket of the shim is back", || shim.exists().then_some(()));
}

#[test]
fn a_control_socket_that_was_removed_is_bound_again() {
    let scene = Scene::new(&[], &[]);
    let (daemon, holder) = scene.mainstay();
    for _ in 0..2 {
        fs::remove_file(scene.socket()).unwrap();
        scene.assert_server_kept();
        assert_eq!(scene.mainstay(), (daemon, holder));
    }
    fs::remove_file(scene.socket()).unwrap();
    scene.env.ok(["daemon", "stop"]);
    for process in [daemon, holder, pid_of(&scene.server)] {
        assert!(!is_alive(process), "a stop is a stop");
    }
}

#[test]
fn servers_outlive_a_run_directory_that_was_removed() {
    let scene = Scene::new(&[], &[]);
    let port = free_port().to_string();
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let http = scene.env.run_server(
        "http",
        &options,
        &[&fixture(), "--http", &format!("127.0.0.1:{port}")],
    );
    let session = scene.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    for wipe in [wipe, |dir: &Path| fs::remove_dir_all(dir).unwrap()] {
        wipe(&run_dir(&scene));
        assert_eq!(say(&session, 2, "pid", &json!({})), scene.server["pid"].to_string());
        until_healed(&scene);
        scene.assert_server_kept();
        let now = scene.env.server("http");
        assert_eq!((&now["pid"], &now["status"]), (&http["pid"], &json!("running")));
    }
    assert_eq!(say(&session, 3, "count", &json!({})), "2");

    scene.env.ok(["rm", NAME]);
    assert!(!is_alive(pid_of(&scene.server)), "it is gone when `rm` says so");
    scene.env.ok(["stop", "http"]);
    assert!(!is_alive(pid_of(&http)), "it is gone when `stop` says so");
}

#[test]
fn a_server_is_stopped_although_its_directory_has_just_been_removed() {
    let scene = Scene::new(&[], &[]);
    let shim = shim_of(&scene.server);
    fs::remove_dir_all(run_dir(&scene).join("runs")).unwrap();
    scene.env.ok(["stop", NAME]);
    assert!(!is_alive(pid_of(&scene.server)));
    until_dead(shim);
}

#[test]
fn a_server_whose_records_cannot_be_written_again_stays_reachable() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    let dir = run_dir(&scene).join("runs").join(NAME).join("1");
    // It is in the way of the new record, as a full disk is.
    let obstacle = dir.join(".processes.new");
    fs::create_dir(&obstacle).unwrap();
    fs::remove_file(dir.join("processes")).unwrap();
    fs::remove_file(dir.join("shim.sock")).unwrap();
    until_healed(&scene);
    let (daemon, _) = scene.mainstay();
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    scene.assert_server_kept();
    until("the record is back", || dir.join("processes").exists().then_some(()));
}

#[test]
fn a_server_whose_shim_accepts_no_connections_is_replaced() {
    let scene = Scene::new(&["--stop-timeout", "1s"], &[]);
    let session = scene.raw();
    let shim = shim_of(&scene.server);
    // A socket on which nobody listens.
    let deaf = scene.env.mainstay_home().join("deaf.sock");
    drop(UnixListener::bind(&deaf).unwrap());
    fs::rename(deaf, run_dir(&scene).join("runs").join(NAME).join("1/shim.sock")).unwrap();
    let (daemon, _) = scene.mainstay();
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    assert_ne!(say(&session, 1, "pid", &json!({})), scene.server["pid"].to_string());
    assert!(!is_alive(shim) && !is_alive(pid_of(&scene.server)));
}

#[test]
fn a_run_directory_that_is_removed_while_no_daemon_is_there_costs_no_server_its_life() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    for count in 1..=6 {
        let (daemon, holder) = scene.mainstay();
        // The next daemon is started when the directory is gone, at the latest moment for its shim.
        kill(holder, Signal::STOP);
        kill(daemon, Signal::KILL);
        until_dead(daemon);
        fs::remove_dir_all(run_dir(&scene)).unwrap();
        kill(holder, Signal::CONT);
        assert_eq!(say(&session, count, "count", &json!({})), count.to_string());
        scene.assert_server_kept();
    }
    scene.env.ok(["daemon", "stop"]);
    until("nothing is left", || scene.env.processes().is_empty().then_some(()));
}

#[test]
fn a_slow_call_outlives_a_wipe_and_a_kill() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    let mut slow = session.post(BOTH, &call(1, "sleep", &json!({"ms": SLOW * 4})));
    let id = slow.event().and_then(|event| event.id).expect("an id to resume from");
    wipe(&run_dir(&scene));
    until_healed(&scene);
    let (daemon, _) = scene.mainstay();
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    let answer = session.get(Some(&id)).message().expect("an answer");
    assert_eq!(text_of(&answer["result"], 0), format!("slept {} ms", SLOW * 4));
    scene.assert_server_kept();
}

#[test]
fn a_wipe_and_a_new_daemon_cost_a_client_nothing() {
    for blow in Blow::ALL {
        let scene = Scene::new(&[], &[]);
        let session = scene.raw();
        assert_eq!(say(&session, 1, "count", &json!({})), "1");
        let (daemon, _) = scene.mainstay();
        wipe(&run_dir(&scene));
        match blow {
            Blow::Kill => {
                kill(daemon, Signal::KILL);
                until_dead(daemon);
            }
            Blow::Reload => drop(scene.env.ok(["daemon", "reload"])),
        }
        assert_eq!(say(&session, 2, "count", &json!({})), "2", "{blow:?}");
        scene.assert_server_kept();
        Blow::Kill.strike(&scene.env);
        assert_eq!(say(&session, 3, "count", &json!({})), "3", "{blow:?}");
        scene.assert_server_kept();
    }
}
