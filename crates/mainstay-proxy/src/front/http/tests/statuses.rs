//! What is refused, and how.

use super::*;
use crate::front::tests::{SERVER, call, initialize, note};

/// Sends a request and checks the status, and what its head or body contains.
async fn check(site: &mut Site, text: &str, status: u16, content: &str) {
    let mut wire = site.connect();
    wire.send(text).await;
    let reply = wire.reply().await;
    let first = text.lines().next();
    assert_eq!(reply.status, status, "{first:?}: {reply:?}");
    let found = reply.head.contains(content) || reply.body.contains(content);
    assert!(found, "{first:?}: {content} in {reply:?}");
}

/// A POST of a session with one header exchanged.
fn with(session: &Session, header: &str, value: &str) -> String {
    let body = call(1, "fast");
    let text = post(session.id(), BOTH, &body);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let lines = head.lines().filter(|line| !line.starts_with(&format!("{header}:")));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    if !value.is_empty() {
        lines.push(format!("{header}: {value}"));
    }
    format!("{}\r\n\r\n{body}", lines.join("\r\n"))
}

#[tokio::test(start_paused = true)]
async fn foreign_hosts_and_origins_are_refused_before_the_body_is_read() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    for (header, value) in [("Host", "evil.com"), ("Origin", "http://evil.com")] {
        // The body never comes.
        let text = with(&session, header, value);
        let head = text.split_once("\r\n\r\n").unwrap().0;
        check(&mut site, &format!("{head}\r\n\r\n"), 403, "Origin").await;
    }
    check(&mut site, &with(&session, "Origin", "null"), 403, "Origin").await;
    check(&mut site, &with(&session, "Host", ""), 400, "Host").await;
    check(&mut site, &with(&session, "Origin", "http://localhost:99"), 200, "fast").await;
}

#[tokio::test(start_paused = true)]
async fn other_paths_and_methods_are_refused() {
    let mut site = Site::new();
    for path in ["/", "/mcp", "/time", "/time/sse", "/time/mcp/x"] {
        check(&mut site, &request("GET", path, &[], ""), 404, "/NAME/mcp").await;
    }
    check(&mut site, &request("GET", "/", &[], ""), 404, "1.2.3").await;
    for method in ["PUT", "PATCH", "OPTIONS"] {
        let text = request(method, "/time/mcp", &[], "");
        check(&mut site, &text, 405, "allow: post, get, delete").await;
    }
    let session = site.fake.with(NEW);
    let text = post(session.id(), BOTH, &call(1, "fast")).replace("/time/mcp", "/time/mcp/");
    check(&mut site, &text, 200, "fast").await;
}

#[tokio::test(start_paused = true)]
async fn headers_that_make_no_sense_are_refused() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    for (header, value, status, content) in [
        ("Content-Type", "text/plain", 415, "application/json"),
        ("Content-Type", "", 415, "application/json"),
        ("Content-Encoding", "gzip", 415, "compressed"),
        ("Content-Encoding", "identity", 200, "fast"),
        ("Accept", "text/html", 406, "Accept"),
        ("Accept", "", 200, "fast"),
        ("Accept", "*/*", 200, "fast"),
        ("MCP-Protocol-Version", "2026-07-28", 400, "2025-11-25"),
        ("MCP-Protocol-Version", "2024-11-05", 200, "fast"),
        ("MCP-Protocol-Version", "2025-03-26", 200, "fast"),
        ("MCP-Protocol-Version", "2025-06-18", 200, "fast"),
        ("MCP-Protocol-Version", "2025-11-25", 200, "fast"),
        ("Mcp-Session-Id", "", 400, "Mcp-Session-Id"),
        ("Mcp-Session-Id", "unknown", 404, "-32001"),
        ("Content-Length", "16777217", 413, "connection: close"),
    ] {
        check(&mut site, &with(&session, header, value), status, content).await;
    }
    let text = get(session.id(), None).replace("text/event-stream", "application/json");
    check(&mut site, &text, 406, "text/event-stream").await;
    check(&mut site, &get("unknown", None), 404, "-32001").await;
    let text = get(session.id(), None).replace("Mcp-Session-Id", "X");
    check(&mut site, &text, 400, "Mcp-Session-Id").await;
}

#[tokio::test(start_paused = true)]
async fn a_long_head_is_refused() {
    let mut site = Site::new();
    let mut wire = site.connect();
    let long = "x".repeat(70_000);
    // The connection is closed before all is written.
    let text = request("GET", "/time/mcp", &[("X", &long)], "");
    wire.io.write_all(text.as_bytes()).await.ok();
    wire.head(431).await;
}

