//! Servers that speak HTTP and do not answer, on this machine and elsewhere.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::{NAME, Setup, assert_never_killed, lines, once};
use crate::env::{TestEnv, fixture, free_port, kill, pid_of, until};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, Raw, call};

/// A server with one thread, or one for each connection.
const SERVER: &str = r#"
import http.server, json, os, sys, threading
port, effects, fifo, flags = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
def text(text):
    return {"content": [{"type": "text", "text": text}]}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1" if "keep-alive" in flags else "HTTP/1.0"
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

impl Setup {
    fn http(options: &[&str], flags: &[&str]) -> Self {
        let (setup, command) = Self::http_prepared(flags);
        let (port, command) = command.split_first().unwrap();
        let http = ["--transport", "streamable-http", "--target-port", port];
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        setup.env.run_server(NAME, &[&http[..], options].concat(), &words);
        setup
    }

    /// The files of a server, its port, and the command that starts it.
    fn http_prepared(flags: &[&str]) -> (Self, Vec<String>) {
        let port = free_port().to_string();
        let (setup, mut command) = Self::prepared(SERVER, &[&port], flags);
        command.insert(0, port);
        (setup, command)
    }
}

#[test]
fn a_deadlock_is_killed_and_the_server_is_restarted() {
    let setup = Setup::http(&["--hang-after", "4s"], &[]);
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
    assert_eq!((setup.call("append"), lines(&setup.effects)), ("append".to_owned(), 1));
}

#[test]
fn a_deadlock_is_found_although_every_call_has_a_short_limit() {
    let setup = Setup::http(&["--hang-after", "4s", "--call-timeout", "1s"], &[]);
    let session = Raw::open(setup.env.server(NAME)["url"].as_str().unwrap());
    session.answered(&call(1, "deadlock", &json!({})));
    let answer = session.answered(&call(2, "append", &json!({})));
    let text = text_of(&answer["result"], 0);
    assert!(text.starts_with("no answer from `silent` within 1 s"), "{text}");
    // Nobody waits for anything any more.
    setup.env.once_running(NAME, 2);
    assert_eq!(setup.env.events_called(NAME, "hung").len(), 1);
    assert_eq!((lines(&setup.effects), setup.call("append")), (0, "append".to_owned()));
}

#[test]
fn a_deadlock_is_found_although_no_connection_is_accepted() {
    let (setup, command) = Setup::http_prepared(&[]);
    let (port, command) = command.split_first().unwrap();
    let options = ["--transport", "streamable-http", "--target-port", port, "--hang-after", "4s"];
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    setup.env.run_server(NAME, &options, &words);
    let session = Raw::open(setup.env.server(NAME)["url"].as_str().unwrap());
    session.answered(&call(1, "deadlock", &json!({})));
    // More than its queue has room for.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().unwrap()));
    let others: Vec<_> = (0..10)
        .map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok())
        .collect();
    assert!(others.len() < 10, "the queue is full");
    let answer = session.answered(&call(2, "append", &json!({})));
    assert_eq!(text_of(&answer["result"], 0), "append", "it was never sent: {answer}");
    assert_eq!(lines(&setup.effects), 1);
    setup.env.once_running(NAME, 2);
    assert_eq!(setup.env.events_called(NAME, "hung").len(), 1);
}

#[test]
fn a_command_has_an_idle_server_observed() {
    let setup = Setup::http(&["--hang-after", "4s"], &[]);
    let pid = pid_of(&setup.env.server(NAME));
    kill(pid, Signal::STOP);
    thread::scope(|scope| {
        let called = scope.spawn(|| setup.call("append"));
        setup.once("suspended", "is stopped (SIGSTOP", 0);
        kill(pid, Signal::CONT);
        assert_eq!(called.join().unwrap(), "append");
    });
    setup.assert_never_killed();
}

