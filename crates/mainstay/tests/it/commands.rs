//! Every command: its output for programs, and its exit code.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{TestEnv, fixture, kill, pid_of};

/// Whether a value exists and has the documented type; `?` allows null.
#[track_caller]
fn check(object: &Value, fields: &[(&str, &str)]) {
    for (name, kind) in fields {
        let value = object.get(name).unwrap_or_else(|| panic!("`{name}` is missing in {object:#}"));
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let good = kind.trim_end_matches('?') == found || (kind.ends_with('?') && value.is_null());
        assert!(good, "`{name}` should be {kind}: {value}");
    }
}

const SERVER: [(&str, &str); 16] = [
    ("name", "string"),
    ("status", "string"),
    ("reason", "string"),
    ("engine", "string"),
    ("transport", "string"),
    ("url", "string?"),
    ("generation", "number"),
    ("restarts", "number"),
    ("restart_max", "number"),
    ("restarts_total", "number"),
    ("started_at", "string?"),
    ("ready_at", "string?"),
    ("next_restart_at", "string?"),
    ("last_exit", "object?"),
    ("sessions", "number"),
    ("pid", "number?"),
];

const EXIT: [(&str, &str); 6] = [
    ("cause", "string"),
    ("detail", "string"),
    ("code", "number?"),
    ("signal", "number?"),
    ("oom", "bool"),
    ("at", "string"),
];

const EVENT: [(&str, &str); 6] = [
    ("at", "string"),
    ("server", "string?"),
    ("run", "number?"),
    ("event", "string"),
    ("cause", "string?"),
    ("detail", "string"),
];

#[test]
fn a_server_in_json() {
    let env = TestEnv::new();
    let started = env.run_server("time", &[], &[&fixture()]);
    check(&started, &SERVER);
    check(&started, &[("started_at", "string"), ("ready_at", "string"), ("pid", "number")]);
    assert_eq!((&started["engine"], &started["transport"]), (&json!("process"), &json!("stdio")));
    assert_eq!((&started["sessions"], &started["last_exit"]), (&json!(0), &Value::Null));

    kill(pid_of(&started), Signal::KILL);
    let again = env.once_running("time", 2);
    check(&again, &SERVER);
    check(&again["last_exit"], &EXIT);

    env.ok(["stop", "time"]);
    let stopped = env.server("time");
    check(&stopped, &SERVER);
    check(&stopped, &[("pid", "null"), ("started_at", "null"), ("ready_at", "null")]);
    assert_eq!(stopped["last_exit"]["cause"], "asked");
}

#[test]
fn status_and_why_in_json() {
    let env = TestEnv::new();
    let options = ["-e", "TOKEN=hush", "--restart-max", "3", "--replay", "add", "--hold", "1m"];
    env.run_server("time", &options, &[&fixture(), "--stderr", "hello there"]);
    let status = env.json(["status", "time", "--json"]);
    check(&status, &SERVER);
    check(
        &status,
        &[
            ("wanted", "string"),
            ("command", "array"),
            ("cwd", "string"),
            ("env", "array"),
            ("target", "null"),
            ("headers", "null"),
            ("restart", "object"),
            ("proxy", "object"),
            ("mcp", "object"),
            ("log", "string"),
            ("created_at", "string"),
        ],
    );
    check(&status["mcp"], &[("name", "string"), ("version", "string"), ("protocol", "string")]);
    assert_eq!((&status["env"], &status["cwd"]), (&json!(["TOKEN"]), &json!("[ROOT]/project")));
    assert_eq!(status["restart_max"], 3);
    let proxy = json!({
        "hold": "1m", "isolate": false, "isolate_idle": "30m", "call_timeout": "never",
        "tool_timeouts": {}, "replay": ["add"], "port": null, "quiet_restart": false,
        "late_results": true,
    });
    assert_eq!(status["proxy"], proxy);

    let why = env.json(["why", "time", "--json"]);
    check(&why["server"], &SERVER);
    check(
        &why,
        &[("wanted", "string"), ("events", "array"), ("stderr", "array"), ("log", "string")],
    );
    assert_eq!(why["stderr"], json!(["hello there"]));
    for event in why["events"].as_array().unwrap() {
        check(event, &EVENT);
    }

    let daemon = env.json(["daemon", "status", "--json"]);
    let numbers = ["pid", "servers", "running", "sessions"].map(|name| (name, "number"));
    let strings = ["version", "started_at", "state_dir", "socket", "log", "instance"];
    check(&daemon, &numbers);
    check(&daemon, &strings.map(|name| (name, "string")));
    assert_eq!((&daemon["servers"], &daemon["running"]), (&json!(1), &json!(1)));
}

