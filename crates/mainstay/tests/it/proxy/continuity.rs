//! Sessions that survive while their server dies, is down, or loses them.

use serde_json::{Value, json};

use super::client::{Client, Sdk, is, text_of};
use super::raw::{BOTH, JSON, call};
use super::setup::{BEHIND_A_BAR, NAME, QUICK, Setup, Wire, bar, test_env};
use super::without_mainstay::Listening;
use crate::env::fixture;

#[test]
fn an_idle_session_survives_a_kill() {
    survive(Wire::Stdio);
}

#[test]
fn an_idle_session_survives_a_kill_over_http() {
    survive(Wire::Http);
}

fn survive(wire: Wire) {
    let setup = Setup::new(wire, &[], &[]);
    let clients = setup.everyone();
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "before"})), "before");
    }
    setup.restart();
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "after"})), "after");
        assert!(client.tools().contains(&"echo".to_owned()));
        let read = client.ask("resources/read", &json!({"uri": "fixture://greeting"}));
        assert_eq!(read["contents"][0]["text"], "hello from the fixture");
    }
    setup.assert_clean(&clients);
    clients.into_iter().for_each(Client::close);
    setup.env.once(NAME, "was left by all", |server| server["sessions"] == 0);
}

#[test]
fn a_call_while_the_server_is_down_is_held() {
    hold(Wire::Stdio);
}

#[test]
fn a_call_while_the_server_is_down_is_held_over_http() {
    hold(Wire::Http);
}

fn hold(wire: Wire) {
    let setup = Setup::new(wire, &[], &[]);
    let clients = setup.everyone();
    setup.take_down();
    let held: Vec<_> =
        clients.iter().map(|client| client.send_call("echo", &json!({"text": "held"}))).collect();
    let listed: Vec<_> =
        clients.iter().map(|client| client.send("tools/list", &json!({}))).collect();
    for ticket in &listed {
        assert!(ticket.result()["tools"].is_array());
    }
    clients.iter().for_each(Client::call_has_begun);
    // The lists came from the last good copies, and heads do not wait for the server.
    setup.let_up();
    for ticket in &held {
        assert_eq!(ticket.text(), "held");
    }
    setup.assert_clean(&clients);
}

#[test]
fn a_held_call_becomes_a_stream_and_can_be_resumed() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    setup.take_down();
    let mut held = session.post(BOTH, &call(7, "echo", &json!({"text": "held"})));
    assert_eq!(held.status, 200);
    assert!(held.header("content-type").unwrap().starts_with("text/event-stream"));
    let first = held.event().expect("a first event");
    assert_eq!((&*first.data, first.retry), ("", Some(1000)));
    let id = first.id.expect("an id to resume from");
    drop(held);

    let mut resumed = session.get(Some(&id));
    assert_eq!(resumed.status, 200);
    setup.let_up();
    let answer = resumed.message().expect("the answer");
    assert_eq!((&answer["id"], text_of(&answer["result"], 0)), (&json!(7), "held".to_owned()));
    assert_eq!(resumed.message(), None, "the stream ends with its answer");

    let other_program = setup.raw();
    let uri = json!({"uri": "fixture://greeting"});
    other_program.ask(1, "resources/subscribe", &uri);
    let mut other = other_program.get(Some(&id));
    session.ask(8, "tools/call", &json!({"name": "touch", "arguments": uri}));
    let received = if other.status == 200 { other.message() } else { None };
    let received = received.unwrap_or_default().to_string();
    assert!(!received.contains("held"), "another session's event replays nothing: {received}");
}

/// As TypeScript clients do when the stream of a call that they have cancelled ends.
#[test]
fn a_cancelled_call_that_is_resumed_has_no_answer() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    let mut slow = session.post(BOTH, &call(7, "sleep", &json!({"ms": 60_000})));
    let id = slow.event().and_then(|event| event.id).expect("an id to resume from");
    let method = "notifications/cancelled";
    let cancel = json!({"jsonrpc": "2.0", "method": method, "params": {"requestId": 7}});
    assert_eq!(session.post(BOTH, &cancel).status, 202);
    assert_eq!(slow.message(), None, "the stream ends");
    assert_eq!(session.get(Some(&id)).status, 405);
}

#[test]
fn a_client_that_wants_json_gets_json_however_long_it_takes() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    setup.take_down();
    let held = session.post(JSON, &call(7, "echo", &json!({"text": "held"})));
    assert_eq!((held.status, held.header("content-type")), (200, Some(JSON)));
    setup.let_up();
    let answer = held.answer();
    assert_eq!((&answer["id"], text_of(&answer["result"], 0)), (&json!(7), "held".to_owned()));
}

