//! Commands while the daemon is absent, is being replaced or has another version.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use insta::assert_snapshot;
use rustix::process::geteuid;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::env::{Output, TestEnv, fixture};
use crate::fake_daemon::{Daemon, VERSION};

/// A user that owns nothing here.
const NOBODY: u32 = 65_534;

#[test]
fn a_request_waits_for_the_daemon() {
    let env = no_start();
    let daemon = Daemon::new(&env);
    let ls = begin(&env, ["ls", "--json"]);
    // It is connected to a daemon that is ending.
    drop(daemon.meet());
    daemon.leave();
    thread::sleep(Duration::from_millis(300));
    let daemon = Daemon::new(&env);
    let (mut peer, request) = daemon.hello();
    assert_eq!(request, json!({"method": "list"}));
    peer.say(r#"{"ok":[]}"#);
    assert_eq!(end(ls), (Some(0), "[]\n".to_owned(), String::new()));
    assert!(daemon.is_idle(), "the request is made once");
}

#[test]
fn a_run_succeeds_while_the_daemon_is_replaced() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    assert_eq!(env.call("time", "count", "{}"), "1");
    env.ok(["daemon", "stop", "--keep-servers"]);
    let mut call = env.command(["call", "time", "count", "{}"]);
    let call = piped(call.env("MAINSTAY_NO_START", "1"));
    env.ok(["daemon", "start"]);
    let (code, stdout, stderr) = end(call);
    assert_eq!((code, stdout.trim_end(), stderr.as_str()), (Some(0), "2", ""));
}