#[test]
fn start_stop_restart_and_rm() {
    let env = TestEnv::new();
    for name in ["a", "b"] {
        env.run_server(name, &[], &[&fixture()]);
    }
    assert_eq!(env.ok(["stop", "a"]), "a is stopped\n");
    assert_eq!(env.ok(["stop", "a"]), "a is stopped already\n");
    assert_eq!(
        env.json(["stop", "--all", "--json"]),
        json!([
            {"name": "a", "changed": false, "status": "stopped", "clients": []},
            {"name": "b", "changed": true, "status": "stopped", "clients": []},
        ])
    );
    let hidden = env.run(["ls"]);
    assert_eq!((hidden.code, hidden.stdout.as_str()), (0, ""), "{hidden}");
    assert!(hidden.stderr.contains("ls -a"), "{hidden}");
    let shown = env.ok(["ls", "-a"]);
    assert!(shown.starts_with("NAME") && shown.contains("stopped"), "{shown}");

    let call = env.run(["call", "a", "pid"]);
    assert_eq!(call.code, 1, "{call}");
    assert!(call.stderr.contains("`mainstay start a` starts it"), "{call}");

    let pid = |name: &str| env.server(name)["pid"].to_string();
    let running = || format!("a is running (pid {})\nb is running (pid {})\n", pid("a"), pid("b"));
    assert_eq!(env.ok(["start", "--all"]), running());
    let up = env.once_running("a", 2);
    assert_eq!(env.ok(["start", "a"]), "a is running already\n");
    assert_eq!(env.ok(["restart", "a", "b"]), running());
    let again = env.once_running("a", 3);
    assert_ne!(again["pid"], up["pid"]);
    assert_eq!((&again["restarts"], &again["last_exit"]["cause"]), (&json!(0), &json!("asked")));
    env.once_running("b", 3);

    let some = env.run(["stop", "a", "nobody"]);
    assert_eq!(some.code, 3, "{some}");
    assert_eq!(env.server("a")["status"], "running", "all of them or none");

    assert_eq!(env.ok(["rm", "--all"]), "a is removed\nb is removed\n");
    assert_eq!(env.json(["ls", "--json"]), json!([]));
    assert_eq!(env.run(["rm", "--all"]).stderr, "there are no servers\n");
    assert!(!env.mainstay_home().join("state/logs/a.log").exists());
}

#[test]
fn why_shows_only_lines_of_the_server() {
    let env = TestEnv::new();
    env.run_server("mute", &[], &[&fixture()]);
    env.run_server("loud", &[], &[&fixture(), "--stderr", "hello there"]);
    env.ok(["stop", "--all"]);
    // A new daemon knows no more than the log, in which we mark where each run begins and ends.
    env.ok(["daemon", "stop"]);
    env.ok(["daemon", "start"]);
    assert!(env.ok(["logs", "mute"]).contains("--- run 1 "));
    assert_eq!(env.json(["why", "mute", "--json"])["stderr"], json!([]));
    assert_eq!(env.json(["why", "loud", "--json"])["stderr"], json!(["hello there"]));
    let why = env.ok(["why", "mute"]);
    assert!(!why.contains("standard error") && !why.contains("---"), "{why}");
}

#[test]
fn an_address_in_use_is_reported_by_run_and_ls() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let env = TestEnv::new().with_var("MAINSTAY_LISTEN", &address);
    let run = env.run(["run", "time", "--wait", "--", &fixture()]);
    assert_eq!(run.code, 0, "{run}");
    for output in [run, env.run(["ls"])] {
        let owner = format!("(pid {}), so clients do not reach your servers", std::process::id());
        assert!(output.stderr.contains(&format!("warning: {address} is in use by `")), "{output}");
        assert!(output.stderr.contains(&owner), "{output}");
    }
    drop(taken);
    env.once("time", "was reachable", |server| server["url"].is_string());
}

#[test]
fn a_name_can_be_used_again() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture(), "--stderr", "the old one"]);
    env.ok(["rm", "time"]);
    env.run_server("time", &[], &[&fixture(), "--stderr", "the new one"]);
    let logs = env.ok(["logs", "time"]);
    assert!(logs.contains("the new one") && !logs.contains("the old one"), "{logs}");
    assert_eq!(env.server("time")["restarts_total"], 0);
}

