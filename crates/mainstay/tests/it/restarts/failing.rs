//! Messages while daemons keep failing.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::env::{TestEnv, kill, until, until_dead};
use crate::fake_daemon::{Daemon, VERSION};

/// What no daemon can start with.
const BAD_SETTINGS: &str = "refresh = 'often'\n";

#[test]
fn a_daemon_that_keeps_failing_is_reported_until_another_one_serves() {
    let (env, about) = failing();
    assert_snapshot!(env.run(["daemon", "status"]), @"
    exit: 4
    --- stderr
    error: the daemon keeps failing: `[ROOT]/mainstay/config.toml` cannot be used: line 1, column 11: unknown variant `often`, expected one of `auto`, `always`, `never`
    help: fix it, or move it away; Mainstay tries again every minute, and every 5 s while a client waits
    ");
    let doctor = || env.run(["doctor"]).stdout;
    let reported = "fail  daemon: the daemon keeps failing: `";
    assert!(doctor().contains(reported), "{}", doctor());
    fs::remove_file(settings(&env)).unwrap();
    env.ok(["ls"]);
    assert!(doctor().contains("ok    daemon: running"), "{}", doctor());
    assert_eq!(env.json(["daemon", "status", "--json"])["holder"], about["holder"]);
}

#[test]
fn a_daemon_that_keeps_failing_can_be_stopped() {
    let (env, about) = failing();
    assert_snapshot!(env.run(["daemon", "stop"]), @"
    exit: 0
    --- stderr
    the daemon did not respond; it is stopped, and its servers keep running; fix what `mainstay doctor` reports, then `mainstay daemon stop` stops them
    ");
    until_dead(pid(&about, "holder"));
    assert_snapshot!(env.run(["daemon", "status"]), @"
    exit: 4
    --- stdout
    stopped by `mainstay daemon stop`; `mainstay daemon start` starts it
    ");
    fs::remove_file(settings(&env)).unwrap();
    env.ok(["daemon", "start"]);
}

#[test]
fn a_failed_reload_is_reported_once_with_a_help() {
    let env = TestEnv::new();
    env.ok(["ls"]);
    let daemon = env.daemon();
    fs::write(env.mainstay_home().join("config.toml"), BAD_SETTINGS).unwrap();
    assert_snapshot!(env.run(["daemon", "reload"]), @"
    exit: 1
    --- stderr
    error: the old daemon keeps running: `[ROOT]/mainstay/config.toml` cannot be used: line 1, column 11: unknown variant `often`, expected one of `auto`, `always`, `never`
    help: fix it, or move it away
    ");
    assert_eq!(env.daemon(), daemon);
}

#[test]
fn a_reload_that_leaves_no_daemon_is_reported_at_once() {
    let env = TestEnv::new();
    let daemon = Daemon::new(&env);
    let begun = Instant::now();
    let reload = env.follow(["daemon", "reload"]);
    let (mut peer, request) = daemon.hello();
    assert_eq!(request, json!({"method": "daemon"}));
    let about = json!({
        "pid": 1, "version": VERSION, "started_at": "2026-01-01T00:00:00Z", "servers": 0,
        "running": 0, "listen": null, "state_dir": "/s", "socket": "/s", "log": "/s/daemon.log",
        "instance": "i", "number": 7,
    });
    peer.say(&json!({"ok": about}).to_string());
    let (mut peer, request) = daemon.hello();
    assert_eq!(request["method"], "reload");
    fs::write(env.mainstay_home().join("run/last-words"), "it was killed by signal 9").unwrap();
    daemon.leave();
    peer.say(&json!({"ok": null}).to_string());
    let (code, stderr) = reload.ending();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(
        stderr,
        "error: no daemon is running any more: it was killed by signal 9\n\
         help: the next command starts one; see its log: /s/daemon.log\n"
    );
}

/// A Mainstay whose daemons cannot start any more, and the status of the last one that could.
fn failing() -> (TestEnv, Value) {
    let env = TestEnv::new();
    env.ok(["ls"]);
    let about = env.json(["daemon", "status", "--json"]);
    fs::write(settings(&env), BAD_SETTINGS).unwrap();
    kill(pid(&about, "pid"), Signal::KILL);
    let failure_report = env.mainstay_home().join("run/last-words");
    until("the holder reports it", || failure_report.exists().then_some(()));
    (env, about)
}

fn settings(env: &TestEnv) -> PathBuf {
    env.mainstay_home().join("config.toml")
}

fn pid(about: &Value, field: &str) -> u32 {
    u32::try_from(about[field].as_u64().unwrap()).unwrap()
}
