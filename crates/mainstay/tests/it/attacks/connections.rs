//! Connections that cost an attacker nothing: idle ones, and requests and responses that stop half way.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::json;

use super::bystander::{Bystander, with_bystander};
use super::flood::{FLOOD, allow_many_descriptors, connections, resident, start_with_limit};
use crate::env::{TestEnv, fixture, kill, pid_of, shell_server, until, until_dead};
use crate::proxy::raw::{BOTH, JSON, Raw, call, parts};

/// The connections of a flood that makes calls: more than are served at a time, and few enough for a debug build to
/// answer them all within a second.
const CALLS: usize = FLOOD / 2;

/// What comes of each connection of a flood, how many there are, and what each sends.
fn floods(url: &str, session: &str) -> Vec<(&'static str, usize, String)> {
    let (address, path) = parts(url);
    let post = |body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {JSON}\r\nAccept: {BOTH}\r\n\
             Mcp-Session-Id: {session}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let listen = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {session}\r\n\r\n"
    );
    let echo = post(&call(1, "echo", &json!({"text": "a"})).to_string());
    let unread = post(&call(1, "bytes", &json!({"n": 20_000})).to_string());
    let foreign = echo.replace(&address, "evil.example");
    let half = |text: &str, from_end: usize| text[..text.len() - from_end].to_owned();
    let head = echo.find("\r\n\r\n").unwrap();
    let begun = |text: &str| format!("{text}{}", half(text, 9));
    vec![
        ("idle and never used", FLOOD, String::new()),
        ("one byte", FLOOD, "P".to_owned()),
        ("half a head", FLOOD, echo[..head / 2].to_owned()),
        ("a head without its end", FLOOD, echo[..head + 2].to_owned()),
        ("a head without its body", FLOOD, echo[..head + 4].to_owned()),
        ("half a body", FLOOD, half(&echo, 9)),
        (
            "half a chunk",
            FLOOD,
            echo[..head + 4].replace("Content-Length: ", "Transfer-Encoding: chunked\r\nX: ")
                + "fff\r\n{",
        ),
        ("idle after a request", CALLS, echo.clone()),
        ("half a request after a whole one", CALLS, begun(&echo)),
        ("an answer that is not read", CALLS, unread.clone()),
        ("two answers that are not read", CALLS, unread.repeat(2)),
        ("a stream to listen to", FLOOD, listen),
        ("a request that is refused", FLOOD, foreign),
        ("something that is not HTTP", FLOOD, "\u{16}\u{3}\u{1}\r\n\r\n".to_owned()),
    ]
}

#[test]
fn floods_of_connections_do_not_block_others() {
    allow_many_descriptors();
    let env = TestEnv::new();
    // The hard limit, too: it cannot be raised.
    start_with_limit(&env, "-n 1024");
    let server = env.run_server("fx", &[], &[&fixture()]);
    let url = server["url"].as_str().unwrap().to_owned();
    // Of another server: what waits in a server's own input is not Mainstay's to schedule.
    let mut bystander = with_bystander(&env);
    let attacker = Raw::open(&url);
    for (what, count, text) in floods(&url, &attacker.id) {
        bystander.during(format!("{count} connections, each of them {what}"), || {
            let flood = connections(&url, count, &text);
            // Returns when the daemon has read what came before this.
            attacker.ask(1, "tools/call", &json!({"name": "echo", "arguments": {"text": "a"}}));
            assert_eq!(env.server("fx")["status"], "running");
            drop(flood);
        });
    }
    assert_eq!(env.events_called("fx", "ended").len(), 0);
}

#[test]
fn a_server_restarts_during_a_flood_of_connections() {
    allow_many_descriptors();
    let env = TestEnv::new();
    start_with_limit(&env, "-n 1024");
    let server = env.run_server("fx", &[], &[&fixture()]);
    let url = server["url"].as_str().unwrap().to_owned();
    let mut bystander = with_bystander(&env);
    let flood = connections(&url, FLOOD, "");
    bystander.during("a server is killed during a flood", || {
        kill(pid_of(&server), Signal::KILL);
        env.once_running("fx", 2);
    });
    Bystander::of(&env, "fx").is_served();
    bystander.during("a server is added during a flood", || {
        env.run_server("another", &[], &[&fixture()]);
    });
    bystander.during("the daemon reloads during a flood", || env.ok(["daemon", "reload"]));
    Bystander::of(&env, "another").is_served();
    drop(flood);
}

