//! The clients without Mainstay: distinguishes a broken installation from a broken proxy.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::client::{Client, End, Sdk, names};
use super::raw::{BOTH, Raw, request};
use super::setup::test_env;
use crate::env::fixture;

/// A fixture server that listens by itself, until it is dropped.
pub(super) struct Listening {
    server: Child,
    pub(super) address: String,
}

impl Listening {
    pub(super) fn start(address: &str) -> Self {
        let mut command = Command::new(fixture());
        command.args(["--http", address]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("its address").to_owned();
        Self { server, address }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
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
    let env = test_env();
    let listening = Listening::start("127.0.0.1:0");
    for client in Client::connect_all(&env, &listening.url()) {
        use_it(client);
    }
}

#[test]
fn stdio_clients_work_without_mainstay() {
    let env = test_env();
    for sdk in Sdk::PROGRAMS {
        use_it(Client::connect_stdio(&env, sdk, &[&fixture()]));
    }
}

#[test]
fn raw_http_works_without_mainstay() {
    let listening = Listening::start("127.0.0.1:0");
    let session = Raw::open(&listening.url());
    let listed = session.ask(1, "tools/list", &json!({}));
    assert!(names(&listed["tools"]).contains(&"echo".to_owned()));
    let steps =
        json!({"name": "progress_die", "arguments": {"steps": 2}, "_meta": {"progressToken": 5}});
    let mut stream = session.post(BOTH, &request(2, "tools/call", &steps));
    let progress = [stream.message().unwrap(), stream.message().unwrap()];
    assert_eq!(progress.map(|reported| reported["params"]["progress"].clone()), [1, 2]);
    assert_eq!(stream.answer()["result"]["content"][0]["text"], "2 steps");
    assert_eq!(session.get(None).status, 200);
    assert!(matches!(session.delete(), 200 | 204));
}

fn use_it(client: Client) {
    let name = format!("{:?}", client.sdk);
    assert!(client.capabilities()["tools"].is_object());
    assert!(client.tools().contains(&"echo".to_owned()));
    let slow = client.send_call("sleep_readonly", &json!({"ms": 200}));
    let quick = client.send_call("echo", &json!({"text": "quick"}));
    assert_eq!((quick.text(), slow.text()), ("quick".to_owned(), "slept 200 ms".to_owned()));
    let steps = client.send_call("progress_die", &json!({"steps": 3, "ms": 20}));
    assert_eq!(steps.text(), "3 steps");
    assert!(steps.progress().starts_with(&[1.0]), "{name}: {:?}", steps.progress());
    let read = client.ask("resources/read", &json!({"uri": "fixture://greeting"}));
    assert_eq!(read["contents"][0]["text"], "hello from the fixture");
    let prompt = json!({"name": "greet", "arguments": {"who": "Ada"}});
    let prompt = client.ask("prompts/get", &prompt);
    assert_eq!(prompt["messages"][0]["content"]["text"], "Say hello to Ada.");

    client.ask("logging/setLevel", &json!({"level": "debug"}));
    client.text("log", &json!({"level": "debug", "text": "received"}));
    assert!(client.notified("notifications/message")["params"].to_string().contains("received"));
    client.ask("resources/subscribe", &json!({"uri": "fixture://greeting"}));
    client.text("touch", &json!({"uri": "fixture://greeting"}));
    let updated = client.notified("notifications/resources/updated");
    assert_eq!(updated["params"]["uri"], "fixture://greeting");

    client.will_answer("roots/list", &json!({"roots": [{"uri": "file:///root", "name": name}]}));
    assert!(client.text("roots", &json!({})).contains("file:///root"));
    let question = client.send_call("elicit", &json!({"message": "who?"}));
    let asked = client.asked("elicitation/create");
    assert_eq!(asked["params"]["message"], "who?");
    client.answer(&asked, &json!({"action": "accept", "content": {"name": name}}));
    assert!(question.text().contains(&name));

    let endless = client.send_call("sleep_readonly", &json!({"ms": 600_000}));
    client.cancel(&endless);
    assert!(matches!(endless.end(), End::Error { .. }));
    client.ask("ping", &json!({}));
    client.close();
}
