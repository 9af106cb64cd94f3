//! Lists of a server, and the notifications of clients when a restart changes them.

use std::fs;

use serde_json::{Value, json};

use super::client::{Client, Sdk, names, text_of};
use super::setup::{QUICK, Setup, Wire, test_env};

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

#[test]
fn only_a_real_change_is_announced_and_a_vanished_tool_is_explained() {
    change(Wire::Stdio);
}

#[test]
fn only_a_real_change_is_announced_and_a_vanished_tool_is_explained_over_http() {
    change(Wire::Http);
}

fn change(wire: Wire) {
    let env = test_env();
    let offered = env.write("offered", "old\n");
    let flags = ["--tools-file", offered.to_str().unwrap()];
    let setup = Setup::in_env(env, wire, &QUICK, &flags);
    let clients = setup.everyone();
    for client in &clients {
        let reported = &client.capabilities()["tools"]["listChanged"];
        assert_eq!(reported, true, "{:?}: it is always announced", client.sdk);
        assert!(client.tools().contains(&"old".to_owned()), "{:?}", client.sdk);
    }
    setup.restart();
    for client in &clients {
        assert_eq!(client.text("old", &json!({})), "old");
    }

    fs::write(&offered, "new\n").unwrap();
    setup.restart();
    for client in &clients {
        client.notified(TOOLS_CHANGED);
        let tools = client.tools();
        assert!(tools.contains(&"new".to_owned()), "{:?}: {tools:?}", client.sdk);
        assert!(!tools.contains(&"old".to_owned()), "{:?}: {tools:?}", client.sdk);
        assert_eq!(client.text("new", &json!({})), "new");
        let gone = client.call("old", &json!({}));
        assert_eq!(gone["isError"], true, "{:?}: {gone}", client.sdk);
        let reported = text_of(&gone, 0);
        assert!(reported.contains("old") && reported.contains("no longer"), "{reported}");
        assert_eq!(client.text("echo", &json!({"text": "on"})), "on");
    }
    for client in &clients {
        let changes = client.notifications(TOOLS_CHANGED);
        assert_eq!(changes.len(), 1, "{:?}: the first restart changed nothing", client.sdk);
        let others = client.all(|reported| {
            let method = reported["method"].as_str().unwrap_or_default();
            method.ends_with("list_changed") && method != TOOLS_CHANGED
        });
        assert_eq!(others, [Value::Null; 0], "{:?}: other lists are as before", client.sdk);
    }
    setup.assert_clean(&clients);
}

#[test]
fn a_cursor_survives_a_restart_of_its_server() {
    for wire in Wire::ALL {
        let setup = Setup::new(wire, &QUICK, &["--page-size", "3"]);
        let session = setup.raw();
        let first = session.ask(1, "tools/list", &json!({}));
        let mut found = names(&first["tools"]);
        let mut cursor = first["nextCursor"].clone();
        assert!(cursor.is_string(), "{first}");
        setup.restart();
        for id in 2.. {
            let page = session.ask(id, "tools/list", &json!({"cursor": cursor}));
            found.extend(names(&page["tools"]));
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        let whole = Setup::new(wire, &[], &[]);
        let all = names(&whole.raw().ask(1, "tools/list", &json!({}))["tools"]);
        assert!(all.len() > 6, "{all:?}");
        assert_eq!(found, all);
    }
}

#[test]
fn every_client_gets_all_pages() {
    let setup = Setup::new(Wire::Stdio, &[], &["--page-size", "4"]);
    let clients = setup.everyone();
    let all = |client: &Client| {
        let mut found = Vec::new();
        let mut params = json!({});
        loop {
            let page = client.ask("tools/list", &params);
            found.extend(names(&page["tools"]));
            match page["nextCursor"].as_str() {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => return found,
            }
        }
    };
    let expected = all(&clients[0]);
    assert!(expected.contains(&"echo".to_owned()) && expected.len() > 8, "{expected:?}");
    for client in &clients {
        assert_eq!(all(client), expected, "{:?}", client.sdk);
    }
    setup.restart();
    for client in &clients {
        assert_eq!(all(client), expected, "{:?}", client.sdk);
    }
    setup.assert_clean(&clients);
}

#[test]
fn an_unknown_cursor_is_refused() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let client = setup.client(Sdk::Ts1);
    let end = client.send("tools/list", &json!({"cursor": "nonsense"})).end();
    let super::client::End::Error { code, message } = end else { panic!("{end:?}") };
    assert_eq!(code, -32602, "{message}");
}