#[test]
fn a_silent_stream_is_kept_alive() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    let mut slow = session.post(BOTH, &call(7, "sleep_readonly", &json!({"ms": 10_500})));
    let first = slow.event().expect("a first event");
    assert_eq!((&*first.data, first.comments), ("", 0));
    let answer = slow.event().expect("an answer");
    assert!(answer.comments >= 1, "a comment came before {answer:?}");
    assert!(answer.data.contains("slept 10500 ms"), "{answer:?}");
}

#[test]
fn the_first_result_after_a_restart_has_a_note() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let clients = setup.everyone();
    let say = json!({"text": "hello"});
    let notes =
        |client: &Client| client.call("echo", &say)["content"].as_array().unwrap().len() - 1;
    for client in &clients {
        assert_eq!(notes(client), 0, "{:?}: nothing has happened yet", client.sdk);
    }
    setup.restart();
    for client in &clients {
        let result = client.call("echo", &say);
        assert_eq!(text_of(&result, 0), "hello");
        let note = text_of(&result, 1);
        for part in ["restarted", "lost", "SIGKILL"] {
            assert!(note.contains(part), "{part} is missing in: {note}");
        }
        assert_eq!(notes(client), 0, "{:?}: it is reported once", client.sdk);
    }
    let late = setup.client(Sdk::Rust);
    assert_eq!(notes(&late), 0, "a session that began after the restart has lost nothing");
}

#[test]
fn a_quiet_restart_is_not_mentioned() {
    let setup = Setup::new(Wire::Stdio, &["--quiet-restart"], &[]);
    let client = setup.client(Sdk::Ts1);
    client.text("remember", &json!({"key": "k", "value": "v"}));
    setup.restart();
    let result = client.call("echo", &json!({"text": "hello"}));
    assert_eq!(result["content"].as_array().unwrap().len(), 1, "{result}");
}

#[test]
fn clients_survive_a_server_that_loses_its_sessions() {
    for how in ["404", "400", "401", "-32001", "-32600", "not-initialized"] {
        let forget = ["--forget-session-after", "4", "--forget-as", how];
        let setup = Setup::new(Wire::Http, &[], &forget);
        let client = setup.client(Sdk::Ts1);
        for count in 1..=8 {
            // A call that meets a lost session was not looked at, so none is left out or made twice.
            assert_eq!(client.text("count", &json!({})), count.to_string(), "{how}");
        }
        setup.assert_clean(&[client]);
        assert_eq!(setup.server()["generation"], 1, "{how}");
    }
}

#[test]
fn sessions_lost_by_a_server_are_opened_again() {
    let forget = ["--forget-session-after", "4", "--forget-as", "400"];
    let setup = Setup::new(Wire::Http, &[], &forget);
    let clients = setup.everyone();
    for round in 0..4 {
        for client in &clients {
            assert_eq!(client.text("echo", &json!({"text": "x"})), "x", "round {round}");
        }
    }
    setup.assert_clean(&clients);
}

#[test]
fn calls_to_a_failed_server_get_an_error_until_it_is_repaired() {
    let env = test_env();
    let script =
        format!("test ! -e broken || exec sh -c 'echo no licence >&2; exit 3'; exec {}", fixture());
    let options = [&["--restart-max", "2"], &QUICK[..]].concat();
    let setup = Setup::run(env, &options, &["sh", "-c", &script]);
    let clients = setup.everyone();
    setup.env.write("broken", "");
    setup.kill();
    setup.env.once(NAME, "gave up", |server| server["status"] == "error");
    for client in &clients {
        let reported = refused(client);
        for part in ["gave up after 2 restarts", "exited 3", "no licence"] {
            assert!(reported.contains(part), "{:?}: {part} is missing in: {reported}", client.sdk);
        }
        assert!(client.tools().contains(&"echo".to_owned()), "lists are still there");
        client.ask("ping", &json!({}));
    }
    std::fs::remove_file(setup.env.work().join("broken")).unwrap();
    setup.env.ok(["restart", NAME]);
    setup.back(setup.server()["generation"].as_u64().unwrap());
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "repaired"})), "repaired");
    }
    setup.assert_clean(&clients);
}

