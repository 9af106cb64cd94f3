//! The run directory, or a part of it, is removed while everything runs.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use super::setup::{Blow, NAME, SLOW, Setup, say};
use crate::env::{fixture, free_port, is_alive, kill, pid_of, shim_of, until, until_dead};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, call};

fn run_dir(setup: &Setup) -> std::path::PathBuf {
    setup.env.mainstay_home().join("run")
}

fn wipe(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }
}

/// Waits until everything that was removed is back.
fn until_healed(setup: &Setup) {
    let dir = run_dir(setup);
    until("the control socket is back", || dir.join("daemon.sock").exists().then_some(()));
    let shim = dir.join("runs").join(NAME).join("1/shim.sock");
    until("the socket of the shim is back", || shim.exists().then_some(()));
}

#[test]
fn a_removed_control_socket_is_bound_again() {
    let setup = Setup::new(&[], &[]);
    let (daemon, holder) = setup.mainstay();
    for _ in 0..2 {
        fs::remove_file(setup.socket()).unwrap();
        setup.assert_server_kept();
        assert_eq!(setup.mainstay(), (daemon, holder));
    }
    fs::remove_file(setup.socket()).unwrap();
    setup.env.ok(["daemon", "stop"]);
    for process in [daemon, holder, pid_of(&setup.server)] {
        assert!(!is_alive(process), "a stop is a stop");
    }
}

#[test]
fn servers_survive_the_removal_of_the_run_directory() {
    let setup = Setup::new(&[], &[]);
    let port = free_port().to_string();
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let http = setup.env.run_server(
        "http",
        &options,
        &[&fixture(), "--http", &format!("127.0.0.1:{port}")],
    );
    let session = setup.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    for wipe in [wipe, |dir: &Path| fs::remove_dir_all(dir).unwrap()] {
        wipe(&run_dir(&setup));
        assert_eq!(say(&session, 2, "pid", &json!({})), setup.server["pid"].to_string());
        until_healed(&setup);
        setup.assert_server_kept();
        let now = setup.env.server("http");
        assert_eq!((&now["pid"], &now["status"]), (&http["pid"], &json!("running")));
    }
    assert_eq!(say(&session, 3, "count", &json!({})), "2");

    setup.env.ok(["rm", NAME]);
    assert!(!is_alive(pid_of(&setup.server)), "it is gone when `rm` says so");
    setup.env.ok(["stop", "http"]);
    assert!(!is_alive(pid_of(&http)), "it is gone when `stop` says so");
}

#[test]
fn a_server_is_stopped_although_its_directory_has_just_been_removed() {
    let setup = Setup::new(&[], &[]);
    let shim = shim_of(&setup.server);
    fs::remove_dir_all(run_dir(&setup).join("runs")).unwrap();
    setup.env.ok(["stop", NAME]);
    assert!(!is_alive(pid_of(&setup.server)));
    until_dead(shim);
}

#[test]
fn a_server_whose_records_cannot_be_written_again_stays_reachable() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    let dir = run_dir(&setup).join("runs").join(NAME).join("1");
    // It is in the way of the new record, as a full disk is.
    let obstacle = dir.join(".processes.new");
    fs::create_dir(&obstacle).unwrap();
    fs::remove_file(dir.join("processes")).unwrap();
    fs::remove_file(dir.join("shim.sock")).unwrap();
    until_healed(&setup);
    let (daemon, _) = setup.mainstay();
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    setup.assert_server_kept();
    until("the record is back", || dir.join("processes").exists().then_some(()));
}

#[test]
fn a_server_whose_shim_accepts_no_connections_is_replaced() {
    let setup = Setup::new(&["--stop-timeout", "1s"], &[]);
    let session = setup.raw();
    let shim = shim_of(&setup.server);
    // A socket without a listener.
    let deaf = setup.env.mainstay_home().join("deaf.sock");
    drop(UnixListener::bind(&deaf).unwrap());
    fs::rename(deaf, run_dir(&setup).join("runs").join(NAME).join("1/shim.sock")).unwrap();
    let (daemon, _) = setup.mainstay();
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    assert_ne!(say(&session, 1, "pid", &json!({})), setup.server["pid"].to_string());
    assert!(!is_alive(shim) && !is_alive(pid_of(&setup.server)));
}

#[test]
fn servers_survive_the_removal_of_the_run_directory_without_a_daemon() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    for count in 1..=6 {
        let (daemon, holder) = setup.mainstay();
        // The next daemon is started when the directory is gone, at the latest moment for its shim.
        kill(holder, Signal::STOP);
        kill(daemon, Signal::KILL);
        until_dead(daemon);
        fs::remove_dir_all(run_dir(&setup)).unwrap();
        kill(holder, Signal::CONT);
        assert_eq!(say(&session, count, "count", &json!({})), count.to_string());
        setup.assert_server_kept();
    }
    setup.env.ok(["daemon", "stop"]);
    until("nothing is left", || setup.env.processes().is_empty().then_some(()));
}

#[test]
fn a_slow_call_survives_a_removal_and_a_kill() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    let mut slow = session.post(BOTH, &call(1, "sleep", &json!({"ms": SLOW * 4})));
    let id = slow.event().and_then(|event| event.id).expect("an id to resume from");
    wipe(&run_dir(&setup));
    until_healed(&setup);
    let (daemon, _) = setup.mainstay();
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    let answer = session.get(Some(&id)).message().expect("an answer");
    assert_eq!(text_of(&answer["result"], 0), format!("slept {} ms", SLOW * 4));
    setup.assert_server_kept();
}

#[test]
fn a_client_survives_a_removal_and_a_new_daemon() {
    for blow in Blow::ALL {
        let setup = Setup::new(&[], &[]);
        let session = setup.raw();
        assert_eq!(say(&session, 1, "count", &json!({})), "1");
        let (daemon, _) = setup.mainstay();
        wipe(&run_dir(&setup));
        match blow {
            Blow::Kill => {
                kill(daemon, Signal::KILL);
                until_dead(daemon);
            }
            Blow::Reload => drop(setup.env.ok(["daemon", "reload"])),
        }
        assert_eq!(say(&session, 2, "count", &json!({})), "2", "{blow:?}");
        setup.assert_server_kept();
        Blow::Kill.strike(&setup.env);
        assert_eq!(say(&session, 3, "count", &json!({})), "3", "{blow:?}");
        setup.assert_server_kept();
    }
}
