//! Calls that outlive the timeouts of real clients: the server finishes them, and a repeat gets the result.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::client::{Client, End, Sdk, text_of};
use super::raw::{JSON, call};
use super::setup::{NAME, Setup, Wire, test_env};
use crate::env::{kill, until};

/// How long a call takes in ms, and the patience of its client in seconds. Within it the call has to reach the server, also
/// on a busy machine: a call that has not is cancelled.
const SLOW: u64 = 5000;
const PATIENCE: f64 = 2.0;

/// Python 1.x does not report its timeouts.
const REPORTING: [Sdk; 5] = [Sdk::Ts117, Sdk::Ts1, Sdk::Ts2, Sdk::Py2, Sdk::Rust];

fn run(wire: Wire, options: &[&str]) -> Setup {
    Setup::in_env(test_env(), wire, options, &[])
}

/// Arguments of a slow call, which differ by this number.
fn arguments(number: usize) -> Value {
    json!({"path": "effects", "line": number.to_string(), "ms": SLOW})
}

/// How often the calls of this number were executed.
fn executions(setup: &Setup, number: usize) -> usize {
    let effects = std::fs::read_to_string(setup.env.work().join("effects")).unwrap_or_default();
    effects.lines().filter(|line| *line == number.to_string()).count()
}

#[track_caller]
fn assert_times_out(client: &Client, arguments: &Value) {
    let end = client.send_call_within(PATIENCE, "append", arguments).end();
    assert!(matches!(end, End::Error { .. }), "{:?}: {end:?}", client.sdk);
}

/// Asserts that this is the result of an earlier call, which was executed once.
#[track_caller]
fn assert_late(setup: &Setup, sdk: Sdk, result: &Value, number: usize) {
    assert!(text_of(result, 0).starts_with("This is the answer to your earlier"), "{result}");
    assert_eq!(text_of(result, 1), "appended", "{sdk:?}");
    assert_eq!(result["_meta"]["mainstay/late-result"], true, "{sdk:?}: {result}");
    assert_eq!(executions(setup, number), 1, "{sdk:?}");
}

/// Repeats a call that was given up, and gets its result.
#[track_caller]
fn assert_repeat(setup: &Setup, client: &Client, number: usize) {
    let result = client.send_call("append", &arguments(number)).result();
    assert_late(setup, client.sdk, &result, number);
}

/// Waits until calls that were made before are finished: this one takes longer.
fn outlast(client: &Client) {
    client.text("sleep", &json!({"ms": SLOW + 500}));
}

fn a_repeat_gets_the_result(wire: Wire) {
    let setup = run(wire, &[]);
    let clients = REPORTING.map(|sdk| {
        let client = setup.client(sdk);
        // Its session with an HTTP server is open from then on.
        assert_eq!(client.text("echo", &json!({"text": "here"})), "here");
        client
    });
    // The first repeat comes while the call runs, the second when its result is kept.
    for is_finished in [false, true] {
        thread::scope(|scope| {
            for (number, client) in clients.iter().enumerate() {
                let number = number + if is_finished { 100 } else { 0 };
                let setup = &setup;
                scope.spawn(move || {
                    assert_times_out(client, &arguments(number));
                    if is_finished {
                        outlast(client);
                    }
                    assert_repeat(setup, client, number);
                });
            }
        });
    }
    // The next identical call is executed.
    assert_eq!(clients[0].text("append", &arguments(0)), "appended");
    assert_eq!(executions(&setup, 0), 2);
}

#[test]
fn a_repeat_gets_the_result_of_a_stdio_server() {
    a_repeat_gets_the_result(Wire::Stdio);
}

#[test]
fn a_repeat_gets_the_result_of_an_http_server() {
    a_repeat_gets_the_result(Wire::Http);
}

#[test]
fn a_repeat_through_connect_gets_the_result() {
    let setup = run(Wire::Stdio, &[]);
    let command = [env!("CARGO_BIN_EXE_mainstay"), "connect", NAME];
    for (number, sdk) in [Sdk::Ts1, Sdk::Py2].into_iter().enumerate() {
        let client = Client::connect_stdio(&setup.env, sdk, &command);
        assert_times_out(&client, &arguments(number));
        assert_repeat(&setup, &client, number);
    }
}

#[test]
fn abandoned_calls_and_results_survive_reloads_and_kills_of_the_daemon() {
    let setup = run(Wire::Stdio, &[]);
    let client = setup.client(Sdk::Ts1);
    for (number, strike) in [reload, kill_daemon].into_iter().enumerate() {
        assert_times_out(&client, &arguments(number));
        strike(&setup);
        assert_repeat(&setup, &client, number);

        let number = number + 10;
        assert_times_out(&client, &arguments(number));
        outlast(&client);
        strike(&setup);
        assert_repeat(&setup, &client, number);
    }
}

fn reload(setup: &Setup) {
    setup.env.ok(["daemon", "reload"]);
}

fn kill_daemon(setup: &Setup) {
    let before = setup.env.daemon();
    kill(before, Signal::KILL);
    until("there is another daemon", || (setup.env.daemon() != before).then_some(()));
}

#[test]
fn a_call_of_a_client_that_vanishes_is_finished() {
    let setup = run(Wire::Stdio, &[]);
    let raw = setup.raw();
    // A client that accepts no event stream cannot resume.
    drop(raw.post(JSON, &call(1, "append", &arguments(0))));
    until("it was abandoned", || {
        let decided = setup.env.events_called(NAME, "request");
        decided.iter().any(|event| event["cause"] == "abandoned").then_some(())
    });
    let answer = raw.answered(&call(2, "append", &arguments(0)));
    assert_late(&setup, Sdk::Ts1, &answer["result"], 0);
}

#[test]
fn a_repeat_of_a_call_that_may_never_end_is_told_so() {
    let setup = run(Wire::Stdio, &["--block-limit", "1s"]);
    let client = setup.client(Sdk::Ts1);
    assert_times_out(&client, &arguments(0));
    let result = client.send_call("append", &arguments(0)).result();
    let text = text_of(&result, 0);
    assert!(text.starts_with("the earlier identical call has not ended"), "{text}");
    assert_eq!(executions(&setup, 0), 1);
    assert_eq!(client.text("append", &arguments(0)), "appended");
    assert_eq!(executions(&setup, 0), 2);
}

#[test]
fn what_a_user_cancels_and_what_other_windows_call_is_executed_again() {
    let setup = run(Wire::Stdio, &[]);
    let (client, other) = (setup.client(Sdk::Ts1), setup.client(Sdk::Ts1));
    let cancelled = client.send_call("append", &arguments(0));
    until("it is executed", || (executions(&setup, 0) == 1).then_some(()));
    client.cancel(&cancelled);
    assert!(matches!(cancelled.end(), End::Error { .. }));
    assert_eq!(client.text("append", &arguments(0)), "appended");
    assert_eq!(executions(&setup, 0), 2);

    assert_times_out(&client, &arguments(1));
    assert_eq!(other.text("append", &arguments(1)), "appended");
    assert_eq!(executions(&setup, 1), 2);
}

#[test]
fn without_late_results_a_timeout_cancels_the_call() {
    let setup = run(Wire::Stdio, &["--no-late-results"]);
    let client = setup.client(Sdk::Ts1);
    assert_times_out(&client, &arguments(0));
    assert_eq!(client.text("append", &arguments(0)), "appended");
    assert_eq!(executions(&setup, 0), 2);
    let status = setup.env.ok(["status", NAME]);
    assert!(status.contains("cancelled when their client times out"), "{status}");
}
