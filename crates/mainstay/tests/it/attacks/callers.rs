//! Callers other than the user: other local users, and callers with a token.
//!
//! Only root can act as another user, so these tests need root.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::json;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture, free_port, until};
use crate::proxy::raw::{BOTH, EVENTS, JSON, Raw, call, exchange, parts, request};

/// A local user who does not run Mainstay.
const STRANGER: u32 = 64_321;

/// A user who runs Mainstay and is not root.
const USER: u32 = 64_322;

/// Sends bytes to a local address from a process of this user, and returns the answer.
fn as_user(uid: u32, address: &str, bytes: &[u8], then: &str) -> String {
    assert!(rustix::process::geteuid().is_root(), "acting as another user needs root");
    let (host, port) = address.rsplit_once(':').unwrap();
    let script = format!("exec 3<>/dev/tcp/{host}/{port} && cat >&3; {then}");
    let mut child = Command::new("/bin/bash")
        .args(["-c", &script])
        .uid(uid)
        .gid(uid)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
}

/// Sends a request as a user, and returns the answer with its head.
fn ask_as(uid: u32, address: &str, request: &str) -> String {
    as_user(uid, address, request.as_bytes(), "cat <&3")
}

/// A request that closes its connection.
fn text(verb: &str, path: &str, head: &[(&str, &str)], body: &str) -> String {
    let fields: Vec<_> = head.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let fields = fields.concat();
    let length = body.len();
    format!(
        "{verb} {path} HTTP/1.1\r\n{fields}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// The answer to a request of this user to open a session.
fn opens_as(address: &str, uid: u32, path: &str, more: &[(&str, &str)]) -> String {
    let mut head = vec![("Host", address), ("Content-Type", JSON), ("Accept", BOTH)];
    head.extend_from_slice(more);
    ask_as(uid, address, &text("POST", path, &head, &hello()))
}

fn hello() -> String {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "other_program", "version": "1"}});
    request(1, "initialize", &params).to_string()
}

/// A Mainstay with the fixture server.
struct Site {
    env: TestEnv,
    address: String,
    path: String,
    bystander: Bystander,
}

impl Site {
    fn new() -> Self {
        Self::in_env(TestEnv::new())
    }

    /// With a config file.
    fn configured(config: &str) -> Self {
        let env = TestEnv::new();
        fs::create_dir(env.mainstay_home()).unwrap();
        fs::write(env.mainstay_home().join("config.toml"), config).unwrap();
        Self::in_env(env)
    }

    fn in_env(env: TestEnv) -> Self {
        env.run_server("fx", &[], &[&fixture()]);
        let url = env.server("fx")["url"].as_str().unwrap().to_owned();
        let (address, path) = parts(&url);
        let bystander = Bystander::of(&env, "fx");
        Self { env, address, path, bystander }
    }

    /// A case: another user asks for a session with this `Authorization`.
    fn opens_during(&mut self, case: &str, path: &str, authorization: &str) -> String {
        let (address, head) = (&self.address, [("Authorization", authorization)]);
        self.bystander.during(case, || opens_as(address, STRANGER, path, &head))
    }

    fn token(&self, args: &[&str]) -> String {
        let created = self.env.json([&["token", "create", "--json"], args].concat());
        created["token"].as_str().unwrap().to_owned()
    }
}

fn status(answer: &str) -> &str {
    answer.strip_prefix("HTTP/1.1 ").map_or("", |rest| &rest[..3])
}

