//! Many sessions of one server: each receives its own messages only.

use serde_json::{Value, json};

use super::client::{Client, Sdk, Ticket, is};
use super::raw::Raw;
use super::setup::{NAME, QUICK, Setup, Wire};
use crate::env::{is_alive, until_dead};

const UPDATED: &str = "notifications/resources/updated";
const LOGGED: &str = "notifications/message";

/// Twins: they number their requests and progress tokens alike.
fn twins(setup: &Setup, sdk: Sdk) -> [Client; 2] {
    [setup.client(sdk), setup.client(sdk)]
}

#[test]
fn sessions_never_receive_messages_of_others() {
    apart(Wire::Stdio, Sdk::Ts1);
}

#[test]
fn sessions_never_receive_messages_of_others_over_http() {
    apart(Wire::Http, Sdk::Py2);
}

fn apart(wire: Wire, sdk: Sdk) {
    let setup = Setup::new(wire, &[], &[]);
    let pair = twins(&setup, sdk);
    hear_only_their_own(&pair, 1);
    setup.restart();
    hear_only_their_own(&pair, 2);
    setup.assert_clean(&pair);
}

fn hear_only_their_own([one, two]: &[Client; 2], round: u32) {
    let steps = [5, 9].map(|steps| json!({"steps": steps, "ms": 10}));
    let calls =
        [one.send_call("progress_die", &steps[0]), two.send_call("progress_die", &steps[1])];
    assert_eq!(calls.each_ref().map(Ticket::text), ["5 steps", "9 steps"]);
    for (call, steps) in calls.iter().zip([5.0, 9.0]) {
        let progress = call.progress();
        // The TypeScript SDK drops progress that comes together with the answer.
        assert!(progress.starts_with(&[1.0]) && progress.iter().all(|step| *step <= steps));
        assert!(progress.is_sorted_by(|a, b| a < b), "{progress:?}");
    }

    let [for_one, for_two, for_nobody] =
        ["one", "two", "nobody"].map(|whom| format!("for {whom} in round {round}"));
    one.ask("logging/setLevel", &json!({"level": "debug"}));
    two.ask("logging/setLevel", &json!({"level": "error"}));
    one.text("log", &json!({"level": "info", "text": for_one}));
    received(one, LOGGED, &for_one);
    two.text("log", &json!({"level": "info", "text": for_nobody}));
    two.text("log", &json!({"level": "error", "text": for_two}));
    received(two, LOGGED, &for_two);
    for secret in [&for_one, &for_nobody] {
        assert_eq!(about(two, secret), [Value::Null; 0]);
    }
    assert_eq!(about(one, &for_nobody), [Value::Null; 0]);

    let [of_one, of_two] = [1, 2].map(|whose| format!("fixture://numbers/{round}{whose}"));
    one.ask("resources/subscribe", &json!({"uri": of_one}));
    two.ask("resources/subscribe", &json!({"uri": of_two}));
    one.text("touch", &json!({"uri": of_two}));
    two.text("touch", &json!({"uri": of_one}));
    received(one, UPDATED, &of_one);
    received(two, UPDATED, &of_two);
    assert_eq!(about(one, &of_two), [Value::Null; 0]);
    assert_eq!(about(two, &of_one), [Value::Null; 0]);

    let message = format!("only one in round {round}");
    let question = one.send_call("elicit", &json!({"message": message}));
    let asked = one.event(&message, |reported| {
        is(reported, "asked") && reported["params"]["message"] == message
    });
    one.answer(&asked, &json!({"action": "decline"}));
    assert!(question.text().contains("decline"));
    assert_eq!(two.all(|reported| is(reported, "asked")), [Value::Null; 0]);
}

fn received(client: &Client, method: &str, text: &str) {
    client.event(text, |reported| {
        reported["method"] == method && reported["params"].to_string().contains(text)
    });
}