#[test]
fn an_absent_daemon_is_reported_after_eight_seconds() {
    let env = no_start();
    let begun = Instant::now();
    let connect = begin(&env, ["connect", "time"]);
    let ls = begin(&env, ["ls", "--json"]);
    let socket = env.mainstay_home().join("run/daemon.sock");
    for command in [connect, ls] {
        let (code, stdout, stderr) = end(command);
        assert_eq!((code, stdout.as_str()), (Some(4), ""));
        assert!(stderr.contains(&format!("`{}`", socket.display())), "{stderr}");
        assert!(stderr.contains("it may be restarting: try again"), "{stderr}");
    }
    assert!(begun.elapsed() >= Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn a_queued_connection_is_served() {
    // Nothing forbids to start a daemon here; none is needed.
    let env = TestEnv::new();
    let daemon = Daemon::new(&env);
    let ls = begin(&env, ["ls", "--json"]);
    let mut peer = daemon.meet();
    thread::sleep(Duration::from_millis(2_500));
    assert_eq!(peer.greet(VERSION), json!({"method": "list"}));
    peer.say(r#"{"ok":[]}"#);
    assert_eq!(end(ls), (Some(0), "[]\n".to_owned(), String::new()));
    assert!(daemon.is_idle(), "there was no second connection");
    assert!(!env.mainstay_home().join("state").exists(), "nor a daemon");
    fs::remove_dir_all(env.mainstay_home()).unwrap();
}

#[test]
fn missing_access_to_the_socket_is_reported_at_once() {
    assert!(geteuid().is_root(), "acting as another user needs root");
    let env = no_start();
    let daemon = Daemon::new(&env);
    fs::set_permissions(env.mainstay_home().join("run"), mode(0o700)).unwrap();
    let begun = Instant::now();
    let output = env.run_prepared(as_nobody(&env, "ls"));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_snapshot!(output, @"
    exit: 4
    --- stderr
    error: the daemon cannot be reached at `[ROOT]/mainstay/run/daemon.sock`: Permission denied (os error 13)
    help: it belongs to another user; set MAINSTAY_HOME to a directory of yours
    ");
    assert!(daemon.is_idle());
}

#[test]
fn missing_access_to_an_own_directory_gets_a_help() {
    let env = no_start();
    let daemon = Daemon::new(&env);
    let run_dir = env.mainstay_home().join("run");
    fs::set_permissions(&run_dir, mode(0o000)).unwrap();
    let run = |word: &str| {
        // Root may open everything.
        if geteuid().is_root() {
            chown(&run_dir, Some(NOBODY), Some(NOBODY)).unwrap();
            env.run_prepared(as_nobody(&env, word))
        } else {
            env.run([word])
        }
    };
    assert_snapshot!(run("ls"), @"
    exit: 4
    --- stderr
    error: the daemon cannot be reached at `[ROOT]/mainstay/run/daemon.sock`: Permission denied (os error 13)
    help: you own it, but its mode denies access: chmod 700 [ROOT]/mainstay/run
    ");
    let doctor = run("doctor");
    assert_eq!(doctor.code, 1, "{doctor}");
    let reported = "help: you own it, but its mode denies access: chmod 700 [ROOT]/mainstay/run\n";
    assert!(doctor.stdout.contains(reported), "{doctor}");
    assert!(!doctor.stdout.contains("another user"), "{doctor}");
    fs::set_permissions(&run_dir, mode(0o700)).unwrap();
    assert!(daemon.is_idle());
}

#[test]
fn an_interrupted_request_is_not_repeated() {
    let env = no_start();
    let daemon = Daemon::new(&env);
    let stop = begin(&env, ["stop", "time"]);
    drop(daemon.hello());
    let output = output(stop);
    assert_snapshot!(output, @"
    exit: 4
    --- stderr
    error: the connection to the daemon closed in the middle of the request
    help: the daemon may have restarted; the request may have been executed, so repeat it only if that is safe
    ");
    assert!(daemon.is_idle());
}

#[test]
fn another_version_is_reported_on_stderr() {
    let env = no_start();
    let daemon = Daemon::new(&env);
    let (stdout, stderr) = ls_with(&env, &daemon, "0.0.1");
    assert_eq!(stdout, "[]\n", "stdout is data");
    let expected = format!(
        "the daemon is version 0.0.1, older than this program ({VERSION}); \
         `mainstay daemon reload` updates the daemon\n"
    );
    assert_eq!(stderr, expected);
    let (_, stderr) = ls_with(&env, &daemon, "99.0.0");
    let expected = format!(
        "this program is version {VERSION}, older than the daemon (99.0.0); use the program of the daemon\n"
    );
    assert_eq!(stderr, expected);
}

#[test]
fn the_status_reports_another_version() {
    let env = no_start();
    let daemon = Daemon::new(&env);
    let status = begin(&env, ["daemon", "status"]);
    let (mut peer, request) = daemon.hello_as("0.0.1");
    assert_eq!(request, json!({"method": "daemon"}));
    let about = json!({
        "pid": 1, "version": "0.0.1", "started_at": "2026-01-01T00:00:00Z", "servers": 0,
        "running": 0, "listen": null, "state_dir": "/s", "socket": "/s", "log": "/s",
        "instance": "i",
    });
    peer.say(&json!({"ok": about}).to_string());
    let (code, stdout, stderr) = end(status);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("version:") && stdout.contains("0.0.1"), "{stdout}");
    let expected = format!("the daemon is version 0.0.1, older than this program ({VERSION}); ");
    assert!(stderr.starts_with(&expected), "{stderr}");
}

#[test]
fn another_protocol_is_an_error() {
    let env = no_start();
    let daemon = Daemon::new(&env);
    let ls = begin(&env, ["ls"]);
    daemon.meet().say(r#"{"mainstay":"99.0.0","protocol":99}"#);
    let output = output(ls);
    assert_snapshot!(output, @"
    exit: 4
    --- stderr
    error: the daemon (version 99.0.0) uses protocol 99, and this program protocol 1
    help: run `mainstay daemon stop --keep-servers` with the program of the daemon, then `mainstay daemon start`
    ");
}

fn no_start() -> TestEnv {
    TestEnv::new().with_var("MAINSTAY_NO_START", "1")
}

/// What `ls --json` prints when it meets a daemon of that version.
fn ls_with(env: &TestEnv, daemon: &Daemon, version: &str) -> (String, String) {
    let ls = begin(env, ["ls", "--json"]);
    let (mut peer, request): (_, Value) = daemon.hello_as(version);
    assert_eq!(request, json!({"method": "list"}));
    peer.say(r#"{"ok":[]}"#);
    let (code, stdout, stderr) = end(ls);
    assert_eq!(code, Some(0), "{stderr}");
    (stdout, stderr)
}

fn begin<const N: usize>(env: &TestEnv, args: [&str; N]) -> Child {
    piped(&mut env.command(args))
}

fn piped(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn output(child: Child) -> Output {
    let (code, stdout, stderr) = end(child);
    Output { code: code.unwrap(), stdout, stderr }
}

fn mode(bits: u32) -> fs::Permissions {
    fs::Permissions::from_mode(bits)
}

/// A command of another user, who has to be able to reach the program and its directory.
fn as_nobody(env: &TestEnv, word: &str) -> Command {
    let command = env.command([word]);
    let program = env.root().join("program");
    fs::copy(command.get_program(), &program).unwrap();
    fs::set_permissions(&program, mode(0o755)).unwrap();
    fs::set_permissions(env.root(), mode(0o755)).unwrap();
    let mut other = Command::new(program);
    other.arg(word).env_clear().current_dir(env.work()).stdin(Stdio::null());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other.uid(NOBODY).gid(NOBODY);
    other
}
