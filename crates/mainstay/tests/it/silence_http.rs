//! Servers that speak HTTP and do not answer, on this machine and elsewhere.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, fixture, free_port, kill, pid_of, until};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, Raw, call};
use crate::real_servers::tool;

const NAME: &str = "silent";

/// A server with one thread, or one for each connection.
const SERVER: &str = r#"
import http.server, json, os, sys, threading
port, effects, fifo, flags = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
def text(text):
    return {"content": [{"type": "text", "text": text}]}
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass
    def do_GET(self):
        self.send_error(405)
    do_DELETE = do_GET
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        id, method = message.get("id"), message["method"]
        params = message.get("params", {})
        if id is None:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        result = {}
        if method == "initialize":
            info = {"name": "silent", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"],
                      "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            names = ["append", "deadlock", "spin", "wait"]
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        elif method == "ping" and "no-ping" in flags:
            with open(effects, "a") as file:
                file.write("ping\n")
            threading.Event().wait()
        elif method == "tools/call":
            result = text(self.call(params["name"]))
        body = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if params.get("name") == "deadlock":
            never = threading.Lock()
            never.acquire()
            never.acquire()
    def call(self, name):
        if name == "append":
            with open(effects, "a") as file:
                file.write("x\n")
        elif name == "spin":
            while not os.path.exists(effects):
                pass
        elif name == "wait":
            open(fifo).read()
        return name
kind = http.server.ThreadingHTTPServer if "threads" in flags else http.server.HTTPServer
kind(("127.0.0.1", port), Handler).serve_forever()
"#;

struct Setup {
    env: TestEnv,
    effects: PathBuf,
    fifo: PathBuf,
}

impl Setup {
    fn new(options: &[&str], flags: &[&str]) -> Self {
        let (setup, command) = Self::prepare(flags);
        let (port, command) = command.split_first().unwrap();
        let http = ["--transport", "streamable-http", "--target-port", port];
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        setup.env.run_server(NAME, &[&http[..], options].concat(), &words);
        setup
    }

    /// The files of a server, its port, and the command that starts it.
    fn prepare(flags: &[&str]) -> (Self, Vec<String>) {
        let env = TestEnv::new();
        let script = env.write("server.py", SERVER);
        let (effects, fifo) = (env.work().join("effects"), env.work().join("fifo"));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let port = free_port().to_string();
        let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let mut command = vec![port.clone(), tool("python/bin/python"), path(&script), port];
        command.extend([path(&effects), path(&fifo)]);
        command.extend(flags.iter().map(|flag| (*flag).to_owned()));
        (Self { env, effects, fifo }, command)
    }

    fn call(&self, tool: &str) -> String {
        self.env.call(NAME, tool, "{}").lines().next().unwrap().to_owned()
    }

    #[track_caller]
    fn once(&self, status: &str, reason: &str, seconds: u64) -> Value {
        once(&self.env, NAME, status, reason, seconds)
    }

    fn release(&self) {
        fs::File::options().write(true).open(&self.fifo).unwrap().write_all(b"x").unwrap();
    }

    fn effects(&self) -> usize {
        fs::read_to_string(&self.effects).unwrap_or_default().lines().count()
    }

    #[track_caller]
    fn assert_never_killed(&self) {
        assert_never_killed(&self.env, NAME);
    }
}

/// The server once this is its status, and its reason ends with at least so many seconds.
#[track_caller]
fn once(env: &TestEnv, name: &str, status: &str, reason: &str, seconds: u64) -> Value {
    let is_so = |server: &Value| {
        let shown = server["reason"].as_str().unwrap();
        let words: Vec<&str> = shown.split([' ', ';', ',']).collect();
        let last = words.windows(2).rev().find(|pair| pair[1] == "s");
        let passed = last.map_or(0, |pair| pair[0].parse().unwrap());
        server["status"] == status && shown.contains(reason) && passed >= seconds
    };
    env.once(name, &format!("was {status}: {reason}"), is_so)
}

#[track_caller]
fn assert_never_killed(env: &TestEnv, name: &str) {
    let server = env.once_running(name, 1);
    assert_eq!(server["restarts_total"], 0, "{server}");
    assert!(env.events_called(name, "hung").is_empty());
}

#[test]
fn a_deadlock_is_killed_and_the_server_is_restarted() {
    let setup = Setup::new(&["--hang-after", "4s"], &[]);
    let session = Raw::open(setup.env.server(NAME)["url"].as_str().unwrap());
    let parked = session.answered(&call(1, "deadlock", &json!({})));
    assert_eq!(text_of(&parked["result"], 0), "deadlock");
    let answer = session.answered(&call(2, "append", &json!({})));
    assert!(answer.to_string().contains("its effect is unknown"), "it was sent: {answer}");
    let server = setup.env.once_running(NAME, 2);
    assert_eq!((&server["restarts"], &server["last_exit"]["cause"]), (&1.into(), &"hung".into()));
    let hung = setup.env.events_called(NAME, "hung");
    let detail = hung[0]["detail"].as_str().unwrap();
    assert!(detail.contains("none of its threads ran"), "{detail}");
    let log = setup.env.ok(["logs", NAME]);
    assert!(log.contains("what its processes wait for:") && log.contains("thread "), "{log}");
    assert_eq!((setup.call("append"), setup.effects()), ("append".to_owned(), 1));
}

#[test]
fn a_suspended_server_is_never_killed_and_answers_everything_later() {
    let setup = Setup::new(&["--hang-after", "2s"], &[]);
    let pid = pid_of(&setup.env.server(NAME));
    kill(pid, Signal::STOP);
    thread::scope(|scope| {
        let first = scope.spawn(|| setup.call("append"));
        setup.once("suspended", "its process is stopped", 6);
        let second = scope.spawn(|| setup.call("append"));
        setup.once("suspended", "its process is stopped", 8);
        kill(pid, Signal::CONT);
        assert_eq!([first, second].map(|call| call.join().unwrap()), ["append", "append"]);
    });
    assert_eq!(setup.effects(), 2);
    setup.assert_never_killed();
}

#[test]
fn a_busy_server_is_not_killed() {
    let setup = Setup::new(&["--hang-after", "2s"], &[]);
    thread::scope(|scope| {
        let spinning = scope.spawn(|| setup.call("spin"));
        setup.once("busy", "it is working, and has read nothing", 6);
        fs::write(&setup.effects, "").unwrap();
        assert_eq!(spinning.join().unwrap(), "spin");
    });
    setup.assert_never_killed();
}

#[test]
fn a_server_inside_a_call_is_blocked_and_other_calls_wait() {
    let setup = Setup::new(&["--hang-after", "2s"], &[]);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| setup.call("wait"));
        setup.once("blocked", "blocked in wait for", 6);
        let held = scope.spawn(|| setup.call("append"));
        setup.once("blocked", "blocked in wait for", 8);
        assert_eq!(setup.effects(), 0);
        setup.release();
        assert_eq!([blocked, held].map(|call| call.join().unwrap()), ["wait", "append"]);
    });
    assert_eq!(setup.effects(), 1);
    setup.assert_never_killed();
}