#[tokio::test(start_paused = true)]
async fn bodies_that_make_no_sense_are_refused() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let two = format!("[{},{}]", call(1, "fast"), note("n"));
    for (body, content) in [
        ("{", "-32700"),
        ("junk", "-32700"),
        ("", "-32700"),
        (r#"{"a":1}"#, "-32600"),
        (r#"{"jsonrpc":"2.0","id":[],"method":"a"}"#, "-32600"),
        ("7", "-32600"),
        ("[]", "-32600"),
        (&*two, "2025-03-26"),
    ] {
        check(&mut site, &post(session.id(), BOTH, body), 400, content).await;
    }
    let session = site.fake.with(ProtocolVersion::V2025_03_26);
    let hello = format!("[{}]", initialize("2025-03-26"));
    for (body, content) in [
        ("[]", "empty"),
        ("[7]", "not a JSON-RPC message"),
        ("[[]]", "batch"),
        (&*hello, "initialize"),
    ] {
        check(&mut site, &post(session.id(), BOTH, body), 400, content).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_for_newer_servers_is_an_unknown_method() {
    let mut site = Site::new();
    let probe = call(7, "server/discover");
    for version in ["2026-07-28", "2025-11-25", ""] {
        let text = begin(&probe).replace("\r\n\r\n", &format!("\r\nX: {version}\r\n\r\n"));
        let text = text.replace("X: 2", "MCP-Protocol-Version: 2");
        check(&mut site, &text, 400, r#""id":7,"error":{"code":-32601"#).await;
    }
    let session = site.fake.with(NEW);
    let text = with(&session, "MCP-Protocol-Version", "2026-07-28");
    check(&mut site, &text, 400, "-32600").await;
}

#[tokio::test(start_paused = true)]
async fn a_long_body_without_a_length_is_refused() {
    let mut site = Site::with(Limits { body: 1000, ..Limits::default() });
    let session = site.fake.with(NEW);
    let head = with(&session, "Content-Length", "").split_once("\r\n\r\n").unwrap().0.to_owned();
    let head = format!("{head}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("190\r\n{}\r\n", " ".repeat(400));
    check(&mut site, &format!("{head}{}", chunk.repeat(3)), 413, "1000").await;
    let end = format!("{:x}\r\n{}\r\n0\r\n\r\n", call(1, "fast").len(), call(1, "fast"));
    check(&mut site, &format!("{head}{}{end}", chunk.repeat(2)), 200, "fast").await;
}

#[tokio::test(start_paused = true)]
async fn unknown_servers_are_told_like_ended_sessions() {
    let mut site = Site::new();
    let text = begin(&initialize("2025-11-25")).replace("/time/", "/gone/");
    check(&mut site, &text, 404, "-32001").await;
    let session = site.fake.with(NEW);
    let text = post(session.id(), BOTH, &call(1, "fast")).replace("/time/", "/gone/");
    check(&mut site, &text, 404, "no such server").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_initialized_once() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let hello = initialize("2025-11-25");
    check(&mut site, &post(session.id(), BOTH, &hello), 400, "initialized already").await;
    assert_eq!(site.fake.sessions(), 1);
    // Some clients keep the id of a session that has ended.
    check(&mut site, &post("ended", BOTH, &hello), 200, "mcp-session-id").await;
    assert_eq!(site.fake.sessions(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_page_on_loopback_may_read_answers_and_no_other_page_may() {
    const ALLOW: &str = "access-control-allow-origin";
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let page = "http://localhost:99";
    let allow = format!("{ALLOW}: {page}\r\n");
    let preflight = |origin| {
        let headers = [("Origin", origin), ("Access-Control-Request-Method", "POST")];
        request("OPTIONS", "/time/mcp", &headers, "")
    };
    check(&mut site, &preflight(page), 204, &allow).await;
    check(&mut site, &preflight(page), 204, "access-control-allow-headers: accept, ").await;
    check(&mut site, &with(&session, "Origin", page), 200, &allow).await;
    let hello = begin(&initialize("2025-11-25"));
    let hello = hello.replacen("Accept:", &format!("Origin: {page}\r\nAccept:"), 1);
    check(&mut site, &hello, 200, "access-control-expose-headers: mcp-session-id").await;
    let unknown = with(&session, "Origin", page).replace(session.id(), "unknown");
    check(&mut site, &unknown, 404, &allow).await;
    for (text, status) in [
        (preflight("http://evil.com"), 403),
        (preflight("null"), 403),
        (with(&session, "Origin", "http://evil.com"), 403),
        (with(&session, "Origin", ""), 200),
    ] {
        let mut wire = site.connect();
        wire.send(&text).await;
        let reply = wire.reply().await;
        assert_eq!(reply.status, status, "{text}: {reply:?}");
        assert!(!reply.head.contains(ALLOW), "{text}: {reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_sessions_is_told_in_an_answer() {
    let mut site = Site::new();
    while site.fake.servers.open(SERVER).is_ok() {}
    assert_eq!(site.fake.sessions(), 20_000);
    let text = begin(&initialize("2025-11-25"));
    check(&mut site, &text, 200, r#""id":0,"error""#).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_may_be_as_long_as_the_limit_and_not_a_byte_longer() {
    let limit = Limits::default().head;
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let text = post(session.id(), BOTH, &call(1, "fast"));
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let padding = "a".repeat(limit - head.len() - 4 - "\r\nX: ".len());
    for (more, status) in [("", 200), ("a", 431), ("aaaaaa", 431), (&padding[..6000], 431)] {
        let text = format!("{head}\r\nX: {padding}{more}\r\n\r\n{body}");
        let mut wire = site.connect();
        let (mut read, mut write) = tokio::io::split(&mut wire.io);
        let write = async {
            // What is refused is not read to its end.
            let _cut = write.write_all(text.as_bytes()).await;
        };
        let mut start = [0; 12];
        let ((), read) = soon(async { tokio::join!(write, read.read_exact(&mut start)) }).await;
        read.unwrap();
        assert_eq!(start, *format!("HTTP/1.1 {status}").as_bytes(), "{} more", more.len());
    }
}

#[tokio::test(start_paused = true)]
async fn delete_ends_a_session_and_its_streams() {
    let mut site = Site::new();
    let session = site.fake.with(NEW);
    let mut stream = site.gets(&session, None).await;
    stream.sees("data: \n\n").await;
    let text = request("DELETE", "/time/mcp", &[("Mcp-Session-Id", session.id())], "");
    check(&mut site, &text, 204, "").await;
    stream.ends().await;
    check(&mut site, &text, 404, "-32001").await;
    check(&mut site, &request("DELETE", "/time/mcp", &[], ""), 400, "Mcp-Session-Id").await;
}