#[test]
fn a_stopped_server_answers_at_once_and_a_start_is_enough() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let clients = setup.everyone();
    setup.env.ok(["stop", NAME]);
    for client in &clients {
        let reported = refused(client);
        assert!(reported.contains("stopped"), "{:?}: {reported}", client.sdk);
    }
    setup.env.ok(["start", NAME]);
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "started"})), "started");
    }
    setup.assert_clean(&clients);
}

#[test]
fn an_attempt_beyond_the_hold_is_not_waited_for() {
    let slow = ["--restart-initial", "1h", "--restart-cap", "1h"];
    let setup = Setup::new(Wire::Stdio, &slow, &[]);
    let client = setup.client(Sdk::Py1);
    setup.restart();
    setup.kill();
    setup.env.once(NAME, "waited", |server| server["next_restart_at"].is_string());
    let reported = refused(&client);
    assert!(reported.contains("killed by SIGKILL") && reported.contains("1 h"), "{reported}");
    setup.env.ok(["restart", NAME]);
    assert_eq!(client.text("echo", &json!({"text": "back"})), "back");
    setup.assert_clean(&[client]);
}

#[test]
fn no_call_is_held_longer_than_the_limit() {
    let setup = Setup::new(Wire::Stdio, &["--hold", "1s"], &[]);
    let clients = setup.everyone();
    setup.take_down();
    let calls: Vec<_> =
        clients.iter().map(|client| client.send_call("echo", &json!({"text": "late"}))).collect();
    for call in &calls {
        let result = call.result();
        assert_eq!(result["isError"], true, "{result}");
        assert!(text_of(&result, 0).contains("within 1 s"), "{result}");
    }
    setup.let_up();
    setup.back(2);
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "back"})), "back");
    }
    setup.assert_clean(&clients);
}

#[test]
fn a_client_can_connect_while_the_server_is_down() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    setup.take_down();
    let clients = setup.everyone();
    for client in &clients {
        assert!(client.tools().contains(&"echo".to_owned()), "{:?}", client.sdk);
    }
    setup.let_up();
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "up"})), "up");
    }
    setup.assert_clean(&clients);
}

#[test]
fn a_client_can_connect_before_the_first_start() {
    let env = test_env();
    bar(&env);
    env.ok([&["run", NAME, "--"], &BEHIND_A_BAR[..], &[&fixture()]].concat());
    let setup = Setup::of(env);
    let clients = Sdk::ALL.map(|sdk| Client::start(&setup.env, sdk, &setup.url));
    setup.let_up();
    for client in clients.map(Client::connected) {
        assert_eq!(client.text("echo", &json!({"text": "up"})), "up");
        client.close();
    }
}

#[test]
fn a_remote_server_may_be_unreachable_for_a_while() {
    let listening = Listening::start("127.0.0.1:0");
    let address = listening.address.clone();
    let env = test_env();
    env.ok(["run", NAME, "--wait", "--url", &format!("http://{address}/mcp")]);
    let setup = Setup::of(env);
    let clients = setup.everyone();
    for client in &clients {
        assert_eq!(client.text("echo", &json!({"text": "there"})), "there");
    }
    drop(listening);
    let held: Vec<_> =
        clients.iter().map(|client| client.send_call("echo", &json!({"text": "held"}))).collect();
    for client in &clients {
        assert!(client.tools().contains(&"echo".to_owned()), "{:?}", client.sdk);
    }
    let _again = Listening::start(&address);
    for call in &held {
        assert_eq!(call.text(), "held");
    }
    setup.assert_clean(&clients);
}

#[test]
fn calls_in_a_stream_of_kills_all_succeed() {
    let setup = Setup::new(Wire::Stdio, &QUICK, &[]);
    let client = setup.client(Sdk::Ts2);
    for round in 0..5 {
        let calls: Vec<_> = (0..40)
            .map(|n| (n, client.send_call("echo", &json!({"text": format!("{round}-{n}")}))))
            .collect();
        setup.kill();
        for (n, call) in calls {
            assert_eq!(call.text(), format!("{round}-{n}"));
        }
        setup.back(round + 2);
    }
    setup.assert_clean(&[client]);
}

/// Calls a tool that cannot be reached, and returns the error that the client gets.
fn refused(client: &Client) -> String {
    let result = client.call("echo", &json!({"text": "anybody?"}));
    assert_eq!(result["isError"], true, "{:?}: {result}", client.sdk);
    assert_eq!(client.all(|reported| is(reported, "trouble")), [Value::Null; 0]);
    text_of(&result, 0)
}
