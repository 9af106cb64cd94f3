//! Real clients in sessions that survive the daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::setup::{Blow, NAME, SLOW, Setup, lines};
use crate::env::until;
use crate::proxy::client::{Client, End, Sdk, is};
use crate::real_servers::environment;

/// Calls that a client makes at most while daemons come and go.
const CALLS: u64 = 5_000;

/// The number of reloads.
const RELOADS: usize = 10;

/// How long calls are in flight before the daemon is killed: well past the 150 ms after which they survive it. Some
/// clients get the head of the response earlier.
const UNDER_WAY: Duration = Duration::from_millis(600);

#[test]
fn slow_calls_are_answered_once_after_a_kill() {
    answered_once(Blow::Kill);
}

#[test]
fn slow_calls_are_answered_once_after_a_reload() {
    answered_once(Blow::Reload);
}

/// A safe call and one with an effect, of each client.
fn answered_once(blow: Blow) {
    let env = environment();
    let (counted, effects) = (env.work().join("count"), env.work().join("effects"));
    let setup = Setup::in_env(env, &[], &["--count-file", counted.to_str().unwrap()]);
    let clients = everyone(&setup);
    let slow: Vec<_> = clients
        .iter()
        .flat_map(|client| {
            let line = format!("{:?}", client.sdk);
            let writes = json!({"path": effects, "line": line, "ms": SLOW});
            let reads = client.send_call("sleep_readonly", &json!({"ms": SLOW}));
            [
                (client, reads, "slept 2500 ms"),
                (client, client.send_call("append", &writes), "appended"),
            ]
        })
        .collect();
    until("the server has all", || (lines(&counted) == slow.len()).then_some(()));
    for client in &clients {
        until("both have a head", || (heads(client) == 2).then_some(()));
    }
    thread::sleep(UNDER_WAY);

    blow.strike(&setup.env);
    for (client, call, text) in &slow {
        match call.end() {
            // It is answered as JSON, which cannot be resumed. It loses the call, and not its session.
            End::Error { message, .. } if client.sdk == Sdk::Py2 && blow == Blow::Kill => {
                assert!(message.contains("Failed to parse JSON"), "{message}");
            }
            _ => assert_eq!(call.text(), *text, "{:?}", client.sdk),
        }
    }
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "after"})), "after", "{:?}", client.sdk);
    }
    for (client, call, _) in &slow {
        let ends = client.all(|reported| {
            reported["id"] == call.id && (is(reported, "result") || is(reported, "error"))
        });
        assert_eq!(ends.len(), 1, "{:?}: {ends:?}", client.sdk);
    }
    assert_eq!(lines(&counted), slow.len() + clients.len(), "each was executed once");
    assert_eq!(lines(&effects), clients.len());
    clients.iter().for_each(assert_one_session);
    assert_eq!(setup.env.server(NAME)["sessions"], json!(clients.len()));
    setup.assert_server_kept();
}

#[test]
fn quick_calls_succeed_through_reloads() {
    let setup = Setup::in_env(environment(), &[], &[]);
    let clients = everyone(&setup);
    let enough = AtomicBool::new(false);
    let call_on = |client: &Client| {
        let more = |_: &u64| !enough.load(Ordering::Relaxed);
        let calls = (0..CALLS).take_while(more).inspect(|n| {
            let text = n.to_string();
            assert_eq!(client.text("echo", &json!({"text": text})), text);
            // Connections are now busy and now at rest.
            thread::sleep(Duration::from_millis(n % 7));
        });
        calls.count()
    };
    thread::scope(|scope| {
        let calling: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || call_on(client))).collect();
        for _ in 0..RELOADS {
            Blow::Reload.strike(&setup.env);
        }
        enough.store(true, Ordering::Relaxed);
        for calls in calling {
            assert!(calls.join().expect("its calls were answered") > 0);
        }
    });
    clients.iter().for_each(Client::assert_clean);
    assert_eq!(setup.env.server(NAME)["sessions"], json!(clients.len()));
    setup.assert_server_kept();
}

/// Opens a session with each SDK that is a program of its own.
fn everyone(setup: &Setup) -> Vec<Client> {
    let started = Sdk::PROGRAMS.map(|sdk| Client::start(&setup.env, sdk, &setup.url));
    started.into_iter().map(Client::connected).collect()
}

/// How many calls have been answered so far by a head, at least.
fn heads(client: &Client) -> usize {
    client.all(|reported| is(reported, "http") && reported["rpc"] == "tools/call").len()
}

/// Asserts that a client whose streams were cut has the session it began with, and was never refused.
#[track_caller]
pub(super) fn assert_one_session(client: &Client) {
    let sdk = client.sdk;
    let http = client.all(|reported| is(reported, "http") && reported["rpc"] != "server/discover");
    let initialized = http.iter().filter(|exchange| exchange["rpc"] == "initialize").count();
    assert_eq!(initialized, 1, "{sdk:?}");
    for exchange in &http {
        assert_eq!(exchange["status"].as_u64().unwrap_or_default() / 100, 2, "{sdk:?}: {exchange}");
        let sent = exchange["session"].as_str().or(exchange["given"].as_str());
        assert_eq!(sent, client.session().as_deref(), "{sdk:?}: {exchange}");
    }
    let cut = |reported: &Value| {
        reported["message"].as_str().unwrap_or_default().contains("disconnected")
    };
    let trouble = client.all(|reported| is(reported, "trouble") && !cut(reported));
    assert_eq!(trouble, [Value::Null; 0], "{sdk:?}: nothing but that streams were cut");
}
