//! Messages about servers that do not exist or do not start.

use std::fs;
use std::process::Stdio;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::env::{TestEnv, fixture, free_port, kill, until};

#[test]
fn events_of_an_unknown_server() {
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
fn a_removed_server_is_reported_as_removed() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.ok(["rm", "time"]);
    for line in ["status time", "why time", "logs time", "tools time", "call time echo"] {
        let output = env.run(line.split(' '));
        assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{line}: {output}");
        assert!(output.stderr.starts_with("error: `time` was removed "), "{line}: {output}");
        assert!(output.stderr.ends_with(" ago\nhelp: see `mainstay events time`\n"), "{output}");
    }
}

#[test]
fn the_first_failure_ends_a_wait_with_the_servers_last_lines() {
    let env = TestEnv::new();
    let script = "echo \"No module named 'x'\" >&2; exit 3";
    let slow = ["--restart-initial", "1h", "--restart-cap", "1h"];
    let failed = env.run_failing("bad", &slow, &["sh", "-c", script]);
    assert!(failed.stderr.contains("error: bad ended (exited 3 after "), "{failed}");
    assert!(failed.stderr.contains("its last lines:\n  No module named 'x'\n"), "{failed}");
    assert!(failed.stderr.contains("Mainstay keeps it and tries again"), "{failed}");
    assert_eq!(failed.stdout, "");
    env.once("bad", "was tried again", |server| server["generation"] == 2);
}

#[test]
fn with_json_an_error_is_json_too() {
    let env = TestEnv::new();
    let error = |args: &[&str]| -> (i32, serde_json::Value) {
        let output = env.run(args);
        (output.code, serde_json::from_str(&output.stderr).unwrap_or_else(|_| panic!("{output}")))
    };
    let (code, reported) = error(&["status", "tiem", "--json"]);
    assert_eq!((code, &reported["exit_code"]), (3, &json!(3)));
    assert_eq!(reported["error"], "there is no server `tiem`");
    assert_eq!(reported["help"], "`mainstay ls -a` shows all servers");
    let (code, reported) = error(&["ls", "--json", "--nonsense"]);
    assert_eq!(code, 2);
    assert!(
        reported["error"].as_str().unwrap().starts_with("unexpected argument '--nonsense'"),
        "{reported}"
    );
}

#[test]
fn a_remote_server_may_be_unreachable_at_first() {
    let env = TestEnv::new();
    let url = format!("http://127.0.0.1:{}/mcp", free_port());
    let output = env.run(["run", "far", "--url", &url]);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stdout.starts_with("added; far is not reachable yet: "), "{output}");
}

#[test]
fn a_command_in_quotes_is_refused_with_a_hint() {
    assert_snapshot!(TestEnv::new().run(["run", "x", "--", "python3 x.py"]), @"
    exit: 2
    --- stderr
    error: program `python3 x.py` not found
    help: leave out the quotes: `mainstay run x -- python3 x.py`
    ");
}

#[test]
fn a_tool_is_called_with_pairs_and_shown_with_its_parameters() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    assert_eq!(env.ok(["call", "fx", "echo", "text=a=b c"]), "a=b c\n");
    let shown = env.ok(["tools", "fx", "echo"]);
    assert!(shown.starts_with("echo\n") && shown.contains("  text  string  required"), "{shown}");
    assert_eq!(env.json(["tools", "fx", "echo", "--json"])["name"], "echo");
    let unknown = env.run(["tools", "fx", "eco"]);
    assert_eq!(unknown.code, 1, "{unknown}");
    assert!(unknown.stderr.contains("fx offers no tool `eco`"), "{unknown}");
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
        assert!(failed.stderr.contains("error: time ended (exited 3 after "), "{failed}");
        assert!(failed.stderr.contains("its last lines:\n  no licence\n"), "{failed}");
        assert!(failed.stderr.ends_with("help: see `mainstay why time`\n"), "{failed}");
    }
    assert_eq!(env.ok(["restart", "time", "--no-wait"]), "time is being restarted\n");
}

