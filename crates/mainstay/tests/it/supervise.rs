//! Servers that die, hang or misbehave.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{
    TestEnv, fixture, free_port, is_alive, kill, pid_of, shell_server, until, until_dead,
};

/// Restarts that a test need not wait for.
const QUICK: [&str; 4] = ["--restart-initial", "100ms", "--restart-cap", "100ms"];

/// A second restart that never comes within a test.
const SLOW: [&str; 4] = ["--restart-initial", "1h", "--restart-cap", "1h"];

#[test]
fn a_killed_server_is_restarted_and_why_explains_it() {
    let env = TestEnv::new();
    let first = env.run_server("time", &[], &[&fixture()]);
    assert_eq!((&first["generation"], &first["last_exit"]), (&json!(1), &Value::Null));
    kill(pid_of(&first), Signal::KILL);
    let second = env.once_running("time", 2);
    assert_ne!(second["pid"], first["pid"]);
    assert_eq!((&second["restarts"], &second["restarts_total"]), (&json!(1), &json!(1)));
    let exit = &second["last_exit"];
    assert_eq!((&exit["cause"], &exit["signal"]), (&json!("exited"), &json!(9)), "{exit}");
    assert_eq!((&exit["code"], &exit["oom"]), (&Value::Null, &json!(false)), "{exit}");
    assert_eq!(env.call("time", "pid", "{}"), second["pid"].to_string());
    assert!(env.ok(["tools", "time"]).contains("echo"));
    let why = env.ok(["why", "time"]);
    for part in ["time is running: ready, restarted once", "killed by SIGKILL", "signal 9"] {
        assert!(why.contains(part), "{part} is missing in:\n{why}");
    }
    assert!(why.contains("1 of 10 used, 9 left"), "{why}");
    let ended = env.events_called("time", "ended");
    assert_eq!(
        (ended.len(), &ended[0]["run"], &ended[0]["cause"]),
        (1, &json!(1), &json!("exited"))
    );
}

#[test]
fn exit_code_and_last_lines_are_reported() {
    let env = TestEnv::new();
    let script = "echo first words >&2; echo no config file >&2; exit 3";
    let output = env.run_failing("time", &["--no-restart"], &["sh", "-c", script]);
    assert!(output.stderr.contains("time is down: exited 3 after"), "{output}");
    assert!(output.stderr.contains("see `mainstay why time`"), "{output}");
    let why = env.json(["why", "time", "--json"]);
    assert_eq!(why["stderr"], json!(["first words", "no config file"]));
    assert_eq!(why["server"]["last_exit"]["code"], 3);
    let why = env.ok(["why", "time"]);
    for part in ["time is down: exited 3", "exit code 3", "| no config file", "restart time`"] {
        assert!(why.contains(part), "{part} is missing in:\n{why}");
    }
}

#[test]
fn a_server_with_no_restart_stays_down() {
    let env = TestEnv::new();
    let first = env.run_server("time", &["--no-restart"], &[&fixture()]);
    kill(pid_of(&first), Signal::KILL);
    let down = env.once("time", "went down", |server| server["status"] == "error");
    assert_eq!((&down["generation"], &down["pid"]), (&json!(1), &Value::Null));
    assert!(down["reason"].as_str().unwrap().contains("and is not restarted"), "{down}");
    env.ok(["start", "time"]);
    env.once_running("time", 2);
}

#[test]
fn a_crash_loop_ends_and_a_restart_after_the_fix_helps() {
    let env = TestEnv::new();
    let script = format!("test -e fixed || exit 1; exec {}", fixture());
    let options = [&["--restart-max", "2"], &QUICK[..]].concat();
    let output = env.run_failing("time", &options, &["sh", "-c", &script]);
    assert!(output.stderr.contains("time ended (exited 1 after"), "{output}");
    let down = env.once("time", "was given up", |server| server["status"] == "error");
    assert_eq!(down["generation"], 3, "{down}");
    assert!(down["reason"].as_str().unwrap().contains("gave up after 2 restarts"), "{down}");
    assert_eq!((&down["restarts_total"], &down["next_restart_at"]), (&json!(2), &Value::Null));
    assert_eq!(env.events_called("time", "started").len(), 3);
    assert_eq!(env.events_called("time", "gave-up").len(), 1);
    let call = env.run(["call", "time", "pid"]);
    assert_eq!(call.code, 1, "{call}");
    assert!(call.stderr.contains("`time` is down: gave up after 2 restarts"), "{call}");

    env.write("fixed", "");
    env.ok(["restart", "time"]);
    let up = env.once_running("time", 4);
    assert_eq!(up["restarts"], 0, "a restart by hand begins with a full budget");
    assert_eq!(env.call("time", "pid", "{}"), up["pid"].to_string());
}

