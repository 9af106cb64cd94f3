//! The clients without Mainstay between: tells a broken installation from a broken proxy.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::client::{Client, Sdk};
use super::scene::stage;
use crate::env::fixture;

/// A fixture server that listens by itself.
struct Listening {
    server: Child,
    url: String,
}

impl Listening {
    fn start() -> Self {
        let mut command = Command::new(fixture());
        command.args(["--http", "127.0.0.1:0"]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("its address");
        let url = format!("http://{address}/mcp");
        Self { server, url }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

#[test]
fn clients_work_without_mainstay() {
    let env = stage();
    let listening = Listening::start();
    for client in Client::connect_all(&env, &listening.url) {
        use_it(client);
    }
}

#[test]
fn stdio_clients_work_without_mainstay() {
    let env = stage();
    for sdk in Sdk::PROGRAMS {
        use_it(Client::connect_stdio(&env, sdk, &[&fixture()]));
    }
}

fn use_it(client: Client) {
    assert!(client.capabilities()["tools"].is_object());
    assert!(client.tools().contains(&"echo".to_owned()));
    let slow = client.send_call("sleep", &json!({"ms": 200}));
    let quick = client.send_call("echo", &json!({"text": "quick"}));
    assert_eq!((quick.text(), slow.text()), ("quick".to_owned(), "slept 200 ms".to_owned()));
    let read = client.ask("resources/read", &json!({"uri": "fixture://greeting"}));
    assert_eq!(read["contents"][0]["text"], "hello from the fixture");
    let prompt = json!({"name": "greet", "arguments": {"who": "Ada"}});
    let prompt = client.ask("prompts/get", &prompt);
    assert_eq!(prompt["messages"][0]["content"]["text"], "Say hello to Ada.");
    client.ask("logging/setLevel", &json!({"level": "debug"}));
    client.ask("ping", &json!({}));
    client.close();
}
