//! Servers with invalid or excessive output.

use std::time::Duration;

use serde_json::json;

use super::client::{End, Sdk};
use super::raw::{BOTH, call};
use super::setup::{Setup, Wire};

/// After 150 ms without an answer, most clients are sent an event stream.
const TOO_LATE_FOR_PLAIN_JSON: Duration = Duration::from_millis(400);

#[test]
fn junk_and_long_lines_affect_no_session() {
    let setup = Setup::new(Wire::Stdio, &[], &["--junk-stdout"]);
    let clients = setup.everyone();
    let slow = clients[0].send_call("sleep_readonly", &json!({"ms": 1000}));
    for client in &clients {
        let n = 10_000_000;
        assert_eq!(client.text("bytes", &json!({"n": n})).len(), n, "{:?}", client.sdk);
    }
    assert_eq!(slow.text(), "slept 1000 ms");
    setup.assert_clean(&clients);
}

/// Python 2.x refuses events above 1 MiB.
#[test]
fn large_answers_that_take_long_reach_python_clients() {
    let setup = Setup::new(Wire::Stdio, &["--quiet-restart"], &[]);
    let clients = [Sdk::Py1, Sdk::Py2].map(|sdk| setup.client(sdk));
    setup.take_down();
    let n = 3 << 20;
    let held = clients.each_ref().map(|client| client.send_call("bytes", &json!({"n": n})));
    std::thread::sleep(TOO_LATE_FOR_PLAIN_JSON);
    setup.let_up();
    for call in &held {
        assert_eq!(call.text().len(), n);
    }
    setup.assert_clean(&clients);
}

#[test]
fn a_line_over_the_limit_fails_one_call() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let client = setup.client(Sdk::Ts1);
    let huge = client.send_call("bytes", &json!({"n": 17 << 20}));
    match huge.end() {
        End::Result(result) => assert_eq!(result["isError"], true),
        End::Error { message, .. } => assert!(message.contains("16 MiB"), "{message}"),
    }
    assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
    assert_eq!(setup.server()["generation"], 1, "the server did no wrong");
    setup.assert_clean(&[client]);
}

#[test]
fn a_client_that_does_not_read_blocks_no_other() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let deaf = setup.raw();
    let unread: Vec<_> =
        (0..8).map(|id| deaf.post(BOTH, &call(id, "bytes", &json!({"n": 4_000_000})))).collect();
    let client = setup.client(Sdk::Rust);
    for n in 0..50 {
        let text = n.to_string();
        assert_eq!(client.text("echo", &json!({"text": text})), text);
    }
    for response in unread {
        let answer = response.answer();
        assert_eq!(answer["result"]["content"][0]["text"].as_str().unwrap().len(), 4_000_000);
    }
}
