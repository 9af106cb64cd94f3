//! Requests of which a daemon has read only a part when it is replaced.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use super::setup::{NAME, Setup};
use crate::env::until;
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, JSON, Raw, call, parts};

/// No half is waited for longer.
const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn a_request_with_half_a_body_at_a_reload_is_answered() {
    answered(|head, body| head + body / 2);
}

#[test]
fn a_request_with_half_a_head_at_a_reload_is_answered() {
    answered(|head, _| head / 2);
}

/// Sends a part of a request, whose length `part` computes from the lengths of head and body, and the rest when the
/// daemon has begun to hand over.
fn answered(part: fn(usize, usize) -> usize) {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    let (head, body) = request(&setup, &session);
    let text = [&*head, &*body].concat();
    let (first, rest) = text.split_at(part(head.len(), body.len()));
    let mut stream = TcpStream::connect(setup.address()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(first.as_bytes()).unwrap();
    // Later requests are read later, so the daemon has read that part now.
    session.ask(1, "ping", &json!({}));

    let mut reload = setup.env.command(["daemon", "reload"]);
    let mut reload = reload.stderr(Stdio::null()).spawn().unwrap();
    let log = setup.env.mainstay_home().join("state/daemon.log");
    until("the daemon gives way", || {
        fs::read_to_string(&log).unwrap_or_default().contains("daemon ends").then_some(())
    });
    stream.write_all(rest.as_bytes()).expect("the connection is still there");
    let response = read(&stream);
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let answered = response.contains(r#""text":"1""#) || {
        let last = response.lines().rev().find_map(|line| line.strip_prefix("id: "));
        let answer = session.get(Some(last.expect("an id to resume from"))).answer();
        assert!(answer["result"].is_object(), "{response} then {answer}");
        text_of(&answer["result"], 0) == "1"
    };
    assert!(answered, "{response}");
    assert!(reload.wait().unwrap().success());
    assert_eq!(setup.env.call(NAME, "count", "{}"), "2", "it was executed once");
}

/// A response, as text, to its end: that of a stream, or that of one JSON object.
fn read(stream: &TcpStream) -> String {
    const LENGTH: &str = "content-length: ";
    let mut reader = BufReader::new(stream);
    let mut response = String::new();
    while !response.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut response).unwrap(), 0, "no head: `{response}`");
    }
    if let Some(length) = response.lines().find_map(|line| line.strip_prefix(LENGTH)) {
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        return response + str::from_utf8(&body).unwrap();
    }
    while !response.ends_with("\r\n0\r\n\r\n") {
        assert_ne!(reader.read_line(&mut response).unwrap(), 0, "no end: `{response}`");
    }
    response
}

/// The head and the body of a call that counts.
fn request(setup: &Setup, session: &Raw) -> (String, String) {
    let body = call(7, "count", &json!({})).to_string();
    let (address, path) = parts(&setup.url);
    let (id, length) = (&session.id, body.len());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {JSON}\r\nAccept: {BOTH}\r\n\
         Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    (head, body)
}