/// The notifications of a client that speak of this.
fn about(client: &Client, text: &str) -> Vec<Value> {
    client.all(|reported| {
        is(reported, "notification") && reported["params"].to_string().contains(text)
    })
}

#[test]
fn an_ambiguous_server_request_is_refused_with_advice() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let pair = twins(&setup, Sdk::Ts2);
    let busy = pair[1].send_call("sleep_readonly", &json!({"ms": 60_000}));
    // Its call is at the server before the other's, which goes the same way.
    pair[1].ask("resources/read", &json!({"uri": "fixture://greeting"}));
    let result = pair[0].call("elicit", &json!({"message": "who?"}));
    assert!(result.to_string().contains("--isolate"), "{result}");
    for client in &pair {
        assert_eq!(client.all(|reported| is(reported, "asked")), [Value::Null; 0]);
    }
    pair[1].cancel(&busy);
    setup.assert_clean(&pair);
}

#[test]
fn isolated_sessions_have_separate_runs() {
    let setup = Setup::new(Wire::Stdio, &[&["--isolate"], &QUICK[..]].concat(), &[]);
    let [one, two] = twins(&setup, Sdk::Ts1);
    let pids = [&one, &two].map(|client| client.text("pid", &json!({})).parse::<u32>().unwrap());
    assert_ne!(pids[0], pids[1]);
    one.text("remember", &json!({"key": "secret", "value": "of one"}));
    assert_eq!(one.text("recall", &json!({"key": "secret"})), "of one");
    assert_eq!(two.call("recall", &json!({"key": "secret"}))["isError"], true);
    let question = two.send_call("elicit", &json!({"message": "who?"}));
    let busy = one.send_call("sleep_readonly", &json!({"ms": 1}));
    let asked = two.asked("elicitation/create");
    two.answer(&asked, &json!({"action": "decline"}));
    assert!(question.text().contains("decline"));
    busy.text();

    crate::env::kill(pids[0], rustix::process::Signal::KILL);
    assert_eq!(two.text("pid", &json!({})), pids[1].to_string(), "the other continues");
    let next: u32 = one.text("pid", &json!({})).parse().unwrap();
    assert_ne!(next, pids[0]);
    one.assert_clean();
    one.close();
    assert!(is_alive(next), "it is kept for a minute");
    two.close();
    setup.env.ok(["stop", NAME]);
    until_dead(next);
    until_dead(pids[1]);
}

#[test]
fn the_newest_stream_wins() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let (session, other) = (setup.raw(), setup.raw());
    let uri = json!({"uri": "fixture://greeting"});
    session.ask(1, "resources/subscribe", &uri);
    let mut first = session.get(None);
    let mut second = session.get(None);
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(first.message(), None, "the older one ends, and cleanly");
    let touch = json!({"name": "touch", "arguments": uri});
    other.ask(1, "tools/call", &touch);
    let received = second.message().expect("the newer one continues");
    assert_eq!((&received["method"], &received["params"]["uri"]), (&json!(UPDATED), &uri["uri"]));

    drop(second);
    other.ask(2, "tools/call", &touch);
    let mut third = session.get(None);
    let received = third.message().expect("nothing is lost between two streams");
    assert_eq!(received["method"], UPDATED);
}

#[test]
fn thousands_of_idle_sessions_stay_usable() {
    const COUNT: usize = 2_000;
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let sessions: Vec<Raw> = (0..COUNT).map(|_| setup.raw()).collect();
    assert_eq!(setup.server()["sessions"], COUNT);
    setup.restart();
    for (n, session) in sessions.iter().enumerate() {
        let text = n.to_string();
        let echo = json!({"name": "echo", "arguments": {"text": text}});
        let result = session.ask(1, "tools/call", &echo);
        assert_eq!(result["content"][0]["text"], text);
    }
    let left = sessions.iter().take(10);
    left.for_each(|session| assert!(matches!(session.delete(), 200 | 204)));
    setup.env.once(NAME, "was left by ten", |server| server["sessions"] == COUNT - 10);
}
