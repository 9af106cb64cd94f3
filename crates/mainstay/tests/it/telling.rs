//! What is told of servers that are not there, or do not come up.

use std::fs;
use std::process::Stdio;

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::env::{TestEnv, fixture, kill, until};

#[test]
fn events_of_a_server_that_never_was() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    let unknown = env.run(["events", "tiem"]).to_string();
    assert_snapshot!(unknown, @"
    exit: 3
    --- stderr
    error: there is no server `tiem`
    help: did you mean `time`? `mainstay ls -a` shows all servers
    ");
    assert_eq!(env.run(["events", "-f", "tiem"]).to_string(), unknown);
    env.ok(["rm", "time"]);
    let events = env.run(["events", "time"]);
    assert_eq!((events.code, events.stderr.as_str()), (0, ""), "it left some");
    assert!(events.stdout.contains("ready"), "{events}");
}

#[test]
fn a_server_that_was_removed_is_told_as_that() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.ok(["rm", "time"]);
    for line in ["status time", "why time", "logs time", "tools time", "call time echo"] {
        let output = env.run(line.split(' '));
        assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{line}: {output}");
        assert!(output.stderr.starts_with("error: `time` was removed "), "{line}: {output}");
        assert!(
            output.stderr.ends_with(" ago\nhelp: `mainstay events time` tells more\n"),
            "{output}"
        );
    }
}

#[test]
fn the_first_failure_ends_a_wait_with_the_servers_last_lines() {
    let env = TestEnv::new();
    let script = "echo \"No module named 'x'\" >&2; exit 3";
    let slow = ["--restart-initial", "1h", "--restart-cap", "1h"];
    let failed = env.run_failing("bad", &slow, &["sh", "-c", script]);
    assert!(failed.stderr.contains("error: bad ended at once (exited 3 after "), "{failed}");
    assert!(failed.stderr.contains("its last words:\n  No module named 'x'\n"), "{failed}");
    assert!(failed.stderr.contains("Mainstay keeps it and tries again"), "{failed}");
    assert!(failed.stdout.starts_with('{'), "only data on stdout: {failed}");
    env.once("bad", "was tried again", |server| server["generation"] == 2);
}

#[test]
fn start_and_restart_come_back_when_the_server_is_ready_or_has_failed() {
    let env = TestEnv::new();
    let script =
        format!("test -e broken && {{ echo no licence >&2; exit 3; }}; exec {}", fixture());
    env.run_server(
        "time",
        &["--restart-initial", "1h", "--restart-cap", "1h"],
        &["sh", "-c", &script],
    );
    let up = env.ok(["restart", "time"]);
    assert_eq!(up, format!("time is running (pid {})\n", env.server("time")["pid"]));
    env.ok(["stop", "time"]);
    env.write("broken", "");
    for command in ["start", "restart"] {
        let failed = env.run([command, "time"]);
        assert_eq!((failed.code, &*failed.stdout), (1, ""), "{failed}");
        assert!(failed.stderr.contains("error: time ended at once (exited 3 after "), "{failed}");
        assert!(failed.stderr.contains("its last words:\n  no licence\n"), "{failed}");
        assert!(failed.stderr.ends_with("help: `mainstay why time` tells more\n"), "{failed}");
    }
    assert_eq!(env.ok(["restart", "time", "--no-wait"]), "time is being restarted\n");
}

#[test]
fn ctrl_c_leaves_the_server_starting() {
    let env = TestEnv::new();
    let mut command = env.command(["run", "time", "--wait", "--", &fixture(), "--never-answer"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    env.once("time", "was started", |server| server["pid"].is_u64());
    // The wait begins after the start; a signal before it would end the command without a word.
    until("the command waits", || {
        let caught = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = caught.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        (u64::from_str_radix(caught, 16).unwrap() & 2 != 0).then_some(())
    });
    kill(child.id(), Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("time is still starting; `mainstay status time`"), "{stderr}");
    assert_eq!(env.server("time")["status"], "starting");
}

#[test]
fn on_a_terminal_run_shows_the_last_line_and_waits() {
    let env = TestEnv::new();
    let script = format!("echo loading the model >&2; sleep 4; exec {}", fixture());
    let shown = env.on_terminal(&["run", "time", "--", "sh", "-c", &script]);
    assert!(shown.contains("starting time: loading the model"), "{shown:?}");
    assert!(shown.contains("(pid "), "it is ready: {shown:?}");
}
