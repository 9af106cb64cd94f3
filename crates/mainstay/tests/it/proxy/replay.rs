//! Requests in flight when the server dies: which are sent again, and which never.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::client::{Client, Sdk, Ticket, text_of};
use super::raw::{BOTH, JSON, call};
use super::setup::{NAME, QUICK, Setup, Wire, test_env};
use crate::env::{kill, pid_of};

#[test]
fn a_read_only_call_is_sent_again_once() {
    replay_reads(Wire::Stdio);
}

#[test]
fn a_read_only_call_is_sent_again_once_over_http() {
    replay_reads(Wire::Http);
}

fn replay_reads(wire: Wire) {
    let env = test_env();
    let count = env.work().join("count");
    let setup = Setup::in_env(env, wire, &[], &["--count-file", count.to_str().unwrap()]);
    let executed = setup.file("count");
    let clients = setup.everyone();
    let calls: Vec<_> = clients
        .iter()
        .map(|client| client.send_call("sleep_readonly", &json!({"ms": 1500})))
        .collect();
    executed.until(clients.len());
    setup.kill();
    for call in &calls {
        assert_eq!(call.text(), "slept 1500 ms");
    }
    assert_eq!(executed.read().len(), 2 * clients.len(), "each was executed twice");
    setup.assert_clean(&clients);
    told_in(&setup, "replay");
}

#[test]
fn a_call_that_may_have_had_an_effect_is_never_sent_again() {
    never_twice(Wire::Stdio);
}

#[test]
fn a_call_that_may_have_had_an_effect_is_never_sent_again_over_http() {
    never_twice(Wire::Http);
}

fn never_twice(wire: Wire) {
    let setup = Setup::new(wire, &[], &[]);
    let file = setup.file("effects");
    let clients = setup.everyone();
    let calls: Vec<_> = clients
        .iter()
        .map(|client| {
            let line = format!("{:?}", client.sdk);
            let arguments = json!({"path": file.path(), "line": line, "ms": 60_000});
            client.send_call("append", &arguments)
        })
        .collect();
    file.until(clients.len());
    setup.kill();
    for call in &calls {
        assert_unknown(call, wire);
    }
    setup.back(2);
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
    }
    assert_eq!(file.read().len(), clients.len(), "nothing was executed twice");
    setup.assert_clean(&clients);
    told_in(&setup, "unknown");
}

#[test]
fn calls_that_the_server_has_never_read_are_executed_by_the_next_run() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let clients = setup.everyone();
    kill(pid_of(&setup.server()), Signal::STOP);
    append_once(&setup, &clients, || setup.kill());
}

#[test]
fn a_call_that_the_user_named_safe_is_sent_again() {
    let setup = Setup::new(Wire::Stdio, &["--replay", "append"], &[]);
    let file = setup.file("effects");
    let client = setup.client(Sdk::Ts1);
    let arguments = json!({"path": file.path(), "line": "again", "ms": 1000});
    let call = client.send_call("append", &arguments);
    file.until(1);
    setup.kill();
    assert_eq!(call.text(), "appended");
    assert_eq!(file.read(), ["again", "again"]);
    setup.assert_clean(&[client]);
}

/// Each client appends a line while the server executes nothing. After that, each line is there once.
#[track_caller]
fn append_once(setup: &Setup, clients: &[Client], go_on: impl FnOnce()) {
    let file = setup.file("effects");
    let calls: Vec<_> = clients
        .iter()
        .map(|client| {
            let line = format!("{:?}", client.sdk);
            client.send_call("append", &json!({"path": file.path(), "line": line}))
        })
        .collect();
    clients.iter().for_each(Client::call_has_begun);
    go_on();
    for call in &calls {
        assert_eq!(call.text(), "appended");
    }
    let mut lines = file.read();
    lines.sort();
    assert_eq!(lines, ["Py1", "Py2", "Rust", "Ts1", "Ts2"]);
    setup.assert_clean(clients);
}

#[test]
fn queued_calls_are_executed_once() {
    for wire in Wire::ALL {
        let setup = Setup::new(wire, &[], &[]);
        let clients = setup.everyone();
        setup.take_down();
        append_once(&setup, &clients, || setup.let_up());
    }
}