#[test]
fn another_user_reaches_no_server() {
    let mut site = Site::new();
    let session = Raw::open(&format!("http://{}{}", site.address, site.path));
    let file = site.env.work().join("effects");
    let effect = call(7, "append", &json!({"path": file, "line": "x"})).to_string();
    let host = ("Host", &*site.address);
    let ours = ("Mcp-Session-Id", &*session.id);
    let (json, both) = (("Content-Type", JSON), ("Accept", BOTH));
    let requests = [
        text("POST", &site.path, &[host, json, both], &hello()),
        text("POST", &site.path, &[host, json, both, ours], &effect),
        text("GET", &site.path, &[host, ("Accept", EVENTS), ours], ""),
        text("DELETE", &site.path, &[host, ours], ""),
        text("PUT", &site.path, &[host], ""),
        text("GET", "/", &[host], ""),
        text("GET", "/none/mcp", &[host], ""),
        text("POST", "/mcp", &[host, json, both], &hello()),
        text("POST", &site.path, &[("Host", "evil.example")], ""),
        text("POST", &site.path, &[host, json, both, ("Authorization", "Bearer x")], &hello()),
        text("POST", &site.path, &[host, json, both, ("Authorization", "Basic eDp4")], &hello()),
        text("OPTIONS", "*", &[host], ""),
    ];
    for request in &requests {
        let case = format!("another user sends {}", &request[..request.len().min(400)]);
        let answer = site
            .bystander
            .during(case.replace("\r\n", " "), || ask_as(STRANGER, &site.address, request));
        assert_eq!(status(&answer), "403", "{request}\n{answer}");
        assert!(answer.contains("mainstay token create"), "{answer}");
        assert!(answer.contains(&format!("uid {STRANGER}")), "{answer}");
    }
    assert!(!file.exists(), "a tool was called");
    assert_eq!(site.env.server("fx")["sessions"], 2, "no session was opened or ended");
}

