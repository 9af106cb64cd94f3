//! Published servers, as users run them. `scripts/test` installs them.

use std::env;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, free_port, is_alive, kill, pid_of};

/// Keeps a Node server, which would listen on all interfaces, to this machine.
pub(crate) const LOOPBACK: &str = r"
const net = require('node:net');
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (first, ...rest) {
  const options = typeof first === 'object' ? first : { port: first };
  const callback = rest.find((argument) => typeof argument === 'function');
  return listen.call(this, { ...options, host: '127.0.0.1' }, callback);
};
";

/// A tool of a server, and what it must answer.
struct Call {
    tool: &'static str,
    arguments: Value,
    answer: &'static str,
}

#[test]
fn the_time_server_of_pypi() {
    let program = tool("python/bin/mcp-server-time");
    let call = Call {
        tool: "convert_time",
        arguments: json!({"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}),
        answer: "T21:30:00+09:00",
    };
    supervise(&environment(), &[], &[&program], &call);
}

#[test]
fn the_everything_server_of_npm() {
    let program = tool("node/node_modules/.bin/mcp-server-everything");
    supervise(&environment(), &[], &[&program, "stdio"], &echo());
}

#[test]
fn the_everything_server_of_npm_over_http() {
    let env = environment();
    let program = tool("node/node_modules/.bin/mcp-server-everything");
    let preload = env.write("loopback.cjs", LOOPBACK);
    let port = free_port().to_string();
    let variable = format!("PORT={port}");
    let options = ["--transport", "streamable-http", "--target-port", &port, "-e", &variable];
    let command = ["node", "-r", preload.to_str().unwrap(), &program, "streamableHttp"];
    supervise(&env, &options, &command, &echo());
}

fn echo() -> Call {
    Call { tool: "echo", arguments: json!({"message": "still here"}), answer: "Echo: still here" }
}

/// Runs, uses, kills, uses again, stops and removes a server.
fn supervise(env: &TestEnv, options: &[&str], command: &[&str], call: &Call) {
    let use_it = || {
        let answer = env.call("real", call.tool, &call.arguments.to_string());
        assert!(answer.contains(call.answer), "{answer}");
    };
    let first = env.run_server("real", options, command);
    assert_eq!((&first["status"], &first["generation"]), (&json!("running"), &json!(1)));
    let tools = env.json(["tools", "real", "--json"]);
    let mut tools = tools.as_array().unwrap().iter();
    let listed = tools.find(|tool| tool["name"] == call.tool).expect("the tool is listed");
    assert_eq!(listed["inputSchema"]["type"], "object");
    use_it();

    kill(pid_of(&first), Signal::KILL);
    let second = env.once_running("real", 2);
    assert_ne!(second["pid"], first["pid"]);
    assert_eq!(second["last_exit"]["signal"], 9);
    use_it();

    assert_eq!(env.ok(["stop", "real"]), "real is stopped\n");
    assert!(!is_alive(pid_of(&second)));
    assert_eq!(env.ok(["rm", "real"]), "real is removed\n");
    assert_eq!(env.json(["ls", "-a", "--json"]), json!([]));
    assert_eq!(env.processes(), env.mainstays(), "nothing is left of it");
}

/// An environment in which the interpreters of this machine are found.
pub(crate) fn environment() -> TestEnv {
    TestEnv::new().with_var("PATH", &variable("PATH"))
}

/// A program that `scripts/test` has installed.
pub(crate) fn tool(path: &str) -> String {
    let path = PathBuf::from(variable("MAINSTAY_TEST_TOOLS")).join(path);
    assert!(path.exists(), "`{}` is missing: scripts/test installs it", path.display());
    path.into_os_string().into_string().unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "only the environment of the tests knows where they are"
)]
pub(crate) fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test, which sets it"))
}
