//! Clients that abandon their sessions.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture, free_port, kill, pid_of, until_dead};
use crate::proxy::raw::{BOTH, JSON, Raw, parts, request};

/// More sessions than stay in memory.
const FLOOD: usize = 4_300;

/// One connection on which a client sends one message after the other.
struct Flooder {
    connection: BufReader<TcpStream>,
    address: String,
    path: String,
}

impl Flooder {
    fn new(url: &str) -> Self {
        let (address, path) = parts(url);
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { connection: BufReader::new(stream), address, path }
    }

    /// Sends `initialize`, and gives the id of the session.
    fn opens(&mut self) -> String {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "flood", "version": "1"}});
        let (status, id) = self.posts(None, &request(1, "initialize", &params));
        assert_eq!(status, 200);
        id.expect("every `initialize` opens a session")
    }

    /// Sends `initialize` and `initialized`.
    fn opens_completely(&mut self) -> String {
        let id = self.opens();
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.posts(Some(&id), &initialized).0, 202);
        id
    }

    /// The status of the response, and the session that it names.
    fn posts(&mut self, session: Option<&str>, message: &Value) -> (u16, Option<String>) {
        let (address, path, body) = (&self.address, &self.path, message.to_string());
        let session = session.map_or(String::new(), |id| format!("Mcp-Session-Id: {id}\r\n"));
        let text = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {JSON}\r\nAccept: {BOTH}\r\n\
             {session}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.connection.get_mut().write_all(text.as_bytes()).unwrap();
        let (mut status, mut length, mut id) = (0, 0, None);
        loop {
            let mut line = String::new();
            self.connection.read_line(&mut line).unwrap();
            match line.trim_end().split_once([' ', ':']) {
                Some(("HTTP/1.1", rest)) => status = rest[..3].parse().unwrap(),
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().unwrap();
                }
                Some((name, value)) if name.eq_ignore_ascii_case("mcp-session-id") => {
                    id = Some(value.trim().to_owned());
                }
                Some(_) => {}
                None => break,
            }
        }
        self.connection.read_exact(&mut vec![0; length]).unwrap();
        (status, id)
    }
}

/// Asserts that a call in that session is answered.
#[track_caller]
fn goes_on(url: &str, id: &str) {
    let echo = json!({"name": "echo", "arguments": {"text": "again"}});
    let (status, _) = Flooder::new(url).posts(Some(id), &request(7, "tools/call", &echo));
    assert_eq!(status, 200, "the session {id} is gone");
}

#[test]
fn a_flood_of_initialize_does_not_block_new_sessions() {
    let env = TestEnv::new();
    let url = env.run_server("fx", &[], &[&fixture()])["url"].as_str().unwrap().to_owned();
    let mut bystander = Bystander::of(&env, "fx");
    let absent = Raw::open(&url);
    let mut flooder = Flooder::new(&url);
    let flood: Vec<_> = bystander.during(format!("{FLOOD} sessions that are not used"), || {
        (0..FLOOD).map(|_| flooder.opens()).collect()
    });
    let in_memory = env.server("fx")["sessions"].as_u64().unwrap();
    assert!(in_memory < 4_096, "{in_memory}");
    Bystander::of(&env, "fx").is_served();
    let connected = env.run_with_input(
        ["connect", "fx"],
        &format!(
            "{}\n",
            request(
                1,
                "initialize",
                &json!({"protocolVersion": "2025-11-25",
            "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}})
            )
        ),
    );
    assert!(connected.stdout.contains("serverInfo"), "{}", connected.stderr);

    // After restarts of the daemon all sessions continue, including those on disk.
    let mut check = |case: &str| {
        bystander.during(format!("sessions are loaded from disk, {case}"), || {
            for id in [&*absent.id, &flood[0], &flood[1], &flood[FLOOD - 1]] {
                goes_on(&url, id);
            }
        });
    };
    check("first daemon");
    let daemon = env.daemon();
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    check("after a kill");
    env.ok(["daemon", "reload"]);
    check("after a reload");
    goes_on(&url, &flood[FLOOD / 2]);
    assert_eq!(absent.delete(), 204);
    assert_eq!(Flooder::new(&url).posts(Some(&absent.id), &request(1, "ping", &json!({}))).0, 404);
}

#[test]
fn more_sessions_than_are_kept_in_memory_all_survive() {
    let env = TestEnv::new();
    let url = env.run_server("fx", &[], &[&fixture()])["url"].as_str().unwrap().to_owned();
    let mut bystander = Bystander::of(&env, "fx");
    let mut flooder = Flooder::new(&url);
    let sessions: Vec<_> = bystander.during(format!("{FLOOD} complete sessions"), || {
        (0..FLOOD).map(|_| flooder.opens_completely()).collect()
    });
    bystander.during("calls in sessions on disk", || {
        sessions.iter().step_by(100).for_each(|id| goes_on(&url, id));
    });
    // A session on disk can be ended, and is gone then.
    let parked = Raw { id: sessions[1].clone(), ..Raw::open(&url) };
    assert_eq!((parked.delete(), parked.delete()), (204, 404));
}

/// A server that takes 20 ms for each `initialize` would need four seconds for them.
#[test]
fn abandoned_sessions_do_not_delay_the_restart_of_an_http_server() {
    const GONE: usize = 200;
    let env = TestEnv::new();
    let record = env.root().join("record");
    let port = free_port();
    let (address, target) = (format!("127.0.0.1:{port}"), port.to_string());
    let options = ["--transport", "streamable-http", "--target-port", &target];
    let flags = ["--http", &address, "--ready-after", "20", "--record", record.to_str().unwrap()];
    let server = env.run_server("fx", &options, &[&[&*fixture()], &flags[..]].concat());
    let url = server["url"].as_str().unwrap().to_owned();
    let mut flooder = Flooder::new(&url);
    let mut live = Bystander::of(&env, "fx");
    live.during("200 clients of an HTTP server that open a session and leave", || {
        for _ in 0..GONE {
            let id = flooder.opens_completely();
            goes_on(&url, &id);
        }
    });
    drop(flooder);
    let opened = || {
        let record = fs::read_to_string(&record).unwrap();
        record.lines().filter(|line| line.contains(r#""method":"initialize""#)).count()
    };
    let before = opened();
    assert!(before > GONE, "each client had a session with the server: {before}");
    live.during("an HTTP server with 200 absent clients is killed", || {
        kill(pid_of(&server), Signal::KILL);
        env.once_running("fx", 2);
    });
    let since = opened() - before;
    assert!(since <= 5, "{since} sessions were opened again");
}
