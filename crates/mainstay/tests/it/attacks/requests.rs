//! Requests with foreign hosts and origins.

use serde_json::json;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture};
use crate::proxy::raw::{BOTH, EVENTS, JSON, Raw, call, exchange, parts, request};

/// Hosts under which a page in a browser could reach us, but no client does.
const FOREIGN_HOSTS: [&str; 12] = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:7433",
    "0.0.0.0",
    "128.0.0.1",
    "[::2]",
    "2130706433",
    "user@localhost",
    "localhost:99999",
    "localhost:",
    "",
];

/// Origins of pages that are not on this machine.
const FOREIGN_ORIGINS: [&str; 8] = [
    "null",
    "https://evil.example",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://evil.example#localhost",
    "file://",
    "chrome-extension://abcdef",
    "http://[::2]",
];

#[test]
fn a_page_in_a_browser_reaches_no_server() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let url = env.server("fx")["url"].as_str().unwrap().to_owned();
    let (address, path) = parts(&url);
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"}});
    let hello = request(1, "initialize", &params).to_string();
    let hosts = FOREIGN_HOSTS.map(|host| (host, None));
    let origins = FOREIGN_ORIGINS.map(|origin| (&*address, Some(origin)));
    for (host, origin) in hosts.into_iter().chain(origins) {
        let mut head = vec![("Host", host), ("Content-Type", JSON), ("Accept", BOTH)];
        head.extend(origin.map(|origin| ("Origin", origin)));
        let case = format!("Host: {host}, Origin: {origin:?}");
        let asked = || exchange(&address, "POST", &path, &head, &hello).status;
        assert_eq!(bystander.during(&case, asked), 403, "{case}");
    }
    assert_eq!(env.server("fx")["sessions"], 1, "only the bystander has a session");
}

/// Content types that a page may send to another site without asking first, those that look like ours, and none.
const FORMS: [&str; 6] = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "",
    "text/json",
    "application/json-patch",
];

/// What browsers add to a form that a page sends to another site. Old ones add nothing.
const SENDERS: [&[(&str, &str)]; 4] = [
    &[],
    &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
    &[("Origin", "null"), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")],
    &[("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")],
];

/// What else a page may cause: links, images, scripts, event sources, and the questions before other requests.
const PAGE: [(&str, &[(&str, &str)]); 8] = [
    ("GET", &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")]),
    (
        "GET",
        &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Dest", "image"), ("Accept", "image/*")],
    ),
    ("GET", &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Dest", "script"), ("Accept", "*/*")]),
    ("GET", &[("Origin", "https://evil.example"), ("Accept", EVENTS)]),
    ("HEAD", &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")]),
    ("OPTIONS", &[("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")]),
    ("OPTIONS", &[("Origin", "https://evil.example"), ("Access-Control-Request-Method", "DELETE")]),
    (
        "OPTIONS",
        &[("Origin", "https://evil.example"), ("Access-Control-Request-Private-Network", "true")],
    ),
];

/// A page cannot name a session, but here it knows one.
#[test]
fn a_form_in_a_browser_calls_no_tool() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let url = env.server("fx")["url"].as_str().unwrap().to_owned();
    let (address, path) = parts(&url);
    let session = Raw::open(&url);
    let file = env.work().join("effects");
    let body = call(7, "append", &json!({"path": file, "line": "x"})).to_string();
    let mut check = |verb: &str, more: &[(&str, &str)], body: &str| {
        let case = format!("a page sends {verb} with {more:?}");
        let head = [&[("Host", &*address)], more].concat();
        let answer = bystander.during(&case, || exchange(&address, verb, &path, &head, body));
        assert!((400..500).contains(&answer.status), "{case}: {}", answer.status);
        assert_eq!(answer.header("access-control-allow-origin"), None, "{case}");
        assert!(!file.exists(), "{case}: a tool was called");
    };
    for kind in FORMS {
        let form = [("Content-Type", kind), ("Accept", BOTH), ("Mcp-Session-Id", &*session.id)];
        for sender in SENDERS {
            check("POST", &[&form, sender].concat(), &body);
        }
    }
    for (verb, head) in PAGE {
        check(verb, head, "");
    }
    // The same body, as a client sends it, has its effect.
    session.answered(&serde_json::from_str(&body).unwrap());
    assert!(file.exists());
}