#[test]
fn a_start_fails_if_the_server_is_removed_meanwhile() {
    let env = TestEnv::new();
    env.ok(["run", "time", "--", &fixture(), "--never-answer"]);
    let mut command = env.command(["restart", "time"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    env.once("time", "was started again", |server| server["generation"] == 2);
    env.ok(["rm", "time"]);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b""[..]), "{stderr}");
    assert!(stderr.contains("`time` ") && stderr.contains("removed"), "{stderr}");
}

#[test]
fn ctrl_c_leaves_the_server_starting() {
    let env = TestEnv::new();
    let mut command = env.command(["run", "time", "--wait", "--", &fixture(), "--never-answer"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    env.once("time", "was started", |server| server["pid"].is_u64());
    // The wait begins after the start; a signal before it would end the command without a message.
    until("the command waits", || {
        let caught = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = caught.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        (u64::from_str_radix(caught, 16).unwrap() & 2 != 0).then_some(())
    });
    kill(child.id(), Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("time is still starting; see `mainstay status time`"), "{stderr}");
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

#[test]
fn a_changed_server_is_not_reported_as_added() {
    let env = TestEnv::new();
    let url = format!("http://127.0.0.1:{}/mcp", free_port());
    env.ok(["run", "far", "--url", &url]);
    let output = env.run(["run", "far", "--replace", "--url", &format!("{url}/2")]);
    assert!(output.stdout.starts_with("changed; far is not reachable yet: "), "{output}");
}

#[test]
fn a_misspelled_name_to_replace_gets_a_hint() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    assert_snapshot!(env.run(["run", "tiem", "--replace", "--hold", "9s"]), @"
    exit: 3
    --- stderr
    error: there is no server `tiem`
    help: did you mean `time`? `mainstay ls -a` shows all servers
    ");
    let added = env.run(["run", "tiem", "--replace", "--wait", "--", &fixture()]);
    assert_eq!(added.code, 0, "{added}");
    let hint = "there is no server `tiem` to replace, so it is added; did you mean `time`?";
    assert!(added.stderr.contains(hint), "{added}");
    let added = env.run(["run", "other", "--replace", "--wait", "--", &fixture()]);
    assert!(added.code == 0 && !added.stderr.contains("to replace"), "{added}");
}

#[test]
fn a_run_overtaken_by_a_stop_reports_that_the_server_was_added() {
    let env = TestEnv::new();
    let mut command = env.command(["run", "time", "--wait", "--", &fixture(), "--never-answer"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    env.once("time", "was started", |server| server["pid"].is_u64());
    env.ok(["daemon", "stop"]);
    let output = child.wait_with_output().unwrap();
    let reported = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(
        reported.contains("error: time was added, but Mainstay was stopped before it was ready"),
        "{reported}"
    );
    assert!(reported.contains("`mainstay daemon start` starts it"), "{reported}");
    env.ok(["daemon", "start"]);
    assert_eq!(env.server("time")["status"], "starting");
}

#[test]
fn a_start_waits_for_a_server_that_is_restarting() {
    let env = TestEnv::new();
    let script = format!("test -e go || exit 3; exec {}", fixture());
    let soon = ["--restart-initial", "2s", "--restart-cap", "2s"];
    env.run_failing("time", &soon, &["sh", "-c", &script]);
    env.once("time", "waits", |server| server["next_restart_at"].is_string());
    env.write("go", "");
    let started = env.run(["start", "time"]);
    assert_eq!(started.code, 0, "{started}");
    assert_eq!(started.stdout, format!("time is running (pid {})\n", env.server("time")["pid"]));
}

#[test]
fn why_begins_with_the_present_server_of_that_name() {
    let env = TestEnv::new();
    kill(crate::env::pid_of(&env.run_server("time", &[], &[&fixture()])), Signal::KILL);
    env.once_running("time", 2);
    env.ok(["rm", "time"]);
    env.run_server("time", &[], &[&fixture()]);
    let why = env.ok(["why", "time"]);
    assert!(!why.contains("SIGKILL"), "{why}");
    let part = "an earlier server of this name was removed";
    assert!(why.contains(part) && why.contains("`mainstay events time`"), "{why}");
}
