//! Two servers, or a server and another program, at one port: no call reaches a process of another server.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, fixture, free_port, kill, pid_of, until};

/// A shell command that serves at an address once this file exists.
fn late_server(address: &str, go: &str) -> String {
    format!("while [ ! -e {go} ]; do sleep 0.05; done; exec {} --http {address}", fixture())
}

/// Describes a server without waiting for it.
fn begin(env: &TestEnv, name: &str, port: u16, command: &[&str]) {
    let port = port.to_string();
    let mut args = vec!["run", name];
    args.extend(["--transport", "streamable-http", "--target-port", &port, "--"]);
    args.extend(command);
    env.run(args);
}

fn at(port: u16) -> String {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string()
}

/// A server without supervision.
struct Stranger(Child);

impl Stranger {
    fn listen(address: &str) -> Self {
        let mut command = Command::new(fixture());
        command.args(["--http", address]).env_clear().stdin(Stdio::null());
        let other_program = Self(command.stdout(Stdio::null()).spawn().unwrap());
        until("the other_program listens", || TcpStream::connect(address).ok());
        other_program
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_second_server_at_a_port_gets_a_help() {
    let env = TestEnv::new();
    let port = free_port();
    let go = env.work().join("go");
    begin(&env, "prod", port, &["sh", "-c", &late_server(&at(port), go.to_str().unwrap())]);
    // Its own process never listens, so another one answers at the port.
    begin(&env, "staging", port, &["sleep", "600"]);
    env.write("go", "");
    let prod = env.once_running("prod", 1);
    let down = env.once("staging", "refused", |server| server["status"] == "error");
    assert_eq!(down["last_exit"]["cause"], "cannot-start", "{down}");
    // When it was refused, nothing listened there yet.
    let expected =
        format!("port {port} is also the --target-port of the server `prod`, which is running");
    assert!(down["reason"].as_str().unwrap().contains(&expected), "{down}");
    assert!(env.run(["call", "staging", "pid", "{}"]).code != 0);
    assert_eq!(env.call("prod", "pid", "{}"), prod["pid"].to_string());
    let (why, status) = (env.ok(["why", "staging"]), env.ok(["status", "staging"]));
    for (reported, part) in
        [(&why, "the server `prod`"), (&status, "the server `prod`"), (&why, "--target-port")]
    {
        assert!(reported.contains(part), "{part} is missing in:\n{reported}");
    }

    env.ok(["rm", "prod"]);
    // The command waits for a readiness that never comes.
    let _restart = env.follow(["restart", "staging"]);
    env.once("staging", "started", |server| server["pid"].is_u64());
}

#[test]
fn a_server_of_another_instance_is_not_used() {
    let (theirs, ours) = (TestEnv::new(), TestEnv::new());
    let port = free_port();
    let go = theirs.work().join("go");
    begin(&theirs, "prod", port, &["sh", "-c", &late_server(&at(port), go.to_str().unwrap())]);
    begin(&ours, "staging", port, &["sleep", "600"]);
    ours.once("staging", "up", |server| server["pid"].is_u64());
    theirs.write("go", "");
    theirs.once_running("prod", 1);
    let down = ours.once("staging", "refused", |server| server["status"] == "error");
    let reason = down["reason"].as_str().unwrap();
    assert!(reason.contains("the server `prod` of another Mainstay instance"), "{down}");
    assert!(ours.events_called("staging", "ready").is_empty());
}

#[test]
fn another_listener_at_the_port_is_named() {
    let env = TestEnv::new();
    let port = free_port();
    begin(&env, "forwarded", port, &["sleep", "600"]);
    env.once("forwarded", "up", |server| server["pid"].is_u64());
    let other_program = Stranger::listen(&at(port));
    env.once_running("forwarded", 1);
    assert_eq!(env.call("forwarded", "pid", "{}"), other_program.0.id().to_string());
    let status = env.json(["status", "forwarded", "--json"]);
    assert_eq!(status["target_owner"]["pid"], json!(other_program.0.id()), "{status}");
    let text = env.ok(["status", "forwarded"]);
    assert!(text.contains(&format!("(pid {})", other_program.0.id())), "{text}");
    env.ok(["daemon", "reload"]);
    assert_eq!(env.call("forwarded", "pid", "{}"), other_program.0.id().to_string());
    assert_eq!(env.server("forwarded")["generation"], 1);
}

/// The other program has the address that is tried first.
#[test]
fn calls_go_to_the_address_at_which_the_server_itself_listens() {
    let env = TestEnv::new();
    let port = free_port();
    let address = format!("[::1]:{port}");
    begin(&env, "web", port, &[&fixture(), "--http", &address]);
    let first = env.once_running("web", 1);
    let _stranger = Stranger::listen(&at(port));
    let is_ours = |server: &Value| {
        assert_eq!(env.call("web", "pid", "{}"), server["pid"].to_string());
        assert_eq!(env.json(["status", "web", "--json"])["target_owner"], Value::Null);
    };
    is_ours(&first);
    env.ok(["daemon", "reload"]);
    is_ours(&first);
    env.kill_mainstay();
    is_ours(&first);
    assert_eq!(env.server("web")["generation"], 1);
}

/// A restart waits until the port is free for a moment, and is not refused for a connection that lingers.
#[test]
fn a_port_that_becomes_free_soon_does_not_prevent_a_start() {
    let env = TestEnv::new();
    let port = free_port();
    begin(&env, "web", port, &[&fixture(), "--http", &at(port)]);
    let mut server = env.once_running("web", 1);
    for generation in 2..=4 {
        // Leaves connections of the old run in TIME_WAIT or half closed.
        let open = TcpStream::connect(at(port)).unwrap();
        env.call("web", "pid", "{}");
        kill(pid_of(&server), Signal::KILL);
        server = env.once_running("web", generation);
        drop(open);
    }
    assert_eq!(env.call("web", "pid", "{}"), server["pid"].to_string());
}