#[test]
fn logs_have_a_tail_and_can_be_followed() {
    let env = TestEnv::new();
    let script = format!(r"printf 'one\ntwo\nthree\n' >&2; exec {}", fixture());
    env.run_server("time", &[], &["sh", "-c", &script]);
    let logs = env.ok(["logs", "time", "--raw"]);
    let (head, rest) = logs.split_once('\n').unwrap();
    assert!(head.starts_with("--- run 1 started, pid "), "{logs}");
    assert_eq!(rest, "one\ntwo\nthree\n");
    assert_eq!(env.ok(["logs", "time", "--tail", "2", "--raw"]), "two\nthree\n");
    assert_eq!(env.ok(["logs", "time", "--tail", "0"]), "");
    let last = env.json(["logs", "time", "--tail", "1", "--json"]);
    assert_eq!((&last["server"], &last["line"]), (&json!("time"), &json!("three")));
    check(&last, &[("at", "string")]);

    let follower = env.follow(["logs", "time", "-f", "--tail", "1", "--raw"]);
    assert_eq!(follower.line(|_| true), "three");
    env.ok(["restart", "time"]);
    follower.line(|line| line.starts_with("--- run 2 started"));
    assert_eq!(follower.line(|_| true), "one");
}

#[test]
fn events_are_complete() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.run_server("other", &[], &[&fixture()]);
    env.ok(["rm", "time"]);
    let events = env.events("time");
    for event in &events {
        check(event, &EVENT);
    }
    let words: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(words, ["starting", "started", "ready", "wanted", "stopping", "ended", "removed"]);
    assert!(events.is_sorted_by_key(|event| event["at"].as_str().unwrap().to_owned()));
    assert!(events.iter().all(|event| event["server"] == "time"));
    assert_eq!(events[5]["cause"], "asked");

    assert!(env.ok(["events"]).contains("other"), "without a name, all servers");
    assert_eq!(env.ok(["events", "--tail", "2"]).lines().count(), 2);
    let last = env.json(["events", "time", "--tail", "1", "--json"]);
    assert_eq!(last["event"], "removed");
}