#[test]
fn twenty_requests_of_each_client_during_a_kill_are_all_answered() {
    let env = test_env();
    let count = env.work().join("count");
    let setup = Setup::in_env(env, Wire::Stdio, &[], &["--count-file", count.to_str().unwrap()]);
    let executed = setup.file("count");
    let clients = setup.everyone();
    let uri = json!({"uri": "fixture://numbers/42"});
    let sent: Vec<_> = clients
        .iter()
        .flat_map(|client| {
            let sleep = |ms| client.send_call("sleep_readonly", &json!({"ms": ms}));
            let ask = |method| client.send(method, &json!({}));
            let sleeps = (0..5).map(|n| sleep(500 + n)).collect();
            let tools = (0..5).map(|_| ask("tools/list")).collect();
            let prompts = (0..5).map(|_| ask("prompts/list")).collect();
            let reads = (0..5).map(|_| client.send("resources/read", &uri)).collect();
            [("content", sleeps), ("tools", tools), ("prompts", prompts), ("contents", reads)]
        })
        .collect::<Vec<(&str, Vec<Ticket<'_>>)>>();
    executed.until(1);
    setup.kill();
    for (key, tickets) in &sent {
        for ticket in tickets {
            let result = ticket.result();
            assert!(result[key].as_array().is_some_and(|items| !items.is_empty()), "{result}");
            assert_ne!(result["isError"], true, "{result}");
        }
    }
    setup.assert_clean(&clients);
}

#[test]
fn progress_never_decreases() {
    let options = [&QUICK[..], &["--restart-max", "100"]].concat();
    let setup = Setup::new(Wire::Stdio, &options, &[]);
    let clients = setup.everyone();
    for client in &clients {
        let once = setup.file(&format!("{:?}", client.sdk));
        let steps = json!({"steps": 8, "die_at": 5, "ms": 20, "once": once.path()});
        let call = client.send_call("progress_die", &steps);
        assert_eq!(call.text(), "8 steps");
        let progress = call.progress();
        assert!(progress.is_sorted_by(|a, b| a < b), "{:?}: {progress:?}", client.sdk);
        assert!(progress.contains(&5.0), "{:?}: {progress:?}", client.sdk);
    }
    setup.assert_clean(&clients);
}

#[test]
fn a_call_that_kills_the_server_each_time_is_given_up() {
    let env = test_env();
    let count = env.work().join("count");
    let flags = ["--count-file", count.to_str().unwrap()];
    let setup = Setup::in_env(env, Wire::Stdio, &QUICK, &flags);
    let poisoner = setup.client(Sdk::Ts2);
    let bystander = setup.client(Sdk::Py1);
    let poison = poisoner.call("progress_die", &json!({"steps": 2, "die_at": 1}));
    assert_eq!(poison["isError"], true, "{poison}");
    assert_eq!(bystander.text("echo", &json!({"text": "fine"})), "fine");
    assert_eq!(poisoner.text("echo", &json!({"text": "fine"})), "fine");
    let executed = setup.file("count").read();
    let deadly = executed.iter().filter(|tool| *tool == "progress_die").count();
    assert_eq!(deadly, 2, "{executed:?}");
    setup.assert_clean(&[poisoner, bystander]);
}

#[test]
fn a_server_that_dies_of_a_call_answers_it_with_its_exit_code() {
    for wire in Wire::ALL {
        let setup = Setup::new(wire, &QUICK, &[]);
        let client = setup.client(Sdk::Py2);
        let end = client.call("die", &json!({"code": 7}));
        assert_eq!(end["isError"], true, "{end}");
        let reported = text_of(&end, 0);
        assert!(
            reported.contains("effect is unknown") && reported.contains("exited 7"),
            "{reported}"
        );
        setup.back(2);
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
        setup.assert_clean(&[client]);
    }
}

#[test]
fn calls_of_a_disconnected_client_are_not_executed() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let file = setup.file("effects");
    let append = |line: &str| json!({"path": file.path(), "line": line});
    let cancels = [Sdk::Ts1, Sdk::Ts2, Sdk::Rust].map(|sdk| setup.client(sdk));
    let (deletes, leaves, stays) = (setup.raw(), setup.raw(), setup.raw());
    setup.take_down();
    for client in &cancels {
        let call = client.send_call("append", &append("cancelled"));
        client.cancel(&call);
        call.end();
    }
    let unheard = deletes.post(BOTH, &call(1, "append", &append("session ended")));
    assert!(matches!(deletes.delete(), 200 | 204));
    let unread = leaves.post(JSON, &call(1, "append", &append("connection closed")));
    drop(unread);
    let stayed = stays.post(BOTH, &call(1, "append", &append("stayed")));
    setup.let_up();
    assert_eq!(text_of(&stayed.answer()["result"], 0), "appended");
    stays.ask(2, "tools/call", &json!({"name": "echo", "arguments": {"text": "x"}}));
    assert_eq!(file.read(), ["stayed"]);
    drop(unheard);
}

#[test]
fn a_cancellation_reaches_the_server() {
    let env = test_env();
    let record = env.work().join("record");
    let setup = Setup::in_env(env, Wire::Stdio, &[], &["--record", record.to_str().unwrap()]);
    let received = setup.file("record");
    for sdk in [Sdk::Ts1, Sdk::Ts2, Sdk::Py2, Sdk::Rust] {
        let client = setup.client(sdk);
        let before = received.read().len();
        let call = client.send_call("sleep_readonly", &json!({"ms": 60_000}));
        let number = received.message(before, "tools/call")["id"].clone();
        client.cancel(&call);
        let notice = received.message(before, "notifications/cancelled");
        assert_eq!(notice["params"]["requestId"], number, "{sdk:?}");
        call.end();
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
    }
}

/// Asserts the answer to a call whose effect is unknown.
fn assert_unknown(call: &Ticket<'_>, wire: Wire) {
    let result = call.result();
    assert_eq!(result["isError"], true, "{result}");
    let reported = text_of(&result, 0);
    assert!(reported.contains("effect is unknown"), "{reported}");
    // The end of an HTTP server may be noticed after its connection broke, later than a call waits for that.
    let is_late = wire == Wire::Http && reported.contains("the connection to it broke");
    assert!(reported.contains("SIGKILL") || is_late, "{reported}");
}

/// Asserts that both `events` and `why` report the decision.
fn told_in(setup: &Setup, word: &str) {
    let events = setup.env.events(NAME);
    let tells = |event: &Value| event.to_string().contains(word);
    assert!(events.iter().any(tells), "no event contains `{word}`: {events:#?}");
    let why = setup.env.ok(["why", NAME]);
    assert!(why.contains(word), "`{word}` is missing in:\n{why}");
}
