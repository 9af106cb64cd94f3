//! Real servers that block, and servers that look silent and are not.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::seconds_in;
use crate::env::{TestEnv, kill, pid_of, shim_of, until};
use crate::real_servers::tool;

const NAME: &str = "real";

/// A server of the Python SDK whose tools block its event loop.
const FAST_MCP: &str = r#"
import os, subprocess, sys, time
from mcp.server.fastmcp import FastMCP
server, release = FastMCP("blocking"), sys.argv[1]
@server.tool()
def append() -> str:
    with open(release + ".effects", "a") as file:
        file.write("x\n")
    return "appended"
@server.tool()
def block() -> str:
    open(release).read()
    return "released"
@server.tool()
def child() -> str:
    subprocess.run(["cat", release], stdout=subprocess.DEVNULL)
    return "released"
server.run()
"#;

/// A server of the TypeScript SDK whose tool waits for a child synchronously.
const NODE: &str = r"
import { createRequire } from 'node:module';
import { execFileSync } from 'node:child_process';
import { appendFileSync } from 'node:fs';
const [installed, release] = process.argv.slice(2);
const sdk = createRequire(`${installed}/`);
const { McpServer } = sdk('@modelcontextprotocol/sdk/server/mcp.js');
const { StdioServerTransport } = sdk('@modelcontextprotocol/sdk/server/stdio.js');
const server = new McpServer({ name: 'blocking', version: '1' });
const text = (text) => ({ content: [{ type: 'text', text }] });
server.registerTool('block', { description: 'blocks' }, async () => {
  execFileSync('cat', [release]);
  return text('released');
});
server.registerTool('append', { description: 'appends' }, async () => {
  appendFileSync(`${release}.effects`, 'x\n');
  return text('appended');
});
await server.connect(new StdioServerTransport());
";

/// A server in shell style that reads line by line, with one special tool.
const PLAIN: &str = r#"
import json, os, subprocess, sys, threading, time
lines, release = open(0, "rb", buffering=0), sys.argv[1]
def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def text(id, text):
    send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})