/// It accepts another connection when the client has closed the one before it.
#[test]
#[expect(clippy::disallowed_methods, reason = "that no client waits for long is what is tested")]
fn a_server_that_serves_one_connection_at_a_time_serves_all_clients() {
    let setup = Setup::http(&["--hang-after", "4s"], &["keep-alive"]);
    let url = setup.env.server(NAME)["url"].as_str().unwrap().to_owned();
    let sessions = [0, 1, 2].map(|_| Raw::open(&url));
    let begun = Instant::now();
    for round in 1..4 {
        let message = &call(round, "append", &json!({}));
        thread::scope(|scope| {
            let append = |session| scope.spawn(move || Raw::answered(session, message));
            let calls: Vec<_> = sessions.iter().map(append).collect();
            for call in calls {
                assert_eq!(text_of(&call.join().unwrap()["result"], 0), "append");
            }
        });
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(lines(&setup.effects), 9);
    assert_never_killed(&setup.env, NAME);
}

#[test]
fn a_suspended_server_is_never_killed_and_answers_everything_later() {
    let setup = Setup::http(&["--hang-after", "2s"], &[]);
    let pid = pid_of(&setup.env.server(NAME));
    kill(pid, Signal::STOP);
    thread::scope(|scope| {
        let first = scope.spawn(|| setup.call("append"));
        setup.once("suspended", "is stopped (SIGSTOP", 6);
        let second = scope.spawn(|| setup.call("append"));
        setup.once("suspended", "is stopped (SIGSTOP", 8);
        kill(pid, Signal::CONT);
        assert_eq!([first, second].map(|call| call.join().unwrap()), ["append", "append"]);
    });
    assert_eq!(lines(&setup.effects), 2);
    setup.assert_never_killed();
}

#[test]
fn a_busy_server_is_not_killed() {
    let setup = Setup::http(&["--hang-after", "2s"], &[]);
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
    let setup = Setup::http(&["--hang-after", "2s"], &[]);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| setup.call("wait"));
        setup.once("blocked", "blocked in `wait` for", 6);
        let held = scope.spawn(|| setup.call("append"));
        setup.once("blocked", "blocked in `wait` for", 8);
        assert_eq!(lines(&setup.effects), 0);
        setup.release();
        assert_eq!([blocked, held].map(|call| call.join().unwrap()), ["wait", "append"]);
    });
    assert_eq!(lines(&setup.effects), 1);
    setup.assert_never_killed();
}

#[test]
fn a_lost_answer_is_one_overdue_call() {
    let setup = Setup::http(&["--hang-after", "2s"], &["threads"]);
    thread::scope(|scope| {
        let lost = scope.spawn(|| setup.call("wait"));
        setup.once("running", "1 call overdue: no answer to `wait`", 6);
        assert_eq!(setup.call("append"), "append");
        setup.once("running", "1 call overdue: no answer to `wait`", 12);
        setup.release();
        assert_eq!(lost.join().unwrap(), "wait");
    });
    setup.assert_never_killed();
}

#[test]
fn a_server_that_ignores_pings_is_not_killed_and_not_pinged_by_the_next_daemon() {
    let setup = Setup::http(&["--hang-after", "2s"], &["threads", "no-ping"]);
    for _ in 0..2 {
        thread::scope(|scope| {
            let slow = scope.spawn(|| setup.call("wait"));
            setup.once("running", "1 call overdue: no answer to `wait`", 18);
            setup.release();
            assert_eq!(slow.join().unwrap(), "wait");
        });
        assert_eq!(lines(&setup.effects), 1, "it was pinged once");
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
    let (setup, command) = Setup::http_prepared(&["threads"]);
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
        assert_eq!(lines(&setup.effects), 0);
        kill(pid, Signal::CONT);
        assert_eq!([first, second].map(|call| call.join().unwrap()), ["append", "append"]);
    });
    assert_eq!(lines(&setup.effects), 2);
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
    once(&env, NAME, "running", "1 call overdue: no answer to `echo`", 0);
    assert_eq!(echo(), "hello");
    assert_never_killed(&env, NAME);
}
