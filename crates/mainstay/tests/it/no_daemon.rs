//! Commands while no daemon runs.

use std::io::Write as _;
use std::os::unix::net::UnixListener;

use insta::assert_snapshot;

use crate::env::TestEnv;

#[test]
fn the_status_of_no_daemon() {
    let env = TestEnv::new();
    assert_snapshot!(env.run(["daemon", "status"]), @"
    exit: 4
    --- stdout
    not running
    ");
    assert_snapshot!(env.run(["daemon", "status", "--json"]), @"
    exit: 4
    --- stdout
    null
    ");
    assert!(!env.mainstay_home().exists(), "asking must not start a daemon");
}

#[test]
fn stopping_without_a_daemon_succeeds() {
    assert_snapshot!(TestEnv::new().run(["daemon", "stop"]), @"
    exit: 0
    --- stderr
    no daemon is running
    ");
}

#[test]
fn without_a_start_the_daemon_is_unreachable_after_the_grace_period() {
    let env = TestEnv::new().with_var("MAINSTAY_NO_START", "1");
    assert_snapshot!(env.run(["ls"]), @"
    exit: 4
    --- stderr
    error: the daemon cannot be reached at `[ROOT]/mainstay/run/daemon.sock`: No such file or directory (os error 2)
    help: it may be restarting: try again in a moment, or run `mainstay doctor` (with MAINSTAY_NO_START set, no daemon is started)
    ");
    assert!(!env.mainstay_home().exists(), "the variable forbids it");
}

#[test]
fn a_connection_closed_before_the_hello_is_reported() {
    let env = TestEnv::new().with_var("MAINSTAY_NO_START", "1");
    let run_dir = env.mainstay_home().join("run");
    std::fs::create_dir_all(&run_dir).unwrap();
    let listener = UnixListener::bind(run_dir.join("daemon.sock")).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    assert_snapshot!(env.run(["daemon", "status"]), @"
    exit: 4
    --- stderr
    error: the daemon at `[ROOT]/mainstay/run/daemon.sock` accepted the connection but did not answer
    help: it may be restarting: try again in a moment, or see `mainstay daemon status`
    ");
}

#[test]
fn an_error_instead_of_the_hello_is_reported_at_once() {
    let env = TestEnv::new();
    let run_dir = env.mainstay_home().join("run");
    std::fs::create_dir_all(&run_dir).unwrap();
    let listener = UnixListener::bind(run_dir.join("daemon.sock")).unwrap();
    std::thread::spawn(move || {
        let refusal = r#"{"error":{"kind":"invalid","message":"not for you","help":"ask"}}"#;
        let mut peer = listener.accept().unwrap().0;
        writeln!(peer, "{refusal}").unwrap();
    });
    // Only one connection is accepted, so a second try would wait for ever.
    assert_snapshot!(env.run(["ls"]), @"
    exit: 1
    --- stderr
    error: not for you
    help: ask
    ");
}

#[test]
fn the_doctor_starts_no_daemon() {
    let env = TestEnv::new();
    let output = env.run(["doctor"]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    assert!(output.stdout.contains("ok    daemon: not running"), "{output}");
    assert!(output.stdout.contains("`[ROOT]/mainstay/state` does not exist yet"), "{output}");
    assert!(!env.mainstay_home().exists());
}

#[test]
fn the_doctor_reports_a_state_directory_that_is_a_file() {
    let env = TestEnv::new();
    std::fs::write(env.mainstay_home(), "a file").unwrap();
    let output = env.run(["doctor", "--json"]);
    assert_eq!(output.code, 1);
    let checks: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let failed: Vec<_> = checks
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["level"] == "fail")
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["state directory", "runtime directory", "daemon"]);
}

#[test]
fn closed_output_is_not_an_error() {
    let env = TestEnv::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = env.command(["completions", "bash"]);
    let output = command.stdout(writer).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}