#[test]
fn tools_and_calls() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    let tools = env.json(["tools", "time", "--json"]);
    let echo = tools.as_array().unwrap().iter().find(|tool| tool["name"] == "echo").unwrap();
    check(echo, &[("description", "string"), ("inputSchema", "object")]);

    assert_eq!(env.ok(["call", "time", "echo", r#"{"text":"a\nb"}"#]), "a\nb\n");
    let whole = env.json(["call", "time", "echo", r#"{"text":"a"}"#, "--json"]);
    assert_eq!(whole["content"], json!([{"type": "text", "text": "a"}]));
    let input = env.run_with_input(["call", "time", "echo", "-"], "{\n\"text\":\n\"in\"}\n");
    assert_eq!((input.code, input.stdout.as_str()), (0, "in\n"), "{input}");

    let unknown = env.run(["call", "time", "fly"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (1, ""));
    assert!(unknown.stderr.contains("unknown tool `fly`"), "{unknown}");

    let failed = env.run(["call", "time", "env", r#"{"name":"NOT_SET"}"#]);
    assert_eq!((failed.code, failed.stdout.as_str()), (1, ""));
    assert_eq!(failed.stderr, "`NOT_SET` is not set\n");
    let failed = env.run(["call", "time", "env", r#"{"name":"NOT_SET"}"#, "--json"]);
    let result: Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!((failed.code, &result["isError"]), (1, &json!(true)));

    let crash = env.run(["call", "time", "crash", r#"{"code":7}"#]);
    assert_eq!(crash.code, 1, "{crash}");
    assert!(
        crash.stderr.contains("`time` stopped during this call; its effect is unknown"),
        "{crash}"
    );
    let again = env.once_running("time", 2);
    assert_eq!(again["last_exit"]["code"], 7);
}

#[test]
fn a_large_answer_is_complete() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    let answer = env.call("time", "bytes", r#"{"n":3000000}"#);
    assert_eq!(answer.len(), 3_000_000);
}

#[test]
fn a_server_gets_its_directory_and_environment() {
    let env = TestEnv::new().with_var("FROM_HERE", "mine").with_var("PRIVATE", "no");
    std::fs::create_dir(env.work().join("sub")).unwrap();
    env.write("vars", "A=file\nB=file\n");
    let options = ["--cwd", "sub", "--env-file", "vars", "-e", "A=flag", "-e", "FROM_HERE"];
    env.run_server("time", &options, &[&fixture()]);
    let get = |name: &str| env.run(["call", "time", "env", &format!(r#"{{"name":"{name}"}}"#)]);
    assert_eq!(env.call("time", "cwd", "{}"), "[ROOT]/project/sub");
    assert_eq!(get("A").stdout, "flag\n");
    assert_eq!(get("B").stdout, "file\n");
    assert_eq!(get("FROM_HERE").stdout, "mine\n");
    assert_eq!(get("PRIVATE").code, 1, "what was not given is not there");
    assert_eq!(get("MAINSTAY_HOME").code, 1);
}

#[test]
fn an_export_holds_no_secret_and_can_be_imported() {
    let env = TestEnv::new().with_var("TOKEN", "hush-hush");
    let options = ["-e", "TOKEN=hush-hush", "--restart-max", "3", "--stop-timeout", "2s"];
    env.run_server("time", &options, &[&fixture()]);
    let options = ["--hold", "5s", "--isolate", "--isolate-idle", "5m", "--replay", "add"];
    let options = [&options[..], &["--quiet-restart"]].concat();
    env.run_server("other", &options, &[&fixture(), "--stderr", "two words"]);
    let file = env.ok(["export"]);
    assert!(!file.contains("hush"), "{file}");
    for part in ["[servers.time]", "[servers.other]", "TOKEN", "two words"] {
        assert!(file.contains(part), "{part} is missing in\n{file}");
    }
    assert!(!env.ok(["export", "other"]).contains("time"));
    for args in [&["status", "time"][..], &["status", "time", "--json"], &["why", "time"]] {
        assert!(!env.ok(args).contains("hush"), "{args:?}");
    }

    env.ok(["rm", "--all"]);
    let path = env.work().join("servers.toml");
    std::fs::write(&path, file.replace("[ROOT]", env.root().to_str().unwrap())).unwrap();
    let imported = env.json(["import", "servers.toml", "--json"]);
    let names: Vec<_> = imported.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["other", "time"]);
    env.once("time", "was up", |server| server["status"] == "running");
    assert_eq!(env.call("time", "env", r#"{"name":"TOKEN"}"#), "hush-hush");
    assert_eq!(env.ok(["export"]), file, "what was imported is what was exported");
}

#[test]
fn an_import_is_all_or_none() {
    let env = TestEnv::new();
    let (good, none) = (fixture(), "/no/such/program");
    let table = |name: &str, program: &str| format!("[servers.{name}]\ncommand = ['{program}']\n");
    let import = |tables: &[String], options: &[&str]| {
        env.write("servers.toml", &format!("version = 1\n{}", tables.concat()));
        env.run([&["import", "servers.toml"], options].concat())
    };
    let refused = import(&[table("a", &good), table("b", none)], &[]);
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.stderr.contains("`b`: ") && refused.stderr.contains(none), "{refused}");
    assert_eq!(env.json(["ls", "--json"]), json!([]));

    let both = import(&[table("a", &good), table("b", &good)], &[]);
    assert_eq!(both.code, 0, "{both}");
    let before = env.once_running("a", 1);
    let taken = import(&[table("a", &good), table("c", &good)], &[]);
    assert_eq!(taken.code, 1, "{taken}");
    assert!(taken.stderr.contains("a server `a` exists already"), "{taken}");
    assert_eq!((env.server("c"), &env.server("a")["pid"]), (Value::Null, &before["pid"]));

    env.once_running("b", 1);
    let other = format!("[servers.b]\ncommand = ['{good}', '--stderr', 'hello']\n");
    let replaced = import(&[table("a", &good), other, table("c", &good)], &["--replace"]);
    assert_eq!(replaced.code, 0, "{replaced}");
    env.once_running("b", 2);
    env.once_running("c", 1);
    assert_eq!(env.server("a")["pid"], before["pid"], "what is the same already is left alone");
}

#[test]
fn every_command_reports_an_unknown_name() {
    let env = TestEnv::new();
    let commands =
        ["status", "why", "start", "stop", "restart", "rm", "logs", "tools", "export", "connect"];
    for command in commands {
        let output = env.run([command, "nobody"]);
        assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{command}: {output}");
        assert!(output.stderr.contains("there is no server `nobody`"), "{command}: {output}");
    }
    assert_eq!(env.run(["call", "nobody", "tool"]).code, 3);
}

#[test]
fn exit_codes_depend_on_the_kind_of_failure() {
    let env = TestEnv::new();
    assert_eq!(env.run(["daemon", "status"]).code, 4, "no daemon");
    assert_eq!(env.run(["ls"]).code, 0, "done");
    assert_eq!(env.run(["daemon", "status"]).code, 0, "there is one now");
    assert_eq!(env.run(["run", "time", "--", "/no/such"]).code, 1, "failed");
    assert_eq!(env.run(["run"]).code, 2, "usage");
    assert_eq!(env.run(["status", "time"]).code, 3, "no such server");
}

#[test]
fn the_demo_shows_a_session_that_survives() {
    let env = TestEnv::new();
    let shown = env.ok(["demo"]);
    assert!(shown.contains("20 + 22 = 42"), "{shown}");
    assert!(shown.contains(": no error, no second"), "{shown}");
}
