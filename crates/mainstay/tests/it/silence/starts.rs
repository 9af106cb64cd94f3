//! Servers that do not become ready: what is said about them.

use std::fs::{File, TryLockError};
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::env::{TestEnv, kill, pid_of};

const NAME: &str = "slow";

fn start(env: &TestEnv, options: &[&str], command: &[&str]) {
    env.ok([&["run", NAME][..], options, &["--"], command].concat());
}

fn shell(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

/// The server once it does this.
#[track_caller]
fn once(env: &TestEnv, activity: &str) -> Value {
    env.once(NAME, &format!("was {activity}"), |server| server["start"]["activity"] == activity)
}

/// Checks every place where a start is explained.
#[track_caller]
fn check(env: &TestEnv, activity: &str, text: &str) -> Value {
    let server = once(env, activity);
    let description = server["start"]["description"].as_str().unwrap();
    assert!(description.contains(text), "{description}");
    assert_eq!(server["status"], "starting");
    for command in [&["why", NAME][..], &["status", NAME], &["ls"], &["doctor"]] {
        let shown = env.run(command).to_string();
        assert!(shown.contains("starting for ") && shown.contains(text), "{command:?}: {shown}");
    }
    let events = env.events_called(NAME, "slow-start");
    assert!(events.iter().any(|event| event["cause"] == activity), "{events:?}");
    server
}

#[test]
fn a_child_that_does_nothing_is_named_and_so_is_it_when_the_start_times_out() {
    let env = TestEnv::new();
    start(&env, &["--start-timeout", "12s", "--no-restart"], &shell("sleep 600; :"));
    let server = check(&env, "waiting-for-child", "its child `sleep` is running");
    assert_eq!(
        (&server["start"]["child"], &server["start"]["has_read"]),
        (&"sleep".into(), &false.into())
    );
    let ended = env.once(NAME, "ended", |server| server["status"] == "error");
    let detail = ended["last_exit"]["detail"].as_str().unwrap();
    assert!(detail.contains("within 12 s: at the end, its child `sleep` is running"), "{detail}");
    assert_eq!(
        (&ended["start"], &ended["last_exit"]["cause"]),
        (&Value::Null, &"not-ready".into())
    );
}

#[test]
fn a_run_that_waits_says_what_the_start_does() {
    let env = TestEnv::new();
    let options = ["--start-timeout", "9s", "--no-restart"];
    let output = env.run_failing(NAME, &options, &shell("sleep 600; :")).to_string();
    assert!(output.contains("slow: starting for "), "{output}");
    assert!(output.contains("within 9 s: at the end, its child `sleep` is running"), "{output}");
}

#[test]
fn a_request_that_is_held_too_long_gets_what_the_start_does() {
    let env = TestEnv::new();
    start(&env, &["--hold", "6s"], &shell("sleep 600; :"));
    once(&env, "waiting-for-child");
    let output = env.run(["call", NAME, "x"]);
    assert!(output.to_string().contains("its child `sleep` is running"), "{output}");
}

#[test]
fn a_server_that_waits_for_a_file_lock_says_so() {
    let env = TestEnv::new();
    let path = env.work().join("lock");
    let lock = File::create(&path).unwrap();
    lock.lock().unwrap();
    let other = File::open(&path).unwrap();
    assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
    start(&env, &[], &["flock", path.to_str().unwrap(), "true"]);
    check(&env, "waiting-for-lock", "it waits for a file lock");
}

#[test]
fn a_server_that_computes_is_working() {
    let env = TestEnv::new();
    start(&env, &[], &shell("while :; do :; done"));
    check(&env, "working", "it is working; it has not read `initialize`");
}

#[test]
fn a_server_that_never_reads_is_told_apart_from_one_that_never_answers() {
    let env = TestEnv::new();
    start(&env, &[], &["sleep", "600"]);
    let server = check(&env, "not-reading", "it has not read `initialize`");
    assert!(server["start"]["unread_bytes"].as_u64().unwrap() > 50, "{server}");
    let env = TestEnv::new();
    start(&env, &[], &shell("read -r line; read -r line"));
    let server = check(&env, "not-answering", "it has read `initialize`, but does not answer");
    assert_eq!(server["start"]["has_read"], true);
}

#[test]
fn a_server_that_is_stopped_is_suspended_until_it_continues() {
    let env = TestEnv::new();
    start(&env, &[], &["sleep", "600"]);
    let pid = pid_of(&env.server(NAME));
    kill(pid, Signal::STOP);
    check(&env, "suspended", "its process is stopped");
    kill(pid, Signal::CONT);
    once(&env, "not-reading");
}

#[test]
fn a_download_is_recognized_by_its_program_and_its_connection() {
    let env = TestEnv::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It sends a byte now and then.
    let sender = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut rest = Vec::new();
        drop(connection.read_to_end(&mut rest));
    });
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; while :; do read -t 0.2 -u 3; done");
    let npm = executable(&env.work().join("npm"), &format!("#!/bin/bash\n{script}\n"));
    let launcher = format!("'{npm}' install --token=secret; :");
    start(&env, &[], &shell(&launcher));
    let server =
        check(&env, "downloading", "its child `npm install` is downloading (1 connection)");
    assert!(!server.to_string().contains("secret"), "{server}");
    env.ok(["rm", NAME]);
    sender.join().unwrap();
}

fn executable(path: &Path, text: &str) -> String {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_fast_start_is_not_observed() {
    let env = TestEnv::new();
    let script = crate::env::shell_server("");
    env.run_server(NAME, &[], &["sh", "-c", &script]);
    assert_eq!(env.server(NAME)["start"], Value::Null);
    assert!(env.events_called(NAME, "slow-start").is_empty());
}