#[test]
fn stable_runs_never_use_up_the_budget() {
    let env = TestEnv::new();
    let options = ["--stable-after", "0s", "--restart-max", "1"];
    let mut server = env.run_server("time", &options, &[&fixture()]);
    for generation in 2..=4 {
        kill(pid_of(&server), Signal::KILL);
        server = env.once_running("time", generation);
        assert_eq!(
            (&server["restarts"], &server["restarts_total"]),
            (&json!(0), &json!(generation - 1))
        );
    }
    assert_eq!(env.events_called("time", "budget-reset").len(), 3);
}

#[test]
fn unstable_runs_use_up_the_budget() {
    let env = TestEnv::new();
    let options = ["--stable-after", "1h", "--restart-max", "1"];
    let first = env.run_server("time", &options, &[&fixture()]);
    kill(pid_of(&first), Signal::KILL);
    kill(pid_of(&env.once_running("time", 2)), Signal::KILL);
    let down = env.once("time", "was given up", |server| server["status"] == "error");
    assert_eq!((&down["generation"], &down["last_exit"]["signal"]), (&json!(2), &json!(9)));
}

#[test]
fn a_long_delay_is_cut_short_by_restart_stop_start_and_rm() {
    let env = TestEnv::new();
    let waits = |generation: u64| {
        env.once("time", "waited", |server| {
            server["generation"] == generation && server["next_restart_at"].is_string()
        })
    };
    env.run([&["run", "time"], &SLOW[..], &["--", "sh", "-c", "exit 1"]].concat());
    let waiting = waits(2);
    assert_eq!((&waiting["status"], &waiting["restarts"]), (&json!("restarting"), &json!(2)));
    assert!(waiting["reason"].as_str().unwrap().contains("restart 2 of 10 in 1 h"), "{waiting}");
    env.ok(["restart", "time", "--no-wait"]);
    waits(4);
    assert_eq!(env.ok(["stop", "time"]), "time is stopped\n");
    let stopped = env.server("time");
    assert_eq!(
        (&stopped["status"], &stopped["next_restart_at"]),
        (&json!("stopped"), &Value::Null)
    );
    env.ok(["start", "time", "--no-wait"]);
    waits(6);
    assert_eq!(env.ok(["rm", "time"]), "time is removed\n");
    assert_eq!(env.json(["ls", "--json"]), json!([]));
}

#[test]
fn a_server_that_never_answers_is_killed_and_counted() {
    let env = TestEnv::new();
    let options = [&["--start-timeout", "200ms", "--restart-max", "1"], &QUICK[..]].concat();
    let output = env.run_failing("time", &options, &[&fixture(), "--never-answer"]);
    assert!(output.stderr.contains("did not answer `initialize` within 200 ms"), "{output}");
    let down = env.once("time", "was given up", |server| server["status"] == "error");
    let cause = &down["last_exit"]["cause"];
    assert_eq!((&down["generation"], cause), (&json!(2), &json!("not-ready")));
    assert_eq!(env.events_called("time", "start-timed-out").len(), 2);
    assert_eq!(servers(&env), [0; 0]);
    let why = env.ok(["why", "time"]);
    assert!(why.contains("it never answered `initialize`: check that the command"), "{why}");
}

#[test]
fn a_slow_start_is_waited_for() {
    let env = TestEnv::new();
    let server = env.run_server("time", &[], &[&fixture(), "--ready-after", "500"]);
    assert_eq!((&server["status"], &server["generation"]), (&json!("running"), &json!(1)));
}

#[test]
fn an_endless_start_blocks_neither_the_prompt_nor_a_stop() {
    let env = TestEnv::new();
    let words = env.ok(["run", "time", "--", &fixture(), "--ready-after", "600000"]);
    assert!(words.contains("time is starting"), "{words}");
    assert_eq!(env.server("time")["ready_at"], Value::Null);
    assert_eq!(env.ok(["stop", "time"]), "time is stopped\n");
    assert_eq!(servers(&env), [0; 0]);
}