#[test]
fn a_lost_answer_is_one_overdue_call() {
    let setup = Setup::new(&["--hang-after", "2s"], &["threads"]);
    thread::scope(|scope| {
        let lost = scope.spawn(|| setup.call("wait"));
        setup.once("running", "1 call overdue: no answer to wait", 6);
        assert_eq!(setup.call("append"), "append");
        setup.once("running", "1 call overdue: no answer to wait", 12);
        setup.release();
        assert_eq!(lost.join().unwrap(), "wait");
    });
    setup.assert_never_killed();
}

#[test]
fn a_server_that_ignores_pings_is_not_killed_and_not_pinged_by_the_next_daemon() {
    let setup = Setup::new(&["--hang-after", "2s"], &["threads", "no-ping"]);
    for _ in 0..2 {
        thread::scope(|scope| {
            let slow = scope.spawn(|| setup.call("wait"));
            setup.once("running", "1 call overdue: no answer to wait", 12);
            setup.release();
            assert_eq!(slow.join().unwrap(), "wait");
        });
        assert_eq!(setup.effects(), 1, "it was pinged once");
        setup.env.ok(["daemon", "reload"]);
    }
    setup.assert_never_killed();
}

/// A server that someone else has started.
struct Elsewhere(Child);

impl Elsewhere {
    fn start(port: u16, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Self(command.spawn().unwrap());
        until("it listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        started
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_remote_server_that_is_silent_is_unresponsive_until_it_answers_again() {
    let (setup, command) = Setup::prepare(&["threads"]);
    let port = command[0].parse().unwrap();
    let words: Vec<&str> = command[2..].iter().map(String::as_str).collect();
    let elsewhere = Elsewhere::start(port, &command[1], &words);
    let url = format!("http://127.0.0.1:{port}/mcp");
    setup.env.ok(["run", NAME, "--url", &url, "--hang-after", "2s", "--wait"]);
    setup.env.run_server("other", &[], &[&fixture()]);
    let pid = elsewhere.0.id();
    kill(pid, Signal::STOP);
    thread::scope(|scope| {
        let first = scope.spawn(|| setup.call("append"));
        setup.once("unresponsive", "it accepts requests and has sent nothing for", 0);
        let second = scope.spawn(|| setup.call("append"));
        let why = setup.env.ok(["why", NAME]);
        assert!(why.contains("unresponsive"), "{why}");
        assert_eq!(setup.env.call("other", "echo", r#"{"text":"here"}"#), "here");
        setup.once("unresponsive", "it accepts requests and has sent nothing for", 15);
        assert_eq!(setup.effects(), 0);
        kill(pid, Signal::CONT);
        assert_eq!([first, second].map(|call| call.join().unwrap()), ["append", "append"]);
    });
    assert_eq!(setup.effects(), 2);
    setup.assert_never_killed();
    assert_eq!(setup.env.events_called(NAME, "unresponsive").len(), 1);
}

/// Forwards connections, but swallows what comes over those before a certain number.
struct Gateway {
    port: u16,
    first_alive: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl Gateway {
    fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (first_alive, accepted) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (alive, count) = (Arc::clone(&first_alive), Arc::clone(&accepted));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
                let Ok(server) = TcpStream::connect(address) else { continue };
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let alive = Arc::clone(&alive);
                    thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(read @ 1..) = from.read(&mut buffer) {
                            let is_alive = number >= alive.load(Ordering::SeqCst);
                            if is_alive && to.write_all(&buffer[..read]).is_err() {
                                break;
                            }
                        }
                    });
                }
            }
        });
        Self { port, first_alive, accepted }
    }

    /// Swallows everything from now on.
    fn swallow(&self) {
        self.first_alive.store(usize::MAX, Ordering::SeqCst);
    }

    /// Forwards connections that are made from now on.
    fn forward_new(&self) {
        self.first_alive.store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

#[test]
fn dead_connections_to_a_remote_server_are_left_behind() {
    let env = TestEnv::new();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let _server = Elsewhere::start(port, &fixture(), &["--http", &address]);
    let gateway = Gateway::to(port);
    let url = format!("http://127.0.0.1:{}/mcp", gateway.port);
    env.ok(["run", NAME, "--url", &url, "--hang-after", "2s", "--wait"]);
    let echo = || env.call(NAME, "echo", r#"{"text":"hello"}"#);
    let session = Raw::open(env.server(NAME)["url"].as_str().unwrap());
    assert_eq!(echo(), "hello");
    gateway.swallow();
    let _lost = session.post(BOTH, &call(1, "echo", &json!({"text": "lost"})));
    once(&env, NAME, "unresponsive", "it accepts requests and has sent nothing for", 0);
    thread::scope(|scope| {
        let held = scope.spawn(echo);
        gateway.forward_new();
        assert_eq!(held.join().unwrap(), "hello");
    });
    // The request that was sent may have been executed, so it stays where it is.
    once(&env, NAME, "running", "1 call overdue: no answer to echo", 0);
    assert_eq!(echo(), "hello");
    assert_never_killed(&env, NAME);
}
