//! Real clients with real servers that are killed.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, Sdk};
use super::setup::{QUICK, Setup, test_env};
use crate::env::free_port;
use crate::real_servers::{LOOPBACK, tool};

/// Announcements of a server are passed on, or not, before this time is over.
const SETTLED: Duration = Duration::from_secs(1);

#[test]
fn the_time_server_of_pypi() {
    let setup = Setup::run(test_env(), &[], &[&tool("python/bin/mcp-server-time")]);
    let arguments =
        json!({"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"});
    check(&setup, "convert_time", &arguments, "T21:30:00+09:00");
}

#[test]
fn the_everything_server_of_npm() {
    let program = tool("node/node_modules/.bin/mcp-server-everything");
    let setup = Setup::run(test_env(), &[], &[&program, "stdio"]);
    check(&setup, "echo", &json!({"message": "still here"}), "Echo: still here");
}

#[test]
fn the_everything_server_of_npm_over_http() {
    let env = test_env();
    let program = tool("node/node_modules/.bin/mcp-server-everything");
    let preload = env.write("loopback.cjs", LOOPBACK);
    let port = free_port().to_string();
    let variable = format!("PORT={port}");
    let options = ["--transport", "streamable-http", "--target-port", &port, "-e", &variable];
    let command = ["node", "-r", preload.to_str().unwrap(), &program, "streamableHttp"];
    let setup = Setup::run(env, &options, &command);
    check(&setup, "echo", &json!({"message": "still here"}), "Echo: still here");
}

/// It announces four tools after each handshake.
#[test]
fn restarts_of_the_everything_server_change_no_list() {
    let program = tool("node/node_modules/.bin/mcp-server-everything");
    let setup = Setup::run(test_env(), &QUICK, &[&program, "stdio"]);
    let client = setup.client(Sdk::Ts1);
    let tools = client.tools();
    // Until what belongs to the first start is over.
    std::thread::sleep(SETTLED);
    let before = changes(&client);
    for _ in 0..3 {
        setup.restart();
        let echo = client.text("echo", &json!({"message": "here"}));
        assert!(echo.contains("Echo: here"), "{echo}");
        std::thread::sleep(SETTLED);
    }
    assert_eq!(changes(&client), before);
    assert_eq!(client.tools(), tools);
    setup.assert_clean(&[client]);
}

/// The number of changed lists that were announced to the client.
fn changes(client: &Client) -> usize {
    let is_change = |reported: &Value| {
        reported["method"].as_str().is_some_and(|method| method.ends_with("/list_changed"))
    };
    client.all(is_change).len()
}

/// Uses a server with every client, kills it, and uses it again while it comes back.
fn check(setup: &Setup, tool: &str, arguments: &Value, answer: &str) {
    let clients = setup.everyone();
    let use_it = |client: &Client| {
        assert!(client.tools().contains(&tool.to_owned()), "{:?}", client.sdk);
        let text = client.text(tool, arguments);
        assert!(text.contains(answer), "{:?}: {text}", client.sdk);
    };
    clients.iter().for_each(use_it);
    setup.kill();
    let prompts = |client: &Client| client.capabilities()["prompts"].is_object();
    clients.iter().for_each(use_it);
    for client in clients.iter().filter(|client| prompts(client)) {
        let prompts = client.ask("prompts/list", &json!({}));
        assert!(prompts["prompts"].is_array(), "{:?}: {prompts}", client.sdk);
    }
    setup.assert_clean(&clients);
}