/// With the usual limits: 1,024, which may be raised. Then a flood is merely served.
#[test]
fn usual_limits_are_enough_for_a_flood_and_a_client_that_was_there_before_it() {
    allow_many_descriptors();
    let env = TestEnv::new();
    start_with_limit(&env, "-S -n 1024");
    let url = env.run_server("fx", &[], &[&fixture()])["url"].as_str().unwrap().to_owned();
    let mut bystander = Bystander::of(&env, "fx");
    let before = Raw::open(&url);
    let (address, _) = parts(&url);
    let mut idle = TcpStream::connect(&address).unwrap();
    let flood = bystander.during("a flood that the usual limits are enough for", || {
        connections(&url, 2 * FLOOD, "")
    });
    // Its connection is the oldest of those that were never used, and still there.
    let call = call(7, "echo", &json!({"text": "patient"})).to_string();
    let head = format!(
        "POST /fx/mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: {JSON}\r\nAccept: {JSON}\r\n\
         Mcp-Session-Id: {}\r\nContent-Length: {}\r\n\r\n",
        before.id,
        call.len()
    );
    idle.write_all(head.as_bytes()).unwrap();
    idle.write_all(call.as_bytes()).unwrap();
    let mut answer = String::new();
    until("the answer", || {
        let mut some = [0; 1024];
        let read = std::io::Read::read(&mut idle, &mut some).unwrap();
        assert_ne!(read, 0, "closed after {answer}");
        answer.push_str(&String::from_utf8_lossy(&some[..read]));
        answer.contains("patient").then_some(())
    });
    assert_eq!(flood.len(), 2 * FLOOD);
}

/// Mainstay's own processes have more descriptors than their user; a server has what its user has.
#[test]
fn a_server_has_the_limit_of_its_user_however_it_is_started() {
    let env = TestEnv::new();
    let list = env.root().join("limits");
    let shell = env.root().join("shell");
    fs::write(
        &shell,
        format!("#!/bin/sh\nulimit -Sn >> '{}'\nexec /bin/sh \"$@\"\n", list.display()),
    )
    .unwrap();
    fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let env = env.with_var("SHELL", shell.to_str().unwrap());
    start_with_limit(&env, "-S -n 777");
    let script =
        format!("ulimit -Sn >> '{}'; {}", list.display(), shell_server("exec cat >/dev/null"));
    let mut bystander = with_bystander(&env);
    let mut check = |name: &str| {
        fs::write(&list, "").unwrap();
        let server = bystander.after(format!("the limit of descriptors, {name}"), || {
            env.run_server(name, &[], &["/bin/sh", "-c", &script])
        });
        assert_eq!(fs::read_to_string(&list).unwrap(), "777\n", "{name}");
        assert_eq!(limit_of(pid_of(&server)), 777);
        assert!(env.mainstays().into_iter().all(|pid| limit_of(pid) > 777), "{name}");
    };
    check("first");
    kill(env.daemon(), Signal::KILL);
    check("after-a-kill");
    env.ok(["daemon", "reload"]);
    check("after-a-reload");
    let holder = env.json(["daemon", "status", "--json"])["holder"].as_u64().unwrap();
    let holder = u32::try_from(holder).unwrap();
    kill(holder, Signal::KILL);
    until_dead(holder);
    until("another holder", || {
        let about = env.json(["daemon", "status", "--json"]);
        (about["holder"] != u64::from(holder)).then_some(())
    });
    check("after-its-holder");
    fs::write(&list, "").unwrap();
    bystander.during("the limit of descriptors of a login shell", || {
        env.run_failing("none", &[], &["no-such-program-anywhere"])
    });
    assert_eq!(fs::read_to_string(&list).unwrap(), "777\n", "the login shell");
}

/// The soft limit of descriptors of a process.
fn limit_of(pid: u32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line["Max open files".len()..].split_whitespace().next().unwrap().parse().unwrap()
}

/// After a peak, memory returns within a minute to at most twice of what it was.
#[test]
fn memory_is_released_after_a_flood() {
    allow_many_descriptors();
    let env = TestEnv::new();
    let url = env.run_server("fx", &[], &[&fixture()])["url"].as_str().unwrap().to_owned();
    let mut bystander = Bystander::of(&env, "fx");
    bystander.is_served();
    let daemon = env.daemon();
    let before = resident(daemon);
    let (address, path) = parts(&url);
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nX: {}", "x".repeat(20_000));
    let peak = bystander.during("a flood that uses memory", || {
        let flood = connections(&url, 2 * FLOOD, &head);
        let peak = until("a flood costs something", || {
            Some(resident(daemon)).filter(|peak| *peak > 2 * before)
        });
        drop(flood);
        peak
    });
    let mut least = peak;
    let fell = (0..4).any(|_| {
        crate::env::patiently(|| {
            least = least.min(resident(daemon));
            (least < 2 * before).then_some(())
        })
        .is_some()
    });
    assert!(fell, "{before} -> {peak} -> {least} pages");
}
