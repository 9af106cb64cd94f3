//! Requests with foreign hosts and origins.

use serde_json::json;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture};
use crate::proxy::raw::{BOTH, JSON, exchange, parts, request};

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
        let status = exchange(&address, "POST", &path, &head, &hello).status;
        assert_eq!(status, 403, "{host:?} {origin:?}");
        bystander.is_served();
    }
    assert_eq!(env.server("fx")["sessions"], 1, "only the bystander has a session");
}