#[test]
fn a_server_that_ignores_term_is_killed() {
    let env = TestEnv::new();
    let flags = [&fixture(), "--ignore-term", "--ignore-stdin-eof"];
    let pid = pid_of(&env.run_server("time", &["--stop-timeout", "200ms"], &flags));
    kill(pid, Signal::TERM);
    assert_eq!(env.call("time", "pid", "{}"), pid.to_string(), "it lives on after TERM");
    assert_eq!(env.ok(["stop", "time"]), "time is stopped\n");
    assert!(!is_alive(pid));
}

#[test]
fn a_server_that_closes_its_output_but_keeps_running_is_hung() {
    let env = TestEnv::new();
    let script = shell_server("read -r request; exec sleep 600 >&-");
    let first = env.run_server("time", &["--no-restart"], &["sh", "-c", &script]);
    assert_eq!(env.run(["tools", "time"]).code, 1, "callers get the error at once");
    let down = env.once("time", "was called hung", |server| server["status"] == "error");
    assert_eq!(down["last_exit"]["cause"], "hung", "{down}");
    assert!(down["reason"].as_str().unwrap().contains("closed its output"), "{down}");
    assert!(!is_alive(pid_of(&first)));
}

#[test]
fn a_flood_on_both_streams_blocks_no_other_server() {
    let env = TestEnv::new();
    let flags = ["--flood-stdout", "4000000", "--flood-stderr", "8000000"];
    env.run_server("time", &[], &[&[&*fixture()], &flags[..]].concat());
    assert_eq!(env.call("time", "echo", r#"{"text":"dry"}"#), "dry");
    let logs = fs::read_dir(env.mainstay_home().join("state/logs")).unwrap();
    let bytes: u64 = logs.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 16 << 20, "the logs take {bytes} bytes");
}

#[test]
fn junk_on_standard_output_goes_to_the_log() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture(), "--junk-stdout"]);
    assert_eq!(env.call("time", "echo", r#"{"text":"hello"}"#), "hello");
    until("the junk is in the log", || {
        env.ok(["logs", "time"]).contains("[stdout] Loading model...").then_some(())
    });
    let why = env.ok(["why", "time"]);
    assert!(why.contains("On standard output") && why.contains("| Loading model..."), "{why}");
}

#[test]
fn daemonized_children_end_with_their_run() {
    let env = TestEnv::new();
    let pid_file = env.work().join("orphan");
    let file = pid_file.to_str().unwrap();
    let flags = [&fixture(), "--daemonize-child", "--child-pid-file", file];
    let first = env.run_server("time", &[], &flags);
    let orphan = read_pid(&pid_file);
    assert!(is_alive(orphan));
    fs::remove_file(&pid_file).unwrap();

    kill(pid_of(&first), Signal::KILL);
    let second = env.once_running("time", 2);
    assert!(!is_alive(orphan), "nothing of the first run is left when the second begins");
    let orphan = read_pid(&pid_file);
    assert!(is_alive(orphan));

    env.ok(["rm", "time"]);
    assert!(!is_alive(orphan) && !is_alive(pid_of(&second)));
    assert_eq!(servers(&env), [0; 0]);
}

#[test]
fn an_http_server_is_supervised_too() {
    let env = TestEnv::new();
    let port = free_port().to_string();
    let address = format!("127.0.0.1:{port}");
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let first = env.run_server("web", &options, &[&fixture(), "--http", &address]);
    assert_eq!(first["transport"], "streamable-http");
    assert!(env.ok(["tools", "web"]).contains("echo"));
    assert_eq!(env.call("web", "pid", "{}"), first["pid"].to_string());
    kill(pid_of(&first), Signal::KILL);
    let second = env.once_running("web", 2);
    assert_eq!(env.call("web", "pid", "{}"), second["pid"].to_string());
    assert_eq!(env.ok(["stop", "web"]), "web is stopped\n");
    assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse().unwrap())).is_ok());
}

#[test]
fn an_http_server_that_loses_its_sessions_is_recovered() {
    let env = TestEnv::new();
    let port = free_port().to_string();
    let address = format!("127.0.0.1:{port}");
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let flags = [&fixture(), "--http", &address, "--forget-session-after", "3"];
    let first = env.run_server("web", &options, &flags);
    for count in 1..=5 {
        assert!(env.ok(["tools", "web"]).contains("count"));
        // A call that meets a lost session was not looked at, so none is left out or made twice.
        assert_eq!(env.call("web", "count", "{}"), count.to_string());
    }
    let last = env.server("web");
    for field in ["pid", "generation", "restarts", "restarts_total", "status"] {
        assert_eq!(last[field], first[field], "{field}");
    }
}

