//! The ways in other than HTTP: `mainstay connect` for stdio clients, and `call` and `tools`.

use serde_json::json;

use super::client::{Client, Sdk};
use super::scene::{NAME, Scene, Wire};

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
    let scene = Scene::new(wire, &[], &[]);
    let command = [MAINSTAY, "connect", NAME];
    let clients = Sdk::PROGRAMS.map(|sdk| Client::connect_stdio(&scene.env, sdk, &command));
    let file = scene.file("effects");
    let unsafe_calls = clients.each_ref().map(|client| {
        assert_eq!(client.text("echo", &json!({"text": "before"})), "before");
        let arguments = json!({"path": file.path(), "line": "x", "ms": 60_000});
        client.send_call("append", &arguments)
    });
    file.until(clients.len());
    scene.take_down();
    let held = clients.each_ref().map(|client| client.send_call("echo", &json!({"text": "held"})));
    for call in &unsafe_calls {
        let result = call.result();
        assert_eq!(result["isError"], true, "{result}");
        assert!(result.to_string().contains("effect is unknown"), "{result}");
    }
    scene.let_up();
    for call in &held {
        assert_eq!(call.text(), "held");
    }
    assert_eq!(file.read().len(), clients.len());
    scene.assert_clean(&clients);
    clients.into_iter().for_each(Client::close);
    scene.env.once(NAME, "was left by all", |server| server["sessions"] == 0);
}

#[test]
fn connect_to_nothing_says_so() {
    let scene = Scene::new(Wire::Stdio, &[], &[]);
    let output = scene.env.run(["connect", "none"]);
    assert_eq!((output.code, &*output.stdout), (3, ""), "{output}");
    assert!(output.stderr.contains("none"), "{output}");
}

#[test]
fn commands_wait_for_a_server_that_is_coming_back() {
    let scene = Scene::new(Wire::Stdio, &[], &["--ready-after", "1500"]);
    scene.kill();
    assert_eq!(scene.env.call(NAME, "echo", r#"{"text":"held"}"#).lines().next(), Some("held"));
    assert!(scene.env.ok(["tools", NAME]).contains("echo"));
    assert_eq!(scene.server()["sessions"], 0, "a command leaves no session behind");
}
