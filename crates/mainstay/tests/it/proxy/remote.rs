//! Remote servers, started by the test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::raw::Raw;
use crate::env::{TestEnv, fixture, free_port, is_alive, kill, pid_of, until, until_dead};

#[test]
fn headers_are_sent_to_the_server_only() {
    let env = TestEnv::new();
    let gate = Gate::open("x-api-key: hush");
    let url = format!("{}?token=secret", gate.url);
    let header = ["--header", "X-Api-Key=hush"];
    let server = env.json(args("api", &url, &[&header[..], &["--wait", "--json"]].concat()));
    assert_eq!((&server["status"], &server["engine"]), (&json!("running"), &json!("remote")));
    assert_eq!((&server["transport"], &server["pid"]), (&json!("streamable-http"), &Value::Null));
    assert!(server["url"].as_str().unwrap().ends_with("/api/mcp"), "{server}");
    assert!(gate.next().starts_with("POST /mcp?token=secret "));
    let status = env.json(["status", "api", "--json"]);
    assert_eq!((&status["target"], &status["headers"]), (&json!(gate.url), &json!(["x-api-key"])));
    for shown in [["status", "api"], ["why", "api"], ["events", "api"], ["ls", "-a"]] {
        let text = env.ok(shown);
        assert!(!text.contains("hush") && !text.contains("secret"), "{text}");
    }
    let log = env.run(["logs", "api"]);
    assert_eq!((log.code, log.stdout.as_str()), (0, ""));
    assert_eq!(log.stderr, "api is a remote server, which has no log here\n");
}

#[test]
fn a_server_that_requires_authorization_is_contacted_once() {
    let env = TestEnv::new();
    let gate = Gate::open("authorization: Bearer hush");
    let output = env.run(args("api", &gate.url, &["--wait"]));
    assert_eq!(output.code, 1, "{output}");
    for part in ["api is down", &gate.url, "401", "who are you", "--header"] {
        assert!(output.stderr.contains(part), "{part} is missing in {output}");
    }
    let down = env.server("api");
    assert_eq!((&down["status"], &down["restarts"]), (&json!("error"), &json!(0)));
    assert_eq!(down["next_restart_at"], Value::Null);
    assert!(env.ok(["why", "api"]).contains("--replace --url URL --header NAME=VALUE"));
    gate.next();
    assert_eq!(gate.asked(), 0, "one attempt was all");
    assert_eq!(env.run(["restart", "api"]).code, 1);
    gate.next();
    env.once("api", "was refused again", |server| server["status"] == "error");
    let header = ["--header", "Authorization=Bearer hush", "--replace", "--wait"];
    env.ok(args("api", &gate.url, &header));
    assert_eq!(env.server("api")["status"], "running");
}

