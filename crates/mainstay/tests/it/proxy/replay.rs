//! Requests that are under way when the server dies: which are sent again, and which never.

use serde_json::{Value, json};

use super::client::{Client, Sdk, Ticket, text_of};
use super::raw::{BOTH, JSON, call};
use super::scene::{NAME, QUICK, Scene, Wire, stage};

#[test]
fn a_read_only_call_is_sent_again_once() {
    replay_reads(Wire::Stdio);
}

#[test]
fn a_read_only_call_is_sent_again_once_over_http() {
    replay_reads(Wire::Http);
}

fn replay_reads(wire: Wire) {
    let env = stage();
    let count = env.work().join("count");
    let scene = Scene::in_env(env, wire, &[], &["--count-file", count.to_str().unwrap()]);
    let executed = scene.file("count");
    let clients = scene.everyone();
    let calls: Vec<_> = clients
        .iter()
        .map(|client| client.send_call("sleep_readonly", &json!({"ms": 1500})))
        .collect();
    executed.until(clients.len());
    scene.kill();
    for call in &calls {
        assert_eq!(call.text(), "slept 1500 ms");
    }
    assert_eq!(executed.read().len(), 2 * clients.len(), "each was executed twice");
    scene.assert_clean(&clients);
    told_in(&scene, "replay");
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
    let scene = Scene::new(wire, &[], &[]);
    let file = scene.file("effects");
    let clients = scene.everyone();
    let calls: Vec<_> = clients
        .iter()
        .map(|client| {
            let line = format!("{:?}", client.sdk);
            let arguments = json!({"path": file.path(), "line": line, "ms": 60_000});
            client.send_call("append", &arguments)
        })
        .collect();
    file.until(clients.len());
    scene.kill();
    for call in &calls {
        assert_unknown(call, wire);
    }
    scene.back(2);
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
    }
    assert_eq!(file.read().len(), clients.len(), "nothing was executed twice");
    scene.assert_clean(&clients);
    told_in(&scene, "unknown");
}

#[test]
fn a_call_that_the_user_named_safe_is_sent_again() {
    let scene = Scene::new(Wire::Stdio, &["--replay", "append"], &[]);
    let file = scene.file("effects");
    let client = scene.client(Sdk::Ts1);
    let arguments = json!({"path": file.path(), "line": "again", "ms": 1000});
    let call = client.send_call("append", &arguments);
    file.until(1);
    scene.kill();
    assert_eq!(call.text(), "appended");
    assert_eq!(file.read(), ["again", "again"]);
    scene.assert_clean(&[client]);
}

#[test]
fn what_was_queued_is_executed_once() {
    for wire in Wire::ALL {
        let scene = Scene::new(wire, &[], &[]);
        let file = scene.file("effects");
        let clients = scene.everyone();
        scene.take_down();
        let calls: Vec<_> = clients
            .iter()
            .map(|client| {
                let line = format!("{:?}", client.sdk);
                client.send_call("append", &json!({"path": file.path(), "line": line}))
            })
            .collect();
        clients.iter().for_each(Client::call_has_begun);
        scene.let_up();
        for call in &calls {
            assert_eq!(call.text(), "appended");
        }
        let mut lines = file.read();
        lines.sort();
        assert_eq!(lines, ["Py1", "Py2", "Rust", "Ts1", "Ts2"]);
        scene.assert_clean(&clients);
    }
}

#[test]
fn twenty_requests_of_each_client_during_a_kill_are_all_answered() {
    let env = stage();
    let count = env.work().join("count");
    let scene = Scene::in_env(env, Wire::Stdio, &[], &["--count-file", count.to_str().unwrap()]);
    let executed = scene.file("count");
    let clients = scene.everyone();
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
    scene.kill();
    for (key, tickets) in &sent {
        for ticket in tickets {
            let result = ticket.result();
            assert!(result[key].as_array().is_some_and(|items| !items.is_empty()), "{result}");
            assert_ne!(result["isError"], true, "{result}");
        }
    }
    scene.assert_clean(&clients);
}

#[test]
fn progress_never_falls_back() {
    let options = [&QUICK[..], &["--restart-max", "100"]].concat();
    let scene = Scene::new(Wire::Stdio, &options, &[]);
    let clients = scene.everyone();
    for client in &clients {
        let once = scene.file(&format!("{:?}", client.sdk));
        let steps = json!({"steps": 8, "die_at": 5, "ms": 20, "once": once.path()});
        let call = client.send_call("progress_die", &steps);
        assert_eq!(call.text(), "8 steps");
        let progress = call.progress();
        assert!(progress.is_sorted_by(|a, b| a < b), "{:?}: {progress:?}", client.sdk);
        assert!(progress.contains(&5.0), "{:?}: {progress:?}", client.sdk);
    }
    scene.assert_clean(&clients);
}

