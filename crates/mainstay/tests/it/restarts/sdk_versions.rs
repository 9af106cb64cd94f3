//! The versions of the official SDKs that clients have, old and new, over HTTP and through `connect`: each keeps its session
//! when the server is killed, the daemon is reloaded and the daemon is killed.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::real::assert_one_session;
use super::setup::{Blow, NAME, SLOW, Setup, lines};
use crate::env::{kill, until};
use crate::proxy::client::{Client, Sdk, is};
use crate::real_servers::environment;

/// How a client reaches its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Http,
    Connect,
}

#[test]
fn every_version_keeps_its_session_over_http() {
    keep_sessions(Way::Http);
}

#[test]
fn every_version_keeps_its_session_through_connect() {
    keep_sessions(Way::Connect);
}

fn keep_sessions(way: Way) {
    let env = environment();
    let counted = env.work().join("count");
    let setup = Setup::in_env(env, &[], &["--count-file", counted.to_str().unwrap()]);
    let clients = everyone(&setup, way);
    assert_work(&clients, "at first");

    // A safe call is answered although its server is killed.
    let before = lines(&counted);
    let slow =
        clients.each_ref().map(|client| client.send_call("sleep_readonly", &json!({"ms": SLOW})));
    until("the server has all", || (lines(&counted) == before + slow.len()).then_some(()));
    let pid = setup.env.server(NAME)["pid"].as_u64().unwrap();
    kill(u32::try_from(pid).unwrap(), Signal::KILL);
    for (client, call) in clients.iter().zip(&slow) {
        assert_eq!(call.text(), "slept 2500 ms", "{:?}", client.sdk);
    }
    assert_work(&clients, "after the kill of the server");

    for blow in [Blow::Reload, Blow::Kill] {
        blow.strike(&setup.env);
        assert_work(&clients, &format!("after {blow:?} of the daemon"));
    }
    for client in &clients {
        match way {
            Way::Http => assert_one_session(client),
            Way::Connect => {
                let trouble = client.all(|reported| is(reported, "trouble"));
                assert_eq!(trouble, [Value::Null; 0], "{:?}", client.sdk);
            }
        }
    }
    assert_eq!(setup.env.server(NAME)["sessions"], json!(clients.len()));
}

/// Opens a session with each version.
fn everyone(setup: &Setup, way: Way) -> [Client; 5] {
    let target = match way {
        Way::Http => setup.url.clone(),
        Way::Connect => json!([env!("CARGO_BIN_EXE_mainstay"), "connect", NAME]).to_string(),
    };
    Sdk::VERSIONS.map(|sdk| Client::start(&setup.env, sdk, &target)).map(Client::connected)
}

/// Asserts that each can list the tools and call one.
#[track_caller]
fn assert_work(clients: &[Client], when: &str) {
    for client in clients {
        let sdk = client.sdk;
        assert!(client.tools().contains(&"echo".to_owned()), "{sdk:?} {when}");
        assert_eq!(client.text("echo", &json!({"text": when})), when, "{sdk:?}");
    }
}