#[test]
fn an_unreachable_server_is_retried() {
    let env = TestEnv::new();
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    env.run(args("api", &url, &[]));
    let away = env.once("api", "waited", |server| server["status"] == "waiting");
    let reason = away["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("{url} cannot be reached: cannot connect")), "{away}");
    assert!(reason.contains("; tried again in "), "{away}");
    assert_eq!((&away["generation"], &away["restarts"]), (&json!(1), &json!(0)));
    let why = env.ok(["why", "api"]);
    assert!(why.contains("cannot be reached") && !why.contains("mainstay logs"), "{why}");
    let _server = Elsewhere::start(port, &[]);
    let back = env.once_running("api", 1);
    assert_eq!((&back["restarts"], &back["restarts_total"]), (&json!(0), &json!(0)));
    assert_eq!(env.call("api", "echo", r#"{"text":"far"}"#), "far");
}

#[test]
fn a_session_survives_the_absence_of_a_remote_server() {
    let env = TestEnv::new();
    let port = free_port();
    let server = Elsewhere::start(port, &[]);
    let url = format!("http://127.0.0.1:{port}/mcp");
    let shown = env.json(args("api", &url, &["--wait", "--json"]));
    let session = Raw::open(shown["url"].as_str().unwrap());
    let mut received = session.get(None);
    let echo = |id, text: &str| {
        let params = json!({"name": "echo", "arguments": {"text": text}});
        session.ask(id, "tools/call", &params)["content"].clone()
    };
    let content = |text: &str| json!([{"type": "text", "text": text}]);
    assert_eq!(echo(1, "before"), content("before"));
    drop(server);
    thread::scope(|scope| {
        let held = scope.spawn(|| echo(2, "held"));
        env.once("api", "was missed", |server| server["status"] == "waiting");
        let _server = Elsewhere::start(port, &["--extra-tool", "later"]);
        assert_eq!(held.join().unwrap(), content("held"));
        assert_eq!(echo(3, "after"), content("after"));
        let change = std::iter::from_fn(|| received.message())
            .find(|message| message["method"] == "notifications/tools/list_changed");
        assert!(change.is_some(), "what changed meanwhile is reported");
        let back = env.once_running("api", 1);
        assert_eq!((&back["restarts"], &back["sessions"]), (&json!(0), &json!(1)));
    });
    let away = env.events_called("api", "engine-away");
    assert_eq!(away.len(), 1, "{away:?}");
    assert!(away[0]["detail"].as_str().unwrap().contains("cannot be reached"), "{away:?}");
    assert_eq!(env.events_called("api", "engine-back")[0]["detail"], "it answers again");
}

#[test]
fn requests_to_an_unreachable_server_are_executed_once_it_is_back() {
    let env = TestEnv::new();
    let url = format!("http://127.0.0.1:{}/mcp", free_port());
    env.run(args("api", &url, &[]));
    let waiting = |server: &Value| server["status"] == "waiting";
    env.once("api", "waited", waiting);
    env.ok(["stop", "api"]);
    let stopped = env.server("api");
    assert_eq!(
        (&stopped["status"], &stopped["reason"]),
        (&json!("stopped"), &json!("stopped on request"))
    );
    env.ok(["start", "api"]);
    env.once("api", "waited again", waiting);
    env.ok(["restart", "api"]);
    env.once("api", "waited in another run", |server| waiting(server) && server["generation"] == 3);
    env.ok(["rm", "api"]);
    assert_eq!(env.server("api"), Value::Null);
}

#[test]
fn a_new_daemon_continues_remote_sessions() {
    let env = TestEnv::new();
    let port = free_port();
    let server = Elsewhere::start(port, &[]);
    let url = format!("http://127.0.0.1:{port}/mcp");
    let shown = env.json(args("api", &url, &["--wait", "--json"]));
    let session = Raw::open(shown["url"].as_str().unwrap());
    let echo = |id, text: &str| {
        let params = json!({"name": "echo", "arguments": {"text": text}});
        let content = session.ask(id, "tools/call", &params)["content"].clone();
        assert_eq!(content, json!([{"type": "text", "text": text}]), "nothing else is reported");
    };
    echo(1, "before");
    let dies = || {
        let daemon = env.daemon();
        kill(daemon, Signal::KILL);
        until_dead(daemon);
    };
    dies();
    env.once_running("api", 1);
    echo(2, "after");
    // Changes during the absence are detected.
    drop(server);
    dies();
    env.once("api", "was missed", |server| server["status"] == "waiting");
    let _server = Elsewhere::start(port, &[]);
    env.once_running("api", 1);
    echo(3, "again");
}

#[test]
fn a_server_may_become_remote_and_local_again() {
    let env = TestEnv::new();
    let port = free_port();
    let _elsewhere = Elsewhere::start(port, &[]);
    let url = format!("http://127.0.0.1:{port}/mcp");
    let here = env.run_server("api", &[], &[&fixture()]);
    let moved = env.json(args("api", &url, &["--replace", "--wait", "--json"]));
    assert_eq!((&moved["engine"], &moved["generation"]), (&json!("remote"), &json!(2)));
    until_dead(pid_of(&here));
    assert_eq!(env.ok(["logs", "api"]), "");
    let home = env.run_server("api", &["--replace"], &[&fixture()]);
    assert_eq!((&home["engine"], &home["generation"]), (&json!("process"), &json!(3)));
    assert!(is_alive(pid_of(&home)));
    assert_eq!(home["last_exit"]["cause"], "asked");
}

fn args<'a>(name: &'a str, url: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["run", name, "--url", url], options].concat()
}

/// The fixture server, started by the test and not by Mainstay.
struct Elsewhere(Child);

impl Elsewhere {
    /// Starts it, and returns when it listens.
    fn start(port: u16, flags: &[&str]) -> Self {
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(fixture());
        command.args(["--http", &address]).args(flags);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("listening on") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended before it listened");
        }
        Self(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A server that refuses requests without a certain header. It reports every `initialize`.
struct Gate {
    url: String,
    requests: Receiver<String>,
}

impl Gate {
    fn open(key: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, sender) = (stream.unwrap(), sender.clone());
                thread::spawn(move || guard(stream, key, &sender));
            }
        });
        Self { url, requests }
    }

    /// The head of the next `initialize`.
    fn next(&self) -> String {
        until("a request arrived", || self.requests.try_recv().ok())
    }

    /// The number of reports that were not read.
    fn asked(&self) -> usize {
        self.requests.try_iter().count()
    }
}

/// Answers the requests of one connection, until it is closed.
fn guard(stream: TcpStream, key: &str, requests: &Sender<String>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some((head, message)) = read(&mut reader) {
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result(&message)});
        let method = message["method"].as_str().unwrap_or_default();
        if method == "initialize" {
            requests.send(head.clone()).ok();
        }
        let (status, body) = match method {
            _ if !head.contains(key) => ("401 Unauthorized", "who are you?".to_owned()),
            "initialize" | "tools/list" => ("200 OK", answer.to_string()),
            "notifications/initialized" => ("202 Accepted", String::new()),
            _other => ("405 Method Not Allowed", String::new()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}"
        );
        // The client may have disconnected.
        if write!(writer, "{head}\r\n\r\n{body}").is_err() {
            return;
        }
    }
}

fn result(message: &Value) -> Value {
    match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "serverInfo": {"name": "gate", "version": "1"},
        }),
        _other => json!({"tools": []}),
    }
}

/// The next request: its head, with names in lower case, and the message in its body.
pub(crate) fn read(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.split_once(':') {
            Some((name, value)) if !head.is_empty() => {
                head.extend([&name.to_ascii_lowercase(), ":", value]);
            }
            _first_or_last => head.push_str(&line),
        }
    }
    let length = head.split_once("content-length: ").map_or("0", |(_, rest)| rest);
    let length = length.lines().next()?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).unwrap_or_default()))
}