for line in lines:
    message = json.loads(line)
    id, method = message.get("id"), message["method"]
    if method == "initialize":
        info = {"name": "plain", "version": "1"}
        version = message["params"]["protocolVersion"]
        send({"id": id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "tools/list":
        names = ["append", "flood", "flood-later", "ignore", "orphan", "fsync", "chat"]
        send({"id": id, "result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}})
    elif method == "ping":
        send({"id": id, "result": {}})
    elif method == "tools/call":
        name = message["params"]["name"]
        if name == "append":
            with open(release + ".effects", "a") as file:
                file.write("x\n")
            text(id, "appended")
        elif name in ("flood", "flood-later"):
            if name == "flood-later":
                open(release).read()
            # More than any pipe holds, while nothing is read.
            for n in range(400):
                print("junk " + "x" * 10000)
            text(id, "y" * 3000000)
        elif name == "orphan":
            text(id, "answered")
            subprocess.run(["cat", release], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        elif name == "chat":
            text(id, "chatting")
            while not os.path.exists(release + ".go"):
                send({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
                time.sleep(0.2)
        elif name == "fsync":
            with open(release + ".data", "w") as file:
                while not os.path.exists(release + ".go"):
                    file.write("x" * 4096)
                    file.flush()
                    os.fsync(file.fileno())
                    file.seek(0)
            text(id, "written")
"#;

struct Setup {
    env: TestEnv,
    release: String,
}

impl Setup {
    fn new(options: &[&str], script: &str, command: &[&str]) -> Self {
        let env = TestEnv::new();
        let name = if command[0].ends_with("node") { "server.mjs" } else { "server.py" };
        let script = env.write(name, script);
        let release = env.work().join("release").to_str().unwrap().to_owned();
        assert!(Command::new("mkfifo").arg(&release).status().unwrap().success());
        let script = [script.to_str().unwrap()];
        let words = [&command[..1], &script, &command[1..], &[&release]].concat();
        env.run_server(NAME, options, &words);
        Self { env, release }
    }

    fn python(options: &[&str], script: &str) -> Self {
        Self::new(options, script, &[&tool("py1/bin/python")])
    }

    fn call(&self, tool: &str) -> String {
        self.env.call(NAME, tool, "{}").lines().next().unwrap().to_owned()
    }

    fn effects(&self) -> usize {
        let effects = fs::read_to_string(format!("{}.effects", self.release)).unwrap_or_default();
        effects.lines().count()
    }

    /// The server once its status is this, and has been for so many seconds.
    #[track_caller]
    fn once(&self, status: &str, seconds: u64) -> Value {
        self.env.once(NAME, &format!("was {status} for {seconds} s"), |server| {
            let shown = server["reason"].as_str().unwrap();
            server["status"] == status && seconds_in(shown) >= seconds
        })
    }

    /// Lets what waits for the fifo continue.
    fn release(&self) {
        fs::File::options().write(true).open(&self.release).unwrap().write_all(b"x").unwrap();
    }

    #[track_caller]
    fn assert_never_killed(&self) {
        let server = self.env.once_running(NAME, 1);
        assert_eq!(server["restarts_total"], 0, "{server}");
        assert!(self.env.events_called(NAME, "hung").is_empty());
    }

    /// A tool blocks the server; others wait, and nothing is killed.
    #[track_caller]
    fn check_blocked(&self, tool: &str, waits_for: &str) {
        thread::scope(|scope| {
            let blocked = scope.spawn(|| self.call(tool));
            // Nothing shows that it does not read until something else is sent to it.
            let server = self.once("blocked", 6);
            let silence = &server["silence"];
            assert_eq!((&silence["verdict"], &silence["call"]), (&"blocked".into(), &tool.into()));
            assert!(silence["unread_bytes"].as_u64().unwrap() > 0, "{silence}");
            if let Some(found) = silence["waits_for"].as_str() {
                assert_eq!(found, waits_for);
            }
            let held = scope.spawn(|| self.call("append"));
            self.once("blocked", 9);
            assert_eq!(self.effects(), 0);
            self.release();
            assert_eq!(blocked.join().unwrap(), "released");
            assert_eq!(held.join().unwrap(), "appended");
        });
        assert_eq!(self.effects(), 1);
        self.assert_never_killed();
    }
}

#[test]
fn a_blocked_asyncio_loop_is_not_killed() {
    Setup::python(&["--hang-after", "2s"], FAST_MCP).check_blocked("block", "pipe");
}

#[test]
fn a_python_server_that_waits_for_a_child_is_not_killed() {
    Setup::python(&["--hang-after", "2s"], FAST_MCP).check_blocked("child", "child");
}

#[test]
fn a_node_server_in_a_synchronous_child_is_not_killed() {
    let setup = Setup::new(&["--hang-after", "2s"], NODE, &["node", &tool("node")]);
    setup.check_blocked("block", "events");
}

#[test]
fn a_server_that_waits_for_a_child_that_never_ends_hangs_if_no_client_waits() {
    let setup = Setup::python(&["--hang-after", "4s"], PLAIN);
    let pid = pid_of(&setup.env.server(NAME));
    assert_eq!(setup.call("orphan"), "answered");
    assert_eq!(setup.call("append"), "appended");
    let server = setup.env.once_running(NAME, 2);
    assert_eq!((&server["last_exit"]["cause"], setup.effects()), (&"hung".into(), 1));
    assert_ne!(pid_of(&server), pid);
    let log = setup.env.ok(["logs", NAME]);
    assert!(log.contains(&format!("(cat), child of {pid}")), "{log}");
    let hung = setup.env.events_called(NAME, "hung");
    let detail = hung[0]["detail"].as_str().unwrap();
    for evidence in
        ["bytes unread", "oldest call: `append`", "no answer to `ping` and `tools/list`"]
    {
        assert!(detail.contains(evidence), "{detail}");
    }
}

#[test]
fn a_server_that_floods_its_output_is_not_killed() {
    let setup = Setup::python(&["--hang-after", "2s"], PLAIN);
    assert_eq!(setup.call("flood").len(), 3_000_000);
    assert_eq!(setup.call("append"), "appended");
    setup.assert_never_killed();
}

#[test]
fn a_server_whose_output_pipe_is_full_is_not_killed() {
    let setup = Setup::python(&["--hang-after", "2s"], PLAIN);
    let server = setup.env.server(NAME);
    let (pid, shim) = (pid_of(&server), shim_of(&server));
    thread::scope(|scope| {
        let flood = scope.spawn(|| setup.call("flood-later"));
        let mut release = fs::File::options().write(true).open(&setup.release).unwrap();
        // From now on nobody reads what it writes.
        kill(shim, Signal::STOP);
        release.write_all(b"x").unwrap();
        drop(release);
        until("its output pipe is full", || {
            let waits_in = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap();
            waits_in.contains("pipe_write").then_some(())
        });
        thread::sleep(Duration::from_secs(6));
        kill(shim, Signal::CONT);
        assert_eq!(flood.join().unwrap().len(), 3_000_000);
    });
    assert_eq!(setup.call("append"), "appended");
    setup.assert_never_killed();
}

#[test]
fn a_call_that_is_read_and_never_answered_is_overdue_and_kills_nothing() {
    let setup = Setup::python(&["--hang-after", "2s"], PLAIN);
    thread::scope(|scope| {
        let lost = scope.spawn(|| setup.env.run(["call", NAME, "ignore", "--timeout", "9s"]));
        let server = setup.once("running", 5);
        let silence = &server["silence"];
        assert_eq!((&silence["verdict"], &silence["call"]), (&"overdue".into(), &"ignore".into()));
        assert_eq!((&silence["unread_bytes"], &silence["overdue_calls"]), (&0.into(), &1.into()));
        assert_eq!(setup.call("append"), "appended");
        let output = lost.join().unwrap();
        assert!(output.to_string().contains("has not answered within 9 s"), "{output}");
    });
    setup.assert_never_killed();
}

#[test]
fn a_server_that_sends_messages_and_reads_nothing_is_busy() {
    let setup = Setup::python(&["--hang-after", "2s"], PLAIN);
    assert_eq!(setup.call("chat"), "chatting");
    thread::scope(|scope| {
        let held = scope.spawn(|| setup.call("append"));
        let server = setup.once("busy", 6);
        assert_eq!(server["silence"]["holds_requests"], true, "{server}");
        fs::write(format!("{}.go", setup.release), "").unwrap();
        assert_eq!(held.join().unwrap(), "appended");
    });
    setup.assert_never_killed();
}

#[test]
fn a_server_that_writes_to_a_disk_is_not_killed() {
    let setup = Setup::python(&["--hang-after", "2s"], PLAIN);
    thread::scope(|scope| {
        let writing = scope.spawn(|| setup.call("fsync"));
        let held = scope.spawn(|| setup.call("append"));
        setup.env.once(NAME, "was busy or blocked", |server| {
            let is_silent = server["status"] == "busy" || server["status"] == "blocked";
            is_silent && seconds_in(server["reason"].as_str().unwrap()) >= 6
        });
        fs::write(format!("{}.go", setup.release), "").unwrap();
        assert_eq!(writing.join().unwrap(), "written");
        assert_eq!(held.join().unwrap(), "appended");
    });
    setup.assert_never_killed();
}
