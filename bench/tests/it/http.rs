//! The fixture over streamable HTTP, seen by a client that knows nothing but sockets.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::fixture::{Fixture, LIMIT, text};

struct Reply {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

fn exchange(to: SocketAddr, method: &str, path: &str, session: Option<&str>, body: &str) -> Reply {
    let session = session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
    exchange_with(to, method, path, &format!("Host: localhost\r\n{session}"), body)
}

fn exchange_with(to: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Reply {
    let length = body.len();
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\
         {headers}\r\n{body}"
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let pair = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    };
    Reply { status, headers: lines.map(pair).collect(), body: body.to_owned() }
}

fn post(to: SocketAddr, session: Option<&str>, method: &str, params: &Value) -> Reply {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    exchange(to, "POST", "/mcp", session, &body.to_string())
}

fn open(to: SocketAddr) -> String {
    let reply = post(to, None, "initialize", &json!({"protocolVersion": "2025-11-25"}));
    assert_eq!(reply.status, 200);
    reply.headers["mcp-session-id"].clone()
}

fn echo(to: SocketAddr, session: Option<&str>) -> Reply {
    post(to, session, "tools/call", &json!({"name": "echo", "arguments": {"text": "hi"}}))
}

#[test]
fn it_answers_over_http_within_a_session() {
    let (_fixture, to) = Fixture::start_http(&[]);
    let session = open(to);
    assert_ne!(session, open(to));
    let reply = echo(to, Some(&session));
    assert_eq!((reply.status, reply.headers["content-type"].as_str()), (200, "application/json"));
    assert_eq!(text(&serde_json::from_str(&reply.body).unwrap()), "hi");
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let reply = exchange(to, "POST", "/mcp", Some(&session), notification);
    assert_eq!((reply.status, reply.body.as_str()), (202, ""));
}

#[test]
fn sessions_are_demanded_and_end() {
    let (_fixture, to) = Fixture::start_http(&[]);
    let session = open(to);
    assert_eq!(echo(to, None).status, 400);
    assert_eq!(echo(to, Some("other")).status, 404);
    assert_eq!(exchange(to, "DELETE", "/mcp", None, "").status, 400);
    assert_eq!(exchange(to, "DELETE", "/mcp", Some(&session), "").status, 204);
    assert_eq!(exchange(to, "DELETE", "/mcp", Some(&session), "").status, 404);
    assert_eq!(echo(to, Some(&session)).status, 404);
}

#[test]
fn sessions_are_forgotten_after_so_many_messages() {
    let (_fixture, to) = Fixture::start_http(&["--forget-session-after", "2"]);
    let (first, second) = (open(to), open(to));
    let statuses = |session: &str| [(); 4].map(|()| echo(to, Some(session)).status);
    assert_eq!(statuses(&first), [200, 200, 404, 404]);
    assert_eq!(statuses(&second), [200, 200, 404, 404], "each of them has its own count");
    assert_eq!(echo(to, Some(&open(to))).status, 200, "a new one can be opened");
}

#[test]
fn a_lost_session_is_told_as_asked() {
    for (how, status, code) in [
        ("404", 404, None),
        ("400", 400, Some(-32000)),
        ("401", 401, Some(-32001)),
        ("-32001", 200, Some(-32001)),
        ("-32600", 200, Some(-32600)),
        ("not-initialized", 400, Some(-32000)),
    ] {
        let (_fixture, to) = Fixture::start_http(&["--forget-as", how]);
        let reply = echo(to, Some("other"));
        assert_eq!(reply.status, status, "{how}");
        let body: Option<Value> = serde_json::from_str(&reply.body).ok();
        assert_eq!(body.and_then(|body| body["error"]["code"].as_i64()), code, "{how}");
    }
}

#[test]
fn foreign_hosts_origins_and_versions_are_refused() {
    let (_fixture, to) = Fixture::start_http(&[]);
    let status = |headers: &str| {
        let body = r#"{"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
        exchange_with(to, "POST", "/mcp", headers, body).status
    };
    assert_eq!(status("Host: 127.0.0.1\r\nOrigin: http://localhost:3000\r\n"), 200);
    assert_eq!(status("Host: evil.example.com\r\n"), 403);
    assert_eq!(status("Host: localhost\r\nOrigin: http://evil.example.com\r\n"), 403);
    assert_eq!(status("Host: localhost\r\nMCP-Protocol-Version: 2024-11-05\r\n"), 200);
    assert_eq!(status("Host: localhost\r\nMCP-Protocol-Version: 1999-01-01\r\n"), 400);
}

#[test]
fn other_methods_paths_and_bodies_are_refused() {
    let (_fixture, to) = Fixture::start_http(&["--path", "/other"]);
    assert_eq!(exchange(to, "POST", "/mcp", None, "{}").status, 404);
    assert_eq!(exchange(to, "GET", "/other", None, "").status, 400);
    assert_eq!(exchange(to, "PUT", "/other", None, "").status, 405);
    assert_eq!(exchange(to, "POST", "/other", None, "{").status, 400);
}

#[test]
fn event_streams_on_request() {
    let (_fixture, to) = Fixture::start_http(&["--sse"]);
    let reply = echo(to, Some(&open(to)));
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let data = reply.body.strip_prefix("event: message\ndata: ").unwrap();
    let data = data.strip_suffix("\n\n").unwrap();
    assert_eq!(text(&serde_json::from_str(data).unwrap()), "hi");
}

#[test]
fn a_sleeping_call_holds_up_nobody() {
    let (_fixture, to) = Fixture::start_http(&[]);
    let session = open(to);
    let sleep = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "sleep", "arguments": {"ms": 600_000}},
    })
    .to_string();
    let mut sleeper = TcpStream::connect(to).unwrap();
    let length = sleep.len();
    write!(
        sleeper,
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n\
         Content-Length: {length}\r\n\r\n{sleep}"
    )
    .unwrap();
    assert_eq!(echo(to, Some(&session)).status, 200);
}
