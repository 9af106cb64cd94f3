//! Access other than HTTP: `mainstay connect` for stdio clients, and `call` and `tools`.

use serde_json::{Value, json};

use super::client::{Client, Sdk};
use super::setup::{NAME, Setup, Wire, test_env};
use crate::env::shell_server;
use crate::fake_daemon;

const MAINSTAY: &str = env!("CARGO_BIN_EXE_mainstay");

#[test]
fn stdio_clients_keep_their_session_too() {
    connect(Wire::Stdio);
}

#[test]
fn stdio_clients_keep_their_session_too_over_http() {
    connect(Wire::Http);
}

fn connect(wire: Wire) {
    let setup = Setup::new(wire, &[], &[]);
    let command = [MAINSTAY, "connect", NAME];
    let clients = Sdk::PROGRAMS.map(|sdk| Client::connect_stdio(&setup.env, sdk, &command));
    let file = setup.file("effects");
    let unsafe_calls = clients.each_ref().map(|client| {
        assert_eq!(client.text("echo", &json!({"text": "before"})), "before");
        let arguments = json!({"path": file.path(), "line": "x", "ms": 60_000});
        client.send_call("append", &arguments)
    });
    file.until(clients.len());
    setup.take_down();
    let held = clients.each_ref().map(|client| client.send_call("echo", &json!({"text": "held"})));
    for call in &unsafe_calls {
        let result = call.result();
        assert_eq!(result["isError"], true, "{result}");
        assert!(result.to_string().contains("effect is unknown"), "{result}");
    }
    setup.let_up();
    for call in &held {
        assert_eq!(call.text(), "held");
    }
    assert_eq!(file.read().len(), clients.len());
    setup.assert_clean(&clients);
    clients.into_iter().for_each(Client::close);
    setup.env.once(NAME, "was left by all", |server| server["sessions"] == 0);
}

/// A server that exits on a request that it does not know, as several do, and records what it reads.
#[test]
fn what_a_client_sends_before_initialize_does_not_reach_the_server() {
    let serve = r#"
        while read -r line; do
            printf '%s\n' "$line" >> read
            case "$line" in
                *'"tools/list"'*) result='{"tools":[]}' ;;
                *'"method":"notifications/'*) continue ;;
                *) exit 3 ;;
            esac
            id=$(printf '%s' "$line" | sed 's/.*"id":\([^,}]*\).*/\1/')
            printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
        done"#;
    let env = test_env();
    let server = env.run_server(NAME, &[], &["sh", "-c", &shell_server(serve)]);
    let mut client = fake_daemon::Client::spawn(env.command(["connect", NAME]));
    let mut ask = |id: u32, method: &str, params: &Value| {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        client.say(&request.to_string());
        let answer = client.message();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    };
    let version = "2026-07-28";
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version}});
    assert_eq!(ask(1, "server/discover", &meta)["error"]["code"], -32601);
    assert_eq!(ask(2, "tools/call", &json!({"name": "x"}))["error"]["code"], -32600);
    assert_eq!(ask(3, "ping", &json!({}))["result"], json!({}));
    let info = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    assert_eq!(ask(4, "initialize", &params)["result"]["serverInfo"]["name"], "sh");
    assert_eq!(ask(5, "server/discover", &meta)["error"]["code"], -32601);
    assert_eq!(ask(6, "tools/list", &json!({}))["result"], json!({"tools": []}));
    assert_eq!(client.end().0, Some(0));
    assert_eq!(env.server(NAME)["pid"], server["pid"], "it has not died");
    let read = std::fs::read_to_string(env.work().join("read")).unwrap_or_default();
    assert!(!read.contains("discover") && !read.contains("tools/call"), "{read}");
}

#[test]
fn connect_to_an_unknown_server_fails() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let output = setup.env.run(["connect", "none"]);
    assert_eq!((output.code, &*output.stdout), (3, ""), "{output}");
    assert!(output.stderr.contains("none"), "{output}");
}

#[test]
fn commands_wait_for_a_restarting_server() {
    let setup = Setup::new(Wire::Stdio, &[], &["--ready-after", "1500"]);
    setup.kill();
    assert_eq!(setup.env.call(NAME, "echo", r#"{"text":"held"}"#).lines().next(), Some("held"));
    assert!(setup.env.ok(["tools", NAME]).contains("echo"));
    assert_eq!(setup.server()["sessions"], 0, "a command leaves no session behind");
}