#[test]
fn a_replacement_keeps_other_settings_and_lists_changes() {
    let env = TestEnv::new();
    let first = env.run_server("time", &["-e", "A=old", "--hold", "9s"], &[&fixture()]);
    let same = env.run(["run", "time", "--replace", "--wait"]);
    assert_eq!(same.code, 0, "{same}");
    assert!(same.stderr.contains("time is unchanged and was not restarted"), "{same}");
    assert_eq!(env.server("time")["pid"], first["pid"]);
    assert_eq!(env.json(["run", "time", "--replace", "--json"])["unchanged"], true);

    let changed = env.run(["run", "time", "--replace", "--wait", "-e", "B=new"]);
    assert_eq!(changed.code, 0, "{changed}");
    assert!(changed.stderr.contains("changed: -e B\n"), "{changed}");
    let status = env.json(["status", "time", "--json"]);
    assert_eq!((&status["env"], &status["proxy"]["hold"]), (&json!(["A", "B"]), &json!("9s")));
    assert_eq!((&status["command"], &status["generation"]), (&json!([fixture()]), &json!(2)));
    assert_eq!(env.call("time", "env", r#"{"name": "A"}"#), "old");

    env.ok(["stop", "time"]);
    env.ok(["run", "time", "--replace", "--wait"]);
    assert_eq!(env.server("time")["status"], "running", "what was stopped is on again");
    env.ok(["daemon", "stop"]);
    env.ok(["run", "time", "--replace", "--wait"]);
    env.run_server("time", &["--reset"], &[&fixture()]);
    let status = env.json(["status", "time", "--json"]);
    assert_eq!((&status["env"], &status["proxy"]["hold"]), (&json!([]), &json!("45s")));
}

#[test]
fn a_port_in_use_is_an_error_at_once() {
    let env = TestEnv::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let output = env.run_failing("web", &options, &[&fixture(), "--http", &address]);
    let us = std::process::id();
    let expected = format!("port {port} is already in use by `");
    assert!(output.stderr.contains(&format!("` (pid {us})")), "{output}");
    assert!(output.stderr.contains(&expected), "{output}");
    let down = env.server("web");
    assert_eq!((&down["status"], &down["restarts"]), (&json!("error"), &json!(0)), "{down}");
    assert_eq!(down["last_exit"]["cause"], "cannot-start");
}

#[test]
fn a_program_that_vanishes_is_an_error_and_not_a_loop() {
    let env = TestEnv::new();
    let program = env.write("server", &format!("#!/bin/sh\nexec {}\n", fixture()));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let first = env.run_server("time", &[], &["./server"]);
    fs::remove_file(program).unwrap();
    kill(pid_of(&first), Signal::KILL);
    let down = env.once("time", "failed to start", |server| server["status"] == "error");
    assert_eq!(down["last_exit"]["cause"], "cannot-start", "{down}");
    assert!(down["reason"].as_str().unwrap().contains("it does not exist"), "{down}");
}

#[test]
fn a_replaced_server_has_one_run_and_the_new_command() {
    let env = TestEnv::new();
    let first = env.run_server("time", &[], &[&fixture()]);
    let taken = env.run(["run", "time", "--", &fixture()]);
    assert_eq!(taken.code, 1, "{taken}");
    assert!(taken.stderr.contains("a server `time` exists already"), "{taken}");
    assert!(taken.stderr.contains("--replace"), "{taken}");
    assert_eq!(env.server("time")["pid"], first["pid"], "a refused command changes nothing");

    let second = env.run_server("time", &["--replace", "-e", "A=new"], &[&fixture()]);
    assert_eq!((&second["generation"], &second["restarts"]), (&json!(2), &json!(0)));
    until_dead(pid_of(&first));
    assert_eq!(servers(&env), [pid_of(&second)]);
    assert_eq!(env.call("time", "env", r#"{"name":"A"}"#), "new");
}

/// The fixtures that run in this environment.
fn servers(env: &TestEnv) -> Vec<u32> {
    let is_fixture = |pid: &u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|program| program == Path::new(&fixture()))
    };
    env.processes().into_iter().filter(is_fixture).collect()
}

fn read_pid(file: &Path) -> u32 {
    fs::read_to_string(file).unwrap().parse().unwrap()
}
