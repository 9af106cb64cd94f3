//! An engine that sends no events, or wrong answers.

use std::rc::Rc;
use std::time::Duration;

use mainstay_testkit::docker::{Engine, Fault, FaultProxy};
use rustix::process::Signal;
use serde_json::json;

use super::setup::{Setup, Wire};
use crate::env::kill;
use crate::proxy::client::{Client, Sdk, text_of};

const EVENTS: &str = "GET /events";
const ATTACH: &str = "POST /containers/";

/// A server whose engine is reached through a proxy.
fn behind_a_proxy(wire: Wire) -> (FaultProxy, Setup) {
    let engine = Rc::new(Engine::shared());
    // Its threads need not be where the engine is.
    let proxy = FaultProxy::new(&engine);
    let setup = Setup::behind(&proxy, &engine, wire, &["--restart-max", "3"]);
    (proxy, setup)
}

#[test]
fn a_cut_stream_of_events_is_opened_again() {
    let (proxy, setup) = behind_a_proxy(Wire::Http);
    let client = setup.client(Sdk::Rust);
    let streams = proxy.count(EVENTS);
    assert!(streams > 0, "events are listened to");
    proxy.cut_events();
    proxy.wait_for(EVENTS, streams + 1);
    let server = setup.back(1);
    assert_eq!(server["restarts_total"], 0, "a cut stream is no outage");
    setup.kill();
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_death_without_an_event_is_noticed() {
    // By the end of the attachment, and without that by the list of all containers.
    for silence in [&[Fault::MuteEvents][..], &[Fault::MuteEvents, Fault::KeepAttach]] {
        for wire in [Wire::Stdio, Wire::Http] {
            let (proxy, setup) = behind_a_proxy(wire);
            let client = setup.client(Sdk::Rust);
            proxy.set(silence);
            kill(setup.engine.pid(&setup.container()), Signal::KILL);
            let server = setup.back(2);
            assert_eq!(server["last_exit"]["signal"], 9, "{server:#}");
            setup.assert_goes_on(&[&client]);
        }
    }
}

/// What an engine has read and not passed on dies with it.
#[test]
fn requests_that_are_lost_with_an_engine_are_sent_again_or_answered() {
    let (proxy, setup) = behind_a_proxy(Wire::Stdio);
    let client = setup.client(Sdk::Rust);
    let lose = |tool: &str, arguments| {
        proxy.set(&[Fault::Stall]);
        let call = client.send_call(tool, &arguments);
        proxy.wait_for_stalled(&format!("\"name\":\"{tool}\""));
        proxy.set(&[Fault::Refuse]);
        proxy.set(&[]);
        call
    };
    assert_eq!(lose("echo", json!({"text": "held"})).text(), "held");
    let answer = lose("count", json!({})).result();
    assert_eq!(answer["isError"], true, "{answer}");
    assert!(text_of(&answer, 0).contains("effect is unknown"), "{answer}");
    assert_eq!(client.text("count", &json!({})), "1", "it was not executed");
    assert_eq!(setup.server()["restarts_total"], 0);
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_removal_without_an_event_is_noticed() {
    let (proxy, setup) = behind_a_proxy(Wire::Http);
    proxy.set(&[Fault::MuteEvents, Fault::KeepAttach]);
    setup.docker(&["rm", "--force"]);
    setup.env.once(&setup.name, "was gone", serde_json::Value::is_null);
}

#[test]
fn failed_inspections_neither_kill_nor_remove_a_server() {
    for wire in [Wire::Stdio, Wire::Http] {
        let (proxy, setup) = behind_a_proxy(wire);
        let client = setup.client(Sdk::Rust);
        proxy.set(&[Fault::FailInspect]);
        let container = setup.container();
        setup.engine.docker(&["kill", &container]);
        let held = client.send_call("echo", &json!({"text": "held"}));
        setup.event("ended");
        proxy.set(&[]);
        assert_eq!(held.text(), "held");
        let server = setup.status("running");
        assert_eq!(server["container_id"], json!(container));
        setup.assert_goes_on(&[&client]);
    }
}

#[test]
fn a_frame_that_is_cut_in_half_loses_nothing() {
    let (proxy, setup) = behind_a_proxy(Wire::Stdio);
    let client = setup.client(Sdk::Rust);
    for count in 1..=5 {
        let attached = proxy.count(ATTACH);
        proxy.set(&[Fault::CutAttach(20)]);
        // It counts its calls and is not replayed, so none may get lost or be made twice.
        let call = client.send_call("count", &json!({}));
        proxy.wait_for(ATTACH, attached + 1);
        proxy.set(&[]);
        assert_eq!(call.text(), count.to_string());
    }
    let server = setup.back(1);
    assert_eq!(server["restarts_total"], 0);
    setup.assert_goes_on(&[&client]);
}

#[test]
fn a_stalled_engine_is_an_outage() {
    let (proxy, setup) = behind_a_proxy(Wire::Stdio);
    let client = setup.client(Sdk::Rust);
    assert_survives(&proxy, &setup, &client, Fault::Stall);
}

#[test]
fn an_engine_that_refuses_connections_is_an_outage() {
    let (proxy, setup) = behind_a_proxy(Wire::Stdio);
    let client = setup.client(Sdk::Rust);
    for _ in 0..3 {
        assert_survives(&proxy, &setup, &client, Fault::Refuse);
    }
}

/// Asserts that a call is held while the connection to the engine has this fault, and that everything works after it.
#[track_caller]
fn assert_survives(proxy: &FaultProxy, setup: &Setup, client: &Client, fault: Fault) {
    proxy.set(&[fault]);
    setup.status("waiting");
    let held = client.send_call("echo", &json!({"text": "held"}));
    proxy.set(&[]);
    assert_eq!(held.text(), "held");
    let server = setup.back(1);
    assert_eq!(server["restarts_total"], 0);
    setup.assert_goes_on(&[client]);
}

#[test]
fn a_slow_engine_is_not_an_outage() {
    let (proxy, setup) = behind_a_proxy(Wire::Stdio);
    let client = setup.client(Sdk::Rust);
    proxy.set(&[Fault::Delay(Duration::from_millis(500))]);
    let server = setup.kill();
    assert_eq!(server["restarts"], 1);
    setup.assert_goes_on(&[&client]);
    let away = setup.env.events_called(&setup.name, "engine-away");
    assert_eq!(away.len(), 0, "{away:?}");
}

/// Kills the server's container, whose id is returned, while the engine answers its starts so.
fn kill_while_refused(
    times: usize,
    status: u16,
    message: &'static str,
) -> (FaultProxy, Setup, String) {
    let (proxy, setup) = behind_a_proxy(Wire::Stdio);
    let container = setup.container();
    proxy.set(&[Fault::RefuseStarts { times, status, message }]);
    kill(setup.engine.pid(&container), Signal::KILL);
    (proxy, setup, container)
}

#[test]
fn a_start_that_the_engine_refuses_for_now_is_retried_without_counting() {
    let full = "failed to start shim: mkdir /run/containerd/x: no space left on device";
    let busy = "Container x is restarting, wait until the container is running";
    for (status, message) in [(500, full), (409, busy), (503, "the daemon is shutting down")] {
        let (proxy, setup, container) = kill_while_refused(usize::MAX, status, message);
        let ended = setup.env.once(&setup.name, "was refused", |server| {
            server["last_exit"]["cause"] == "not-started"
        });
        assert!(ended["reason"].as_str().unwrap().contains(message), "{ended:#}");
        assert_ne!(ended["status"], "error", "{ended:#}");
        proxy.set(&[]);
        let server = setup.status("running");
        assert_eq!(server["container_id"], json!(container));
        assert_eq!(server["restarts"], 1, "only the death is charged: {server:#}");
    }
}

#[test]
fn a_container_that_the_engine_cannot_start_any_more_is_replaced() {
    for message in ["task x: already exists", "id already in use"] {
        let (_proxy, setup, old) = kill_while_refused(1, 409, message);
        let server = setup.env.once(&setup.name, "was back", |server| {
            server["status"] == "running" && server["generation"] == 2
        });
        assert_ne!(server["container_id"], json!(old));
        assert_eq!(server["restarts"], 1, "{server:#}");
        let reported = setup.event("container-replaced");
        assert!(reported["detail"].as_str().unwrap().contains(message), "{reported}");
        assert!(!setup.engine.try_docker(&["inspect", &old]).status.success(), "it is removed");
        assert_eq!(setup.env.call(&setup.name, "echo", r#"{"text":"new"}"#), "new");
    }
}

#[test]
fn an_invalid_container_stays_an_error() {
    let message = "exec: nope: executable file not found in $PATH";
    let (_proxy, setup, _) = kill_while_refused(usize::MAX, 400, message);
    let down = setup.status("error");
    assert_eq!(down["last_exit"]["cause"], "cannot-start", "{down:#}");
}