/// The answer does not wait for the body, of any length.
#[test]
fn another_user_is_refused_before_the_body() {
    let mut site = Site::new();
    let (address, path) = (&site.address, &site.path);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {JSON}\r\n\
         Content-Length: 16000000\r\n\r\n{{"
    );
    let answer = site
        .bystander
        .during("another user sends a head without its body", || ask_as(STRANGER, address, &head));
    assert_eq!(status(&answer), "403");
}

/// The kernel names root as the owner of a connection whose process has closed it.
#[test]
fn a_disconnected_caller_is_unknown_and_not_root() {
    let mut site = Site::new();
    let session = Raw::open(&format!("http://{}{}", site.address, site.path));
    let file = site.env.work().join("effects");
    let effect = call(7, "append", &json!({"path": file, "line": "x"})).to_string();
    let head = [
        ("Host", &*site.address),
        ("Content-Type", JSON),
        ("Accept", BOTH),
        ("Mcp-Session-Id", &*session.id),
    ];
    let request = text("POST", &site.path, &head, &effect);
    site.bystander.during("another user sends a call and disconnects, 20 times", || {
        for _ in 0..20 {
            as_user(STRANGER, &site.address, request.as_bytes(), "exec 3>&-");
        }
    });
    assert!(!file.exists(), "a tool was called");
}

#[test]
fn a_token_gives_access_to_its_servers_only() {
    let mut site = Site::new();
    site.env.run_server("other", &[], &[&fixture()]);
    let (all, one) = (site.token(&["all"]), site.token(&["one", "--server", "fx"]));
    assert_ne!(all, one);
    let bearer = |token: &str| format!("Bearer {token}");
    let (start, end) = one.split_at(one.len() - 1);
    let wrong = format!("{start}{}", if end == "0" { "1" } else { "0" });
    for (what, token, path, expected) in [
        ("a token for all servers", &*all, "/fx/mcp", "200"),
        ("a token for all servers", &all, "/other/mcp", "200"),
        ("a token for all servers", &all, "/none/mcp", "404"),
        ("a token for all servers", &all, "/", "404"),
        ("a token for one server", &one, "/fx/mcp", "200"),
        ("a token for one server", &one, "/other/mcp", "403"),
        ("a token for one server", &one, "/", "403"),
        ("a token with another end", &wrong, "/fx/mcp", "403"),
        ("a token without its end", &all[..all.len() - 1], "/fx/mcp", "403"),
        ("a token in capitals", &all.to_uppercase(), "/fx/mcp", "403"),
        ("the start of a token", &all[..4], "/fx/mcp", "403"),
        ("an empty token", "", "/fx/mcp", "403"),
    ] {
        let answer = site.opens_during(&format!("{what} at {path}"), path, &bearer(token));
        assert_eq!(status(&answer), expected, "{what} {path} {answer}");
    }
    // Names of this machine in containers are good for requests with a token only.
    for (host, with, without) in [
        ("host.docker.internal:7433", "200", "403"),
        ("host.containers.internal", "200", "403"),
        ("172.17.0.1:7433", "200", "403"),
        ("evil.example", "403", "403"),
    ] {
        let ask = |uid, more: &[(&str, &str)]| {
            let head = [&[("Host", host), ("Content-Type", JSON), ("Accept", BOTH)], more].concat();
            ask_as(uid, &site.address, &text("POST", "/fx/mcp", &head, &hello()))
        };
        let (token, none) = ([("Authorization", &*bearer(&one))], []);
        for (what, uid, more, expected) in [
            ("another user with a token", STRANGER, &token[..], with),
            ("root with a token", 0, &token, with),
            ("root without a token", 0, &none, without),
        ] {
            let answer = site.bystander.during(format!("{what} for {host}"), || ask(uid, more));
            assert_eq!(status(&answer), expected, "{what} {host} {answer}");
        }
    }
    let listed = site.env.ok(["token", "ls", "--json"]);
    assert!(!listed.contains(&all[4..]) && listed.contains("\"one\""), "{listed}");
    site.env.ok(["token", "rm", "one"]);
    let answer = site.opens_during("a removed token", "/fx/mcp", &bearer(&one));
    assert_eq!(status(&answer), "403");
    // It survives a reload, and nothing of it is written down.
    site.env.ok(["daemon", "reload"]);
    let answer = site.opens_during("a token after a reload", "/fx/mcp", &bearer(&all));
    assert_eq!(status(&answer), "200", "{answer}");
    let answer = site.opens_during("a removed token after a reload", "/fx/mcp", &bearer(&one));
    assert_eq!(status(&answer), "403", "{answer}");
    assert_eq!(files_with(&site.env.mainstay_home(), &all[4..]), Vec::<String>::new());
}

/// A request whose body comes slowly is checked again at its end.
#[test]
fn a_request_begun_with_a_removed_token_is_not_executed() {
    let mut site = Site::new();
    let token = format!("Bearer {}", site.token(&["t"]));
    let session = Raw::open(&format!("http://{}{}", site.address, site.path));
    let file = site.env.work().join("effects");
    let body = call(7, "append", &json!({"path": file, "line": "x"})).to_string();
    let head = [
        ("Host", &*site.address),
        ("Content-Type", JSON),
        ("Accept", BOTH),
        ("Mcp-Session-Id", &*session.id),
        ("Authorization", &token),
    ];
    let request = text("POST", &site.path, &head, &body);
    let (begun, rest) = request.split_at(request.len() - 1);
    let go = site.env.root().join("go");
    let marks = site.env.root().join("marks");
    fs::create_dir(&marks).unwrap();
    fs::set_permissions(&marks, fs::Permissions::from_mode(0o777)).unwrap();
    let then = format!(
        "touch '{sent}'; until test -e {go}; do sleep 0.02; done; printf '%s' '{rest}' >&3; cat <&3",
        sent = marks.join("sent").display(),
        go = go.display()
    );
    fs::set_permissions(site.env.root(), fs::Permissions::from_mode(0o755)).unwrap();
    site.bystander.during("a token is removed while its request is read", || {
        thread::scope(|scope| {
            let answer = scope.spawn(|| as_user(STRANGER, &site.address, begun.as_bytes(), &then));
            until("the head is sent", || marks.join("sent").exists().then_some(()));
            // The daemon has one thread for requests, and reads the head before it answers this.
            site.env.ok(["ls"]);
            site.env.ok(["token", "rm", "t"]);
            fs::write(&go, "").unwrap();
            let answer = answer.join().unwrap();
            assert!(answer.contains("HTTP/1.1 403"), "{answer}");
        });
    });
    assert!(!file.exists(), "the call was executed");
}

/// A token of a server that was removed does not admit to a later one of the same name.
#[test]
fn a_token_is_removed_with_its_server() {
    let mut site = Site::new();
    site.env.run_server("gone", &[], &[&fixture()]);
    let token = format!("Bearer {}", site.token(&["t", "--server", "gone"]));
    for (case, expected) in [("a token", "200"), ("a token of the last server", "403")] {
        let answer = site.opens_during(&format!("{case} of this name"), "/gone/mcp", &token);
        assert_eq!(status(&answer), expected, "{case} {answer}");
        site.env.ok(["rm", "gone"]);
        site.env.run_server("gone", &[], &[&fixture()]);
    }
    assert_eq!(site.env.json(["token", "ls", "--json"]), json!([]));
}

#[test]
fn bad_tokens_are_refused_with_a_reason() {
    let mut site = Site::new();
    site.token(&["t"]);
    for (args, code, reason) in [
        (&["token", "create", "t"][..], 1, "a token `t` already exists"),
        (&["token", "create", "a b"][..], 1, "is not a valid token name"),
        (&["token", "create", ""][..], 1, "is not a valid token name"),
        (&["token", "create", "x", "--server", "none"][..], 3, "none"),
        (&["token", "rm", "none"][..], 1, "there is no token `none`"),
    ] {
        let output = site.bystander.during(args.join(" "), || site.env.run(args));
        assert_eq!(output.code, code, "{args:?} {output}");
        assert!(output.stderr.contains(reason), "{args:?} {output}");
    }
}

#[test]
fn all_users_can_be_admitted() {
    let mut site = Site::configured("allow-other-users = true\n");
    let answer = site.bystander.during("another user who is allowed", || {
        opens_as(&site.address, STRANGER, "/fx/mcp", &[])
    });
    assert_eq!(status(&answer), "200");
}

#[test]
fn an_address_for_other_machines_serves_tokens_only() {
    let port = free_port();
    let env = TestEnv::new();
    let listen = format!("127.0.0.1:0,0.0.0.0:{port}");
    let mut site = Site::in_env(env.with_var("MAINSTAY_LISTEN", &listen));
    let token = format!("Bearer {}", site.token(&["t"]));
    let public = format!("127.0.0.1:{port}");
    let ask = |more: &[(&str, &str)]| {
        let head = [&[("Host", &*public), ("Content-Type", JSON), ("Accept", BOTH)], more].concat();
        exchange(&public, "POST", "/fx/mcp", &head, &hello()).status
    };
    for daemon in ["first", "second"] {
        for (what, more, expected) in [
            ("no token", &[][..], 403),
            ("a wrong token", &[("Authorization", "Bearer x")], 403),
            ("a token", &[("Authorization", &*token)], 200),
        ] {
            let case = format!("{what} at an address for other machines, {daemon} daemon");
            assert_eq!(site.bystander.during(&case, || ask(more)), expected, "{case}");
        }
        site.env.ok(["daemon", "reload"]);
    }
}

/// A Mainstay of a user who is not root.
fn as_other_user(config: &str) -> TestEnv {
    let env = TestEnv::new().run_by(USER);
    fs::create_dir(env.mainstay_home()).unwrap();
    fs::write(env.mainstay_home().join("config.toml"), config).unwrap();
    fs::copy(fixture(), env.work().join("fixture")).unwrap();
    give(env.root(), USER);
    env
}

/// Gives a directory to a user, with all that is in it.
fn give(dir: &Path, uid: u32) {
    chown(dir, Some(uid), Some(uid)).unwrap();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            give(&entry.path(), uid);
        } else {
            chown(entry.path(), Some(uid), Some(uid)).unwrap();
        }
    }
}

#[test]
fn root_is_served_unless_configured_otherwise() {
    for (config, of_root) in [("", "200"), ("admit-root = false\n", "403")] {
        let env = as_other_user(config);
        env.run_server("fx", &[], &["./fixture"]);
        let url = env.server("fx")["url"].as_str().unwrap().to_owned();
        let (address, path) = parts(&url);
        // Root may be excluded, so the bystander is a caller with a token.
        let token = env.json(["token", "create", "t", "--json"])["token"].clone();
        let mut bystander = Bystander::with_token(&url, token.as_str().unwrap());
        for (uid, expected) in [(USER, "200"), (0, of_root), (STRANGER, "403")] {
            let case = format!("uid {uid} calls the Mainstay of uid {USER}, {config:?}");
            let answer = bystander.during(case, || opens_as(&address, uid, &path, &[]));
            assert_eq!(status(&answer), expected, "uid {uid}, {config} {answer}");
        }
    }
}

/// The files below a directory that contain a text.
fn files_with(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(files_with(&path, text)),
            kind if kind.is_file() => {
                let bytes = fs::read(&path).unwrap_or_default();
                if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                    found.push(path.display().to_string());
                }
            }
            _ => {}
        }
    }
    found
}