#[test]
fn a_call_that_kills_the_server_each_time_is_given_up() {
    let env = stage();
    let count = env.work().join("count");
    let flags = ["--count-file", count.to_str().unwrap()];
    let scene = Scene::in_env(env, Wire::Stdio, &QUICK, &flags);
    let poisoner = scene.client(Sdk::Ts2);
    let bystander = scene.client(Sdk::Py1);
    let poison = poisoner.call("progress_die", &json!({"steps": 2, "die_at": 1}));
    assert_eq!(poison["isError"], true, "{poison}");
    assert_eq!(bystander.text("echo", &json!({"text": "fine"})), "fine");
    assert_eq!(poisoner.text("echo", &json!({"text": "fine"})), "fine");
    let executed = scene.file("count").read();
    let deadly = executed.iter().filter(|tool| *tool == "progress_die").count();
    assert_eq!(deadly, 2, "{executed:?}");
    scene.assert_clean(&[poisoner, bystander]);
}

#[test]
fn a_server_that_dies_of_a_call_answers_it_with_its_exit_code() {
    for wire in Wire::ALL {
        let scene = Scene::new(wire, &QUICK, &[]);
        let client = scene.client(Sdk::Py2);
        let end = client.call("die", &json!({"code": 7}));
        assert_eq!(end["isError"], true, "{end}");
        let told = text_of(&end, 0);
        assert!(told.contains("effect is unknown") && told.contains("exited 7"), "{told}");
        scene.back(2);
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
        scene.assert_clean(&[client]);
    }
}

#[test]
fn nothing_is_run_for_a_client_that_has_gone() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let file = scene.file("effects");
    let append = |line: &str| json!({"path": file.path(), "line": line});
    let cancels = [Sdk::Ts1, Sdk::Ts2, Sdk::Rust].map(|sdk| scene.client(sdk));
    let (deletes, leaves, stays) = (scene.raw(), scene.raw(), scene.raw());
    scene.take_down();
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
    scene.let_up();
    assert_eq!(text_of(&stayed.answer()["result"], 0), "appended");
    stays.ask(2, "tools/call", &json!({"name": "echo", "arguments": {"text": "x"}}));
    assert_eq!(file.read(), ["stayed"]);
    drop(unheard);
}

#[test]
fn a_call_that_is_cancelled_is_cancelled_at_the_server() {
    let env = stage();
    let record = env.work().join("record");
    let scene = Scene::in_env(env, Wire::Stdio, &[], &["--record", record.to_str().unwrap()]);
    let heard = scene.file("record");
    for sdk in [Sdk::Ts1, Sdk::Ts2, Sdk::Py2, Sdk::Rust] {
        let client = scene.client(sdk);
        let before = heard.read().len();
        let call = client.send_call("sleep_readonly", &json!({"ms": 60_000}));
        let number = heard.message(before, "tools/call")["id"].clone();
        client.cancel(&call);
        let notice = heard.message(before, "notifications/cancelled");
        assert_eq!(notice["params"]["requestId"], number, "{sdk:?}");
        call.end();
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
    }
}

/// Asserts the honest answer to a call whose effect nobody knows.
fn assert_unknown(call: &Ticket<'_>, wire: Wire) {
    let result = call.result();
    assert_eq!(result["isError"], true, "{result}");
    let told = text_of(&result, 0);
    assert!(told.contains("effect is unknown"), "{told}");
    // The end of an HTTP server may be noticed after its connection broke, later than a call waits for that.
    let is_late = wire == Wire::Http && told.contains("the connection to it broke");
    assert!(told.contains("SIGKILL") || is_late, "{told}");
}

/// Asserts that both `events` and `why` tell what was decided.
fn told_in(scene: &Scene, word: &str) {
    let events = scene.env.events(NAME);
    let tells = |event: &Value| event.to_string().contains(word);
    assert!(events.iter().any(tells), "no event tells of `{word}`: {events:#?}");
    let why = scene.env.ok(["why", NAME]);
    assert!(why.contains(word), "`{word}` is missing in:\n{why}");
}
