//! Long-lived control connections: followers of logs and events, and connections without a request.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use super::bystander::Bystander;
use super::flood::{allow_many_descriptors, start_with_limit};
use crate::env::{TestEnv, fixture, until};

const FOLLOWERS: usize = 200;

const EVENTS: &str = r#"{"method":"events","params":{"name":null,"tail":0,"follow":true}}"#;
const LOGS: &str = r#"{"method":"logs","params":{"name":"fx","tail":0,"follow":true}}"#;

/// A raw control connection.
struct Command(BufReader<UnixStream>);

impl Command {
    fn new(env: &TestEnv) -> Self {
        let socket = env.mainstay_home().join("run/daemon.sock");
        Self(BufReader::new(UnixStream::connect(socket).unwrap()))
    }

    /// Sends a request after the daemon's hello.
    fn asks(&mut self, request: &str) {
        let mut hello = String::new();
        self.0.read_line(&mut hello).unwrap();
        assert!(hello.contains("protocol"), "{hello}");
        writeln!(self.0.get_mut(), "{request}").unwrap();
    }

    /// Whether the daemon has sent this already.
    fn was_told(&mut self, text: &str) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let mut line = String::new();
        let read = self.0.read_line(&mut line);
        self.0.get_ref().set_nonblocking(false).unwrap();
        read.is_ok() && line.contains(text)
    }

    /// The next line of the daemon.
    fn reported(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
}

#[track_caller]
fn commands_are_served(env: &TestEnv) {
    assert_eq!(env.server("fx")["status"], "running");
    env.ok(["status", "fx"]);
    assert!(env.call("fx", "echo", r#"{"text": "a command"}"#).contains("a command"));
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
    let connected = env.run_with_input(["connect", "fx"], &format!("{hello}\n"));
    assert!(connected.stdout.contains("serverInfo"), "{}", connected.stderr);
}

#[test]
fn followers_are_limited_and_nothing_else_is_by_them() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    for request in [EVENTS, LOGS] {
        let mut all = bystander.during(format!("{FOLLOWERS} followers: {request}"), || {
            let mut all: Vec<_> = (0..FOLLOWERS).map(|_| Command::new(&env)).collect();
            for follower in &mut all {
                follower.asks(request);
            }
            commands_are_served(&env);
            all
        });
        // A follower beyond the limit is refused immediately, with a reason.
        let refused = env.run(["events", "-f"]);
        assert_eq!(refused.code, 1, "{}", refused.stderr);
        assert!(refused.stderr.contains("128 followers of logs and events"), "{}", refused.stderr);
        // Requests on different connections are served in any order.
        let mut refusals = 0;
        until("all others are refused", || {
            let count = all.len();
            all.retain_mut(|follower| !follower.was_told("128 followers"));
            refusals += count - all.len();
            (refusals == FOLLOWERS - 128).then_some(())
        });
        // Existing followers still get events.
        env.ok(["restart", "fx"]);
        env.once("fx", "it runs again", |server| server["status"] == "running");
        if request == EVENTS {
            assert!(all[0].reported().contains(r#""item""#));
        }
        drop(all);
        until("room for another follower", || {
            let mut follower = Command::new(&env);
            follower.asks(&request.replace(r#""tail":0"#, r#""tail":1"#));
            (!follower.reported().contains("128 followers")).then_some(())
        });
    }
}

#[test]
fn control_connections_without_a_request_do_not_block_others() {
    allow_many_descriptors();
    let env = TestEnv::new();
    start_with_limit(&env, "-n 1024");
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    for text in ["", "{", "\u{0}", r#"{"method":"list""#] {
        bystander.during(format!("1,300 control connections that send {text:?}"), || {
            let open = |_| {
                let mut command = Command::new(&env);
                // It may be closed before that.
                let _closed = command.0.get_mut().write_all(text.as_bytes());
                command
            };
            let silent: Vec<_> = (0..1300).map(open).collect();
            commands_are_served(&env);
            drop(silent);
        });
    }
}
