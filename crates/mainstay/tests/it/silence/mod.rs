//! Servers that do not answer: what is shown about them, which of them are killed, and what becomes of calls.

mod calls;
mod http;
mod sdk_timeouts;
mod servers;
mod starts;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, kill, pid_of};
use crate::proxy::client::text_of;
use crate::proxy::raw::{Raw, call};
use crate::real_servers::tool;

const NAME: &str = "silent";

/// A server that reads one line at a time and no more.
const SERVER: &str = r#"
import json, os, sys, threading
lines, effects, fifo, flags = open(0, "rb", buffering=0), sys.argv[1], sys.argv[2], sys.argv[3:]
sending = threading.Lock()
def answer(id, result):
    with sending:
        print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
def text(id, text):
    answer(id, {"content": [{"type": "text", "text": text}]})
def wait(id):
    open(fifo).read()
    text(id, "waited")
for line in lines:
    message = json.loads(line)
    id, method = message.get("id"), message["method"]
    if method == "initialize":
        info = {"name": "silent", "version": "1"}
        version = message["params"]["protocolVersion"]
        answer(id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        names = ["append", "deadlock", "spin", "wait"]
        answer(id, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
    elif method == "ping" and "no-ping" not in flags:
        answer(id, {})
    elif method == "notifications/cancelled" and "note-cancels" in flags:
        with open(effects, "a") as file:
            file.write("cancelled\n")
    elif method == "tools/call":
        name = message["params"]["name"]
        if name == "append":
            with open(effects, "a") as file:
                file.write("x\n")
            text(id, "appended")
        elif name == "deadlock":
            text(id, "never again")
            never = threading.Lock()
            never.acquire()
            never.acquire()
        elif name == "spin":
            while not os.path.exists(effects):
                pass
            text(id, "spun")
        elif "threads" in flags:
            threading.Thread(target=wait, args=(id,)).start()
        else:
            wait(id)
"#;

struct Setup {
    env: TestEnv,
    effects: PathBuf,
    fifo: PathBuf,
}

impl Setup {
    fn new(options: &[&str], flags: &[&str]) -> Self {
        let (setup, command) = Self::prepared(SERVER, &[], flags);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        setup.env.run_server(NAME, options, &words);
        setup
    }

    /// The files of a server, and the command that starts it: with these words, its two files, and flags.
    fn prepared(server: &str, words: &[&str], flags: &[&str]) -> (Self, Vec<String>) {
        let env = TestEnv::new();
        let script = env.write("server.py", server);
        let (effects, fifo) = (env.work().join("effects"), env.work().join("fifo"));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let mut command = vec![tool("python/bin/python"), path(&script)];
        command.extend(words.iter().map(|word| (*word).to_owned()));
        command.extend([path(&effects), path(&fifo)]);
        command.extend(flags.iter().map(|flag| (*flag).to_owned()));
        (Self { env, effects, fifo }, command)
    }

    /// What a tool answers, without the notice of a restart.
    fn call(&self, tool: &str) -> String {
        self.env.call(NAME, tool, "{}").lines().next().unwrap().to_owned()
    }

    #[track_caller]
    fn once(&self, status: &str, reason: &str, seconds: u64) -> Value {
        once(&self.env, NAME, status, reason, seconds)
    }

    /// Lets the call of `wait` end.
    fn release(&self) {
        fs::File::options().write(true).open(&self.fifo).unwrap().write_all(b"x").unwrap();
    }

    #[track_caller]
    fn assert_never_killed(&self) {
        assert_never_killed(&self.env, NAME);
    }
}

/// The server once this is its status, and its reason begins with at least so many seconds.
#[track_caller]
fn once(env: &TestEnv, name: &str, status: &str, reason: &str, seconds: u64) -> Value {
    let is_so = |server: &Value| {
        let shown = server["reason"].as_str().unwrap();
        server["status"] == status && shown.contains(reason) && seconds_in(shown) >= seconds
    };
    env.once(name, &format!("was {status}: {reason}"), is_so)
}

#[track_caller]
fn assert_never_killed(env: &TestEnv, name: &str) {
    let server = env.once_running(name, 1);
    assert_eq!(server["restarts_total"], 0, "{server}");
    assert!(env.events_called(name, "hung").is_empty());
}

/// The first number of seconds in a text.
fn seconds_in(text: &str) -> u64 {
    let words: Vec<&str> = text.split([' ', ';', ',']).collect();
    let seconds = words.windows(2).find(|pair| pair[1] == "s");
    seconds.map_or(0, |pair| pair[0].parse().unwrap())
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn a_deadlock_is_killed_and_the_unread_call_is_executed_once() {
    let setup = Setup::new(&["--hang-after", "4s"], &[]);
    assert_eq!(setup.call("deadlock"), "never again");
    assert_eq!(setup.call("append"), "appended");
    assert_eq!(lines(&setup.effects), 1);
    let server = setup.env.once_running(NAME, 2);
    assert_eq!((&server["restarts"], &server["last_exit"]["cause"]), (&1.into(), &"hung".into()));
    let hung = setup.env.events_called(NAME, "hung");
    let detail = hung[0]["detail"].as_str().unwrap();
    assert!(detail.contains("none of its threads ran"), "{detail}");
    assert_eq!(hung.len(), 1);
    let log = setup.env.ok(["logs", NAME]);
    assert!(log.contains("what its processes wait for:"), "{log}");
    assert!(log.contains("thread "), "{log}");
}

#[test]
fn a_deadlock_is_found_although_every_call_has_a_short_limit() {
    let setup = Setup::new(&["--hang-after", "4s", "--call-timeout", "1s"], &[]);
    assert_eq!(setup.call("deadlock"), "never again");
    let output = setup.env.run(["call", NAME, "append", "{}"]);
    assert!(output.stderr.contains("no answer from `silent` within 1 s"), "{output}");
    // Nobody waits for anything any more.
    setup.env.once_running(NAME, 2);
    assert_eq!(setup.env.events_called(NAME, "hung").len(), 1);
    assert_eq!(lines(&setup.effects), 0);
    assert_eq!(setup.call("append"), "appended");
    assert_eq!(lines(&setup.effects), 1);
}

#[test]
fn a_deadlock_is_found_by_the_next_daemon_although_nobody_waits() {
    for restart in [reload, kill_daemon] {
        let setup = Setup::new(&["--hang-after", "4s", "--call-timeout", "1s"], &[]);
        assert_eq!(setup.call("deadlock"), "never again");
        assert_ne!(setup.env.run(["call", NAME, "append", "{}"]).code, 0);
        restart(&setup.env);
        setup.env.once_running(NAME, 2);
        assert_eq!(setup.env.events_called(NAME, "hung").len(), 1);
    }
}

fn reload(env: &TestEnv) {
    env.ok(["daemon", "reload"]);
}

fn kill_daemon(env: &TestEnv) {
    kill(env.daemon(), Signal::KILL);
}

#[test]
fn a_suspended_server_is_never_killed_and_answers_everything_later() {
    let setup = Setup::new(&["--hang-after", "2s"], &[]);
    let pid = pid_of(&setup.env.server(NAME));
    kill(pid, Signal::STOP);
    thread::scope(|scope| {
        let first = scope.spawn(|| setup.call("append"));
        setup.once("suspended", "is stopped (SIGSTOP", 6);
        let second = scope.spawn(|| setup.call("append"));
        let why = setup.env.ok(["why", NAME]);
        assert!(why.contains("It is never killed for this."), "{why}");
        assert!(why.contains(&format!("`kill -CONT {pid}`")), "{why}");
        kill(pid, Signal::CONT);
        assert_eq!([first, second].map(|call| call.join().unwrap()), ["appended", "appended"]);
    });
    assert_eq!(lines(&setup.effects), 2);
    setup.assert_never_killed();
    assert_eq!(setup.env.events_called(NAME, "suspended").len(), 1);
}

#[test]
fn a_busy_server_is_not_killed() {
    let setup = Setup::new(&["--hang-after", "2s"], &[]);
    thread::scope(|scope| {
        let spinning = scope.spawn(|| setup.call("spin"));
        setup.once("busy", "it is working, and has read nothing", 6);
        fs::write(&setup.effects, "").unwrap();
        assert_eq!(spinning.join().unwrap(), "spun");
    });
    assert_eq!(setup.call("append"), "appended");
    setup.assert_never_killed();
}

#[test]
fn a_server_inside_a_call_is_blocked_and_other_calls_wait() {
    let setup = Setup::new(&["--hang-after", "2s"], &[]);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| setup.call("wait"));
        setup.once("blocked", "blocked in `wait` for", 6);
        let held = scope.spawn(|| setup.call("append"));
        setup.once("blocked", "blocked in `wait` for", 8);
        assert_eq!(lines(&setup.effects), 0);
        setup.release();
        assert_eq!(blocked.join().unwrap(), "waited");
        assert_eq!(held.join().unwrap(), "appended");
    });
    assert_eq!(lines(&setup.effects), 1);
    setup.assert_never_killed();
}

