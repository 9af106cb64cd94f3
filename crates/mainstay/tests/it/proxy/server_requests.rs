//! Requests of the server to the client: sampling, elicitation, roots, subscriptions, log levels.

use serde_json::{Value, json};

use super::client::{Client, Sdk, is, text_of};
use super::setup::{Lines, QUICK, Setup, Wire, test_env};

const UPDATED: &str = "notifications/resources/updated";
const LOGGED: &str = "notifications/message";
const GREETING: &str = "fixture://greeting";
const NUMBER: &str = "fixture://numbers/7";

#[test]
fn server_requests_are_answered() {
    ask(Wire::Stdio);
}

#[test]
fn server_requests_are_answered_over_http() {
    ask(Wire::Http);
}

fn ask(wire: Wire) {
    let setup = Setup::new(wire, &[], &[]);
    let clients = setup.everyone();
    for client in &clients {
        prepare(client);
        check_questions(client);
    }
    setup.restart();
    for client in &clients {
        check_questions(client);
    }
    setup.assert_clean(&clients);
}

fn prepare(client: &Client) {
    let name = format!("{:?}", client.sdk);
    let content = json!({"type": "text", "text": format!("sampled by {name}")});
    let sampled = json!({"role": "assistant", "model": "m", "content": content});
    client.will_answer("sampling/createMessage", &sampled);
    let elicited = json!({"action": "accept", "content": {"name": name}});
    client.will_answer("elicitation/create", &elicited);
    let root = json!({"uri": format!("file:///{name}"), "name": name});
    client.will_answer("roots/list", &json!({"roots": [root]}));
}

fn check_questions(client: &Client) {
    let sdk = client.sdk;
    let sampled = client.text("sample", &json!({"prompt": "say it"}));
    assert!(sampled.contains(&format!("sampled by {sdk:?}")), "{sampled}");
    let elicited = client.text("elicit", &json!({"message": "who?"}));
    assert!(elicited.contains("accept") && elicited.contains(&format!("{sdk:?}")), "{elicited}");
    let roots = client.text("roots", &json!({}));
    assert!(roots.contains(&format!("file:///{sdk:?}")), "{roots}");
}

#[test]
fn a_request_of_a_dead_server_is_cancelled() {
    withdraw(Wire::Stdio);
}

#[test]
fn a_request_of_a_dead_server_is_cancelled_over_http() {
    withdraw(Wire::Http);
}

fn withdraw(wire: Wire) {
    let env = test_env();
    let record = env.work().join("record");
    let options = [&QUICK[..], &["--restart-max", "100"]].concat();
    let setup = Setup::in_env(env, wire, &options, &["--record", record.to_str().unwrap()]);
    let received = setup.file("record");
    let clients = setup.everyone();
    for client in &clients {
        let call = client.send_call("elicit", &json!({"message": "who?"}));
        let question = client.asked("elicitation/create");
        setup.restart();
        let late = json!({"action": "accept", "content": {"name": "too late"}});
        if client.sdk == Sdk::Py1 {
            // It gets no other message while its user thinks.
            client.answer(&question, &late);
        } else {
            client.event("a withdrawal", |reported| is(reported, "withdrawn"));
        }
        let result = call.result();
        assert_eq!(result["isError"], true, "{:?}: {result}", client.sdk);
        assert!(text_of(&result, 0).contains("effect is unknown"), "{result}");
        if client.sdk != Sdk::Py1 {
            client.answer(&question, &late);
        }
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
    }
    let answered = received.read().iter().any(|line| line.contains("too late"));
    assert!(!answered, "an answer never reaches a run that did not ask");
    setup.assert_clean(&clients);
}

#[test]
fn level_subscriptions_and_roots_are_restored() {
    restore(Wire::Stdio);
}

#[test]
fn level_subscriptions_and_roots_are_restored_over_http() {
    restore(Wire::Http);
}

fn restore(wire: Wire) {
    let env = test_env();
    let record = env.work().join("record");
    let setup = Setup::in_env(env, wire, &[], &["--record", record.to_str().unwrap()]);
    let received = setup.file("record");
    let clients = setup.everyone();
    for client in &clients {
        prepare(client);
        client.ask("logging/setLevel", &json!({"level": "debug"}));
        for uri in [GREETING, NUMBER] {
            client.ask("resources/subscribe", &json!({"uri": uri}));
        }
        assert_eq!(updates(client), [""; 0], "{:?}", client.sdk);
    }
    let before = received.read().len();
    setup.restart();
    for client in &clients {
        for uri in [GREETING, NUMBER] {
            client.event(uri, |reported| {
                reported["method"] == UPDATED && reported["params"]["uri"] == uri
            });
        }
        let level = json!({"level": "debug", "text": format!("for {:?}", client.sdk)});
        assert_eq!(client.text("log", &level), "logged");
        let data = level["text"].as_str().unwrap();
        client.event(data, |reported| {
            reported["method"] == LOGGED && reported["params"]["data"].to_string().contains(data)
        });
        let roots = client.text("roots", &json!({}));
        assert!(roots.contains(&format!("file:///{:?}", client.sdk)), "{roots}");
        client.text("touch", &json!({"uri": NUMBER}));
    }
    check_handshake(&received, before);
    setup.assert_clean(&clients);
}

/// Asserts that a new run got everything it needs, in order.
fn check_handshake(received: &Lines, before: usize) {
    let lines = received.read();
    let messages: Vec<Value> =
        lines.iter().skip(before).map(|line| serde_json::from_str(line).unwrap()).collect();
    let place = |is_so: &dyn Fn(&Value) -> bool| {
        let place = messages.iter().position(is_so);
        place.unwrap_or_else(|| panic!("something is missing in {messages:#?}"))
    };
    let initialize = place(&|message| message["method"] == "initialize");
    let initialized = place(&|message| message["method"] == "notifications/initialized");
    let level = place(&|message| {
        message["method"] == "logging/setLevel" && message["params"]["level"] == "debug"
    });
    let subscribed = |uri: &str| {
        place(&|message| {
            message["method"] == "resources/subscribe" && message["params"]["uri"] == uri
        })
    };
    let (greeting, number) = (subscribed(GREETING), subscribed(NUMBER));
    assert_eq!(initialize, 0, "{messages:#?}");
    for later in [level, greeting, number] {
        assert!(initialize < initialized && initialized < later, "{messages:#?}");
    }
}

fn updates(client: &Client) -> Vec<String> {
    let updates = client.notifications(UPDATED);
    updates.iter().map(|update| update["params"]["uri"].as_str().unwrap().to_owned()).collect()
}
