//! A panic ends only the work that caused it. Debug builds panic when a test asks for it.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::bystander::Bystander;
use crate::clients::setup::{CLINE, CURSOR, ClientFile, listed};
use crate::env::{TestEnv, fixture, free_port, kill, until};
use crate::proxy::raw::{BOTH, Raw, request};

#[test]
fn a_request_that_makes_the_proxy_panic_is_answered_with_an_error() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let url = env.server("fx")["url"].as_str().unwrap().to_owned();
    let daemon = env.daemon();
    let attacker = Raw::open(&url);
    for id in 1..=5 {
        let panics = request(id, "mainstay/test-panic", &json!({}));
        let case = format!("request {id} that makes the proxy panic");
        let response = bystander.during(case, || attacker.post(BOTH, &panics));
        assert_eq!(response.status, 200);
        let answer = response.answer();
        assert_eq!(answer["id"], id, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("effect is unknown"), "{answer}");
    }
    assert_eq!(attacker.ask(6, "ping", &json!({})), json!({}), "its session continues");
    assert_eq!(env.daemon(), daemon, "the daemon continues");
    assert_eq!(env.once_logged("requested by a test", 5), 5, "each once, with its message");
}

#[test]
fn a_client_file_that_makes_the_editor_panic_is_left_alone() {
    let env = TestEnv::new();
    let bad = ClientFile::install(&env, CURSOR);
    let good = ClientFile::install(&env, CLINE);
    env.ok(["client", "add", "cursor", "cline"]);
    let port = free_port();
    let options = ["--port", &port.to_string(), "--no-clients"];
    env.run_server("bystander", &options, &[&fixture()]);
    let mut bystander = Bystander::at(&format!("http://127.0.0.1:{port}/mcp"));
    let trigger = env.mainstay_home().join("state/clients/test-panic-cursor");
    fs::create_dir_all(trigger.parent().unwrap()).unwrap();
    fs::write(&trigger, "").unwrap();

    let added = bystander.during("a client's file that makes the editor panic", || {
        env.run(["run", "fx", "--wait", "--", &fixture()])
    });
    assert_eq!(added.code, 0, "{added}");
    assert!(added.stderr.contains("because of a bug"), "{added}");
    let daemon = env.daemon();
    assert_eq!(bad.text(), CURSOR.text);
    assert_eq!(good.json()["mcpServers"]["fx"]["url"], env.server("fx")["url"]);
    let problem = listed(&env, "cursor")["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("because of a bug (requested by a test)"), "{problem}");
    assert!(env.run(["doctor"]).stdout.contains("requested by a test"));
    assert!(env.events("fx").iter().any(|event| {
        event["event"] == "client" && event["detail"].as_str().unwrap().contains("because of a bug")
    }));
    assert_eq!(env.daemon(), daemon, "the daemon continues");
    assert_eq!(env.once_logged("panicked at", 1), 1, "one attempt");

    // The next daemon knows, too.
    bystander.after("a daemon starts while the file is still there", || {
        kill(daemon, Signal::KILL);
        until("there is another daemon", || Some(env.daemon()).filter(|pid| *pid != daemon));
    });
    assert!(listed(&env, "cursor")["problem"].as_str().unwrap().contains("because of a bug"));
    assert_eq!(env.once_logged("panicked at", 1), 1, "it is not tried again");

    // A user may retry it, and it works once the bug is fixed.
    let retry = || env.run(["client", "add", "cursor"]).code;
    assert_eq!(bystander.during("a retry that makes the editor panic again", retry), 1);
    assert_eq!(env.once_logged("panicked at", 2), 2);
    fs::remove_file(&trigger).unwrap();
    env.ok(["client", "add", "cursor"]);
    assert_eq!(bad.json()["mcpServers"]["fx"]["url"], env.server("fx")["url"]);
    assert!(listed(&env, "cursor")["problem"].is_null());
}