#[test]
fn a_blocked_server_is_not_killed_by_the_next_daemon() {
    let setup = Setup::new(&["--hang-after", "2s"], &[]);
    let session = Raw::open(setup.env.server(NAME)["url"].as_str().unwrap());
    thread::scope(|scope| {
        let blocked = scope.spawn(|| session.answered(&call(1, "wait", &json!({}))));
        setup.once("blocked", "blocked in `wait` for", 0);
        setup.env.ok(["daemon", "reload"]);
        setup.once("blocked", "blocked in `wait` for", 6);
        setup.release();
        assert_eq!(text_of(&blocked.join().unwrap()["result"], 0), "waited");
    });
    setup.assert_never_killed();
}

#[test]
fn a_blocked_server_is_killed_by_its_limit() {
    let setup = Setup::new(&["--hang-after", "2s", "--block-limit", "10s"], &[]);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| setup.env.run(["call", NAME, "wait", "{}"]));
        setup.once("blocked", "blocked in `wait` for", 0);
        assert_eq!(setup.call("append"), "appended");
        let output = blocked.join().unwrap();
        assert_ne!(output.code, 0, "{output}");
    });
    assert_eq!(lines(&setup.effects), 1);
    let hung = setup.env.events_called(NAME, "hung");
    assert!(hung[0]["detail"].as_str().unwrap().contains("(--block-limit)"), "{hung:?}");
}

#[test]
fn a_server_that_ignores_pings_is_not_killed() {
    let setup = Setup::new(&["--hang-after", "2s"], &["no-ping", "threads"]);
    thread::scope(|scope| {
        let slow = scope.spawn(|| setup.call("wait"));
        setup.once("running", "1 call overdue: no answer to `wait`", 6);
        assert_eq!(setup.call("append"), "appended");
        setup.once("running", "1 call overdue: no answer to `wait`", 12);
        setup.release();
        assert_eq!(slow.join().unwrap(), "waited");
    });
    setup.assert_never_killed();
}
