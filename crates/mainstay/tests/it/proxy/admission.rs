//! Which requests are admitted.

use serde_json::json;

use super::raw::{BOTH, JSON, call, exchange, parts, request};
use super::setup::{Setup, Wire, test_env};
use crate::env::fixture;

#[test]
fn only_this_machine_is_served() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let (address, path) = parts(&setup.url);
    let port = address.rsplit_once(':').unwrap().1;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"}});
    let hello = request(1, "initialize", &params).to_string();
    let status = |host: &str, origin: Option<&str>| {
        let mut head = vec![("Host", host), ("Content-Type", JSON), ("Accept", BOTH)];
        head.extend(origin.map(|origin| ("Origin", origin)));
        exchange(&address, "POST", &path, &head, &hello).status
    };
    let local = format!("localhost:{port}");
    let ours = format!("http://localhost:{port}");
    for (host, origin) in [
        (&*address, None),
        (&*local, None),
        ("[::1]", None),
        (&*address, Some(&*ours)),
        (&*address, Some("http://127.0.0.1:3000")),
    ] {
        assert_eq!(status(host, origin), 200, "{host} {origin:?}");
    }
    for (host, origin) in [
        ("evil.example", None),
        ("localhost.evil.example", None),
        (&*address, Some("https://evil.example")),
        (&*address, Some("http://localhost.evil.example")),
        (&*address, Some("null")),
    ] {
        assert_eq!(status(host, origin), 403, "{host} {origin:?}");
    }
    assert_eq!(setup.server()["sessions"], 5, "refused requests opened nothing");
}

#[test]
fn a_session_is_valid_for_its_server_until_it_ends() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    setup.env.run_server("other", &[], &[&fixture()]);
    let session = setup.raw();
    let (address, path) = parts(&setup.url);
    let post = |path: &str, id: Option<&str>| {
        let mut head = vec![("Host", &*address), ("Content-Type", JSON), ("Accept", BOTH)];
        head.extend(id.map(|id| ("Mcp-Session-Id", id)));
        let body = call(1, "echo", &json!({"text": "x"})).to_string();
        exchange(&address, "POST", path, &head, &body)
    };
    assert_eq!(post(&path, Some(&session.id)).status, 200);
    assert_eq!(post("/other/mcp", Some(&session.id)).status, 404, "a session of another server");
    assert_eq!(post(&path, Some("0123456789abcdef")).status, 404, "an unknown session");
    assert_eq!(post(&path, None).status, 400, "no session at all");
    assert_eq!(post("/none/mcp", Some(&session.id)).status, 404, "no such server");
    assert!(matches!(session.delete(), 200 | 204));
    assert_eq!(post(&path, Some(&session.id)).status, 404, "a session that has ended");
    assert_eq!(session.delete(), 404);
}

#[test]
fn sessions_of_a_removed_server_end() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    let file = setup.file("effects");
    let arguments = json!({"path": file.path(), "line": "x", "ms": 60_000});
    let mut slow = session.post(BOTH, &call(1, "append", &arguments));
    file.until(1);
    setup.env.ok(["rm", "fx"]);
    let answer = slow.message().expect("an answer");
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let after = session.post(BOTH, &call(2, "echo", &json!({"text": "x"})));
    assert_eq!(after.status, 404);
    assert_eq!(after.answer()["error"]["code"], -32001);
}

#[test]
fn a_separate_port_serves_only_its_server() {
    let env = test_env();
    let port = crate::env::free_port().to_string();
    let setup = Setup::in_env(env, Wire::Stdio, &["--port", &port], &[]);
    setup.env.run_server("other", &[], &[&fixture()]);
    let own = super::raw::Raw::open(&format!("http://127.0.0.1:{port}/mcp"));
    own.ask(1, "tools/list", &json!({}));
    let address = format!("127.0.0.1:{port}");
    let head = [("Host", &*address), ("Content-Type", JSON), ("Accept", BOTH)];
    let foreign = exchange(&address, "POST", "/other/mcp", &head, "{}");
    assert_eq!(foreign.status, 404);
    setup.env.ok(["stop", "fx"]);
    let freed = || std::net::TcpListener::bind(&*address).ok();
    crate::env::until("the port is free again", freed);
}
