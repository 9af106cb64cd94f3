//! Connections of HTTP clients stay open when the daemon is killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::setup::{Blow, Setup};
use crate::env::{LIMIT, kill, until, until_dead};
use crate::proxy::raw::{call, parts};

/// One connection for all requests of a session. Nothing is ever tried again.
struct Connection {
    io: BufReader<TcpStream>,
    host: String,
    path: String,
    session: String,
    is_used: bool,
}

impl Connection {
    fn open(setup: &Setup) -> Self {
        let (host, path) = parts(&setup.url);
        let io = TcpStream::connect(&host).unwrap();
        io.set_read_timeout(Some(LIMIT)).unwrap();
        let session = setup.raw().id;
        Self { io: BufReader::new(io), host, path, session, is_used: false }
    }

    fn send(&mut self, message: &Value) {
        let Self { host, path, session, .. } = self;
        let body = message.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nMcp-Session-Id: {session}\r\n\
             Accept: application/json\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.io.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// Reads a response, before which the connection must not be closed, unless it has just been opened. `None` if it
    /// has no answer or is cut.
    fn read(&mut self) -> Option<Value> {
        let mut head = Vec::new();
        loop {
            match self.line() {
                Some(line) if line.is_empty() => break,
                Some(line) => head.push(line),
                None => {
                    assert!(!self.is_used, "the connection was closed");
                    return None;
                }
            }
        }
        self.is_used = true;
        let header = |name| head.iter().find_map(|line| line.strip_prefix(name));
        let mut body = Vec::new();
        if let Some(length) = header("content-length: ") {
            body = self.bytes(length.parse().unwrap())?;
        } else if header("transfer-encoding: ") == Some("chunked") {
            loop {
                let chunk = usize::from_str_radix(&self.line()?, 16).unwrap();
                body.extend(self.bytes(chunk)?);
                self.line()?;
                if chunk == 0 {
                    break;
                }
            }
        } else {
            assert_eq!(head[0], "HTTP/1.0 200 OK");
            return None;
        }
        if header("connection: ") == Some("close") {
            assert_eq!(self.line(), None, "it is closed");
            self.reopen();
        }
        Some(serde_json::from_slice(&body).unwrap())
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.io.read_line(&mut line);
        (read.unwrap_or_default() > 0).then(|| line.trim_end().to_owned())
    }

    fn bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.io.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn echo(&mut self, id: u64) -> Option<Value> {
        self.send(&call(id, "echo", &json!({"text": "hello"})));
        self.read()
    }

    fn reopen(&mut self) {
        let io = TcpStream::connect(&self.host).unwrap();
        io.set_read_timeout(Some(LIMIT)).unwrap();
        self.io = BufReader::new(io);
        self.is_used = false;
    }
}

#[test]
fn an_idle_connection_survives_kills() {
    let setup = Setup::new(&[], &[]);
    let mut connection = Connection::open(&setup);
    for id in 1..=3 {
        assert_eq!(connection.echo(id).unwrap()["result"]["content"][0]["text"], "hello");
        Blow::Kill.strike(&setup.env);
    }
    Blow::Reload.strike(&setup.env);
    assert_eq!(connection.echo(4).unwrap()["id"], 4);
    setup.assert_server_kept();
}

#[test]
fn a_request_that_was_not_read_is_served_by_the_next_daemon() {
    let setup = Setup::new(&[], &[]);
    let mut connection = Connection::open(&setup);
    connection.echo(1).unwrap();
    let (daemon, _) = setup.mainstay();
    kill(daemon, Signal::STOP);
    connection.send(&call(2, "echo", &json!({"text": "hello"})));
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    assert_eq!(connection.read().unwrap()["result"]["content"][0]["text"], "hello");
}

/// Two kills, because the daemon in between only continues what another one has begun.
#[test]
fn a_slow_call_is_answered_on_its_connection_after_kills() {
    let setup = Setup::new(&[], &[]);
    let mut connection = Connection::open(&setup);
    connection.echo(1).unwrap();
    connection.send(&call(2, "sleep", &json!({"ms": 3000})));
    until("the head is sent", || {
        connection.io.get_ref().set_nonblocking(true).unwrap();
        let head = connection.io.get_ref().peek(&mut [0]);
        connection.io.get_ref().set_nonblocking(false).unwrap();
        head.is_ok().then_some(())
    });
    for _ in 0..2 {
        Blow::Kill.strike(&setup.env);
    }
    let answer = connection.read().unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "slept 3000 ms", "{answer}");
    assert_eq!(connection.echo(3).unwrap()["id"], 3, "the connection is used again");
    setup.assert_server_kept();
}

/// Also of the holder, which then has no copies of connections until they are used again. Calls that take longer than
/// usual may be cut, after the head of their response.
#[test]
fn no_connection_is_closed_instead_of_a_response() {
    const KILLS: usize = 8;
    let setup = Setup::new(&[], &[]);
    let mut connection = Connection::open(&setup);
    connection.echo(1).unwrap();
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(1));
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let (mut errors, mut cut) = (Vec::new(), 0);
            for id in 2.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let Some(answer) = connection.echo(id) else {
                    cut += 1;
                    connection.reopen();
                    continue;
                };
                assert_eq!(answer["id"], id, "{answer}");
                answered.store(id, Ordering::Relaxed);
                errors.extend(answer.get("error").map(|error| error["message"].to_string()));
            }
            (errors, cut)
        });
        for kills in 0..KILLS {
            if kills == KILLS / 2 {
                let (_, holder) = setup.mainstay();
                kill(holder, Signal::KILL);
                until("there is another holder", || (setup.mainstay().1 != holder).then_some(()));
                let before = answered.load(Ordering::Relaxed);
                until("the connection is used again", || {
                    (answered.load(Ordering::Relaxed) > before + 2).then_some(())
                });
            }
            Blow::Kill.strike(&setup.env);
        }
        stop.store(true, Ordering::Relaxed);
        let (errors, cut) = calls.join().unwrap();
        assert!(errors.len() + cut <= KILLS + 1, "{errors:?} {cut}");
        let is_expected = |error: &String| error.contains("its effect is unknown");
        assert!(errors.iter().all(is_expected), "{errors:?}");
    });
    setup.assert_server_kept();
}
