//! Invalid input and broken environments: each has a clear error, and nothing is lost.
//!
//! Invalid commands are in `usage`, files in `import`, servers that misbehave in `supervise`, second daemons and stale
//! sockets in `daemon_lifecycle`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use rustix::process::{Signal, geteuid};
use serde_json::json;

use crate::env::{Output, TestEnv, fixture, kill, pid_of, until};
use crate::full_disk::{Disk, wrapped};

/// Another user.
const NOBODY: u32 = 65_534;

#[test]
fn a_name_in_use_is_refused() {
    let env = TestEnv::new();
    let first = env.run_server("time", &[], &[&fixture()]);
    assert_snapshot!(env.run(["run", "time", "--", "true"]), @"
    exit: 1
    --- stderr
    error: a server `time` exists already
    help: replace it with `--replace`, or choose another name
    ");
    assert_eq!(env.call("time", "pid", "{}"), first["pid"].to_string());
}

#[test]
fn a_program_that_cannot_be_run_is_refused_and_nothing_is_kept() {
    let env = TestEnv::new();
    env.write("data", "no program");
    let check = |program: &str, expected: &str| {
        let output = env.run(["run", "time", "--", program]);
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output}");
        assert!(output.stderr.contains(expected), "{output}");
        assert!(output.stderr.contains("help: nothing was changed"), "{output}");
    };
    check("no-such-program", "program `no-such-program` was not found on the search path (/usr");
    check("./no-such-program", "no-such-program` cannot be executed: it does not exist");
    check("./data", "data` cannot be executed: it is not marked as executable (`chmod +x`");
    check("/", "`/` cannot be executed: it is a directory");
    check("./data/program", "data/program` cannot be executed: it does not exist");
    assert_eq!(env.json(["ls", "-a", "--json"]), json!([]));
}

#[test]
fn a_script_without_its_interpreter_is_down_at_once_and_comes_up_after_the_fix() {
    let env = TestEnv::new();
    let interpreter = env.work().join("interpreter");
    let script = env.write("script", &format!("#!{}\n", interpreter.display()));
    make_executable(&script);
    assert_snapshot!(env.run(["run", "time", "--", "./script"]), @"
    exit: 1
    --- stderr
    error: time is down: cannot start: `[ROOT]/project/./script` cannot be executed: the interpreter that its first line names does not exist
    help: see `mainstay why time`; Mainstay keeps it: correct it with `mainstay run time --replace ...`, or `mainstay rm time`
    ");
    let down = env.server("time");
    assert_eq!((&down["status"], &down["restarts"]), (&json!("error"), &json!(0)), "{down}");
    fs::copy(fixture(), &interpreter).unwrap();
    // The fixture would take the script's path for an argument.
    fs::write(&script, format!("#!/bin/sh\nexec {}\n", interpreter.display())).unwrap();
    env.ok(["start", "time"]);
    env.once("time", "came up", |server| server["status"] == "running");
}

#[test]
fn a_working_directory_must_be_a_directory() {
    let env = TestEnv::new();
    env.write("file", "");
    for (cwd, why) in [("file", "it is not a directory"), ("no/such", "it does not exist")] {
        let run = env.run(["run", "time", "--cwd", cwd, "--", "true"]);
        let table = format!("command = ['true']\ncwd = '{}'", env.work().join(cwd).display());
        env.write("servers.toml", &format!("version = 1\n[servers.time]\n{table}\n"));
        let import = env.run(["import", "servers.toml"]);
        let text = format!(
            "error: `time`: the working directory `[ROOT]/project/{cwd}` cannot be used: {why}\n\
             help: nothing was changed; fix the command and try again\n"
        );
        for output in [run, import] {
            assert_eq!((output.code, &output.stderr), (1, &text), "{output}");
        }
    }
    assert_eq!(env.json(["ls", "--json"]), json!([]), "what is refused is not stored");
}

#[test]
fn a_missing_directory_is_named_and_its_return_is_enough() {
    let env = TestEnv::new();
    let dir = env.work().join("dir");
    fs::create_dir(&dir).unwrap();
    let first = env.run_server("time", &["--cwd", "dir"], &[&fixture()]);
    fs::remove_dir(&dir).unwrap();
    kill(pid_of(&first), Signal::KILL);
    let down = env.once("time", "went down", |server| server["status"] == "error");
    let reason = down["reason"].as_str().unwrap();
    assert!(reason.contains("/project/dir` cannot be used: it does not exist"), "{down}");
    fs::create_dir(&dir).unwrap();
    env.ok(["restart", "time"]);
    env.once("time", "came up", |server| server["status"] == "running");
    assert!(env.call("time", "cwd", "{}").ends_with("/project/dir"));
}

#[test]
fn a_home_below_a_file_cannot_be_used() {
    let env = TestEnv::new();
    let file = env.write("file", "a file");
    let home = file.join("home");
    let env = env.with_var("MAINSTAY_HOME", home.to_str().unwrap());
    assert_snapshot!(env.run(["run", "time", "--", "true"]), @"
    exit: 4
    --- stderr
    error: the daemon could not be started: the directory `[ROOT]/project/file/home/state` cannot be used: not a directory
    help: make `[ROOT]/project/file/home/state` writable, or set MAINSTAY_HOME to a directory you can write to
    ");
    assert_eq!(fs::read_to_string(file).unwrap(), "a file");
}

#[test]
fn a_home_that_cannot_be_written_is_named() {
    let env = TestEnv::new();
    let disk = Disk::mount(&env, "ro");
    assert_snapshot!(disk.run(["run", "time", "--", "true"]), @"
    exit: 4
    --- stderr
    error: the daemon could not be started: the directory `[ROOT]/mainstay/state` cannot be used: read-only file system
    help: make `[ROOT]/mainstay/state` writable, or set MAINSTAY_HOME to a directory you can write to
    ");
}

#[test]
fn a_home_of_another_user_is_not_used() {
    assert!(geteuid().is_root(), "giving a directory away needs root");
    let env = TestEnv::new();
    let run_dir = env.mainstay_home().join("run");
    fs::create_dir_all(&run_dir).unwrap();
    chown(&run_dir, Some(NOBODY), None).unwrap();
    assert_snapshot!(env.run(["ls"]), @"
    exit: 4
    --- stderr
    error: the daemon could not be started: the directory `[ROOT]/mainstay/run` belongs to another user
    help: `chown` it to yourself (`[ROOT]/mainstay/run`), or set MAINSTAY_HOME to a directory you can write to
    ");
}

#[test]
fn a_socket_of_another_user_is_not_used() {
    assert!(geteuid().is_root(), "acting as another user needs root");
    let env = TestEnv::new().with_var("MAINSTAY_NO_START", "1");
    env.run_prepared(unset(env.command(["ls"]), "MAINSTAY_NO_START"));
    let program = env.work().join("mainstay");
    fs::copy(env!("CARGO_BIN_EXE_mainstay"), &program).unwrap();
    let as_nobody = || {
        let mut line: Vec<_> =
            ["--reuid=65534", "--regid=65534", "--clear-groups"].map(String::from).into();
        line.extend([program.to_str().unwrap().to_owned(), "ls".to_owned()]);
        let mut command = wrapped(&env.command::<&str>([]), "setpriv", &line);
        command.current_dir("/");
        env.run_prepared(command)
    };
    let run_dir = env.mainstay_home().join("run");
    for dir in [env.root(), &env.work()] {
        open_to_all(dir);
    }
    assert_snapshot!(as_nobody(), @"
    exit: 4
    --- stderr
    error: the daemon cannot be reached at `[ROOT]/mainstay/run/daemon.sock`: Permission denied (os error 13)
    help: it belongs to another user; set MAINSTAY_HOME to a directory of yours
    ");
    // Even if the directories are open to others, the daemon checks the user of a connection.
    for path in [env.mainstay_home(), run_dir.clone(), run_dir.join("daemon.sock")] {
        open_to_all(&path);
    }
    assert_snapshot!(as_nobody(), @"
    exit: 1
    --- stderr
    error: this daemon belongs to another user
    help: set MAINSTAY_HOME to a directory of yours to run your own
    ");
    env.once_logged("another user tried to reach the control socket", 1);
    env.ok(["ls"]);
}

#[test]
fn an_invalid_database_is_refused_and_not_changed() {
    let garbage = "this is no database ".repeat(1000).into_bytes();
    let output = with_database(|_| garbage);
    assert_snapshot!(output, @"
    exit: 4
    --- stderr
    error: the daemon could not be started: the database `[ROOT]/mainstay/state/state.db` is damaged: file is not a database
    help: `mainstay doctor --restore` restores it from `[ROOT]/mainstay/state/state.db.backup`
    ");
}

#[test]
fn a_truncated_database_is_refused_and_not_changed() {
    let output = with_database(|whole| whole[..whole.len() / 2].to_vec());
    assert_eq!(output.code, 4, "{output}");
    let damaged = "the database `[ROOT]/mainstay/state/state.db` is damaged: ";
    assert!(output.stderr.contains(damaged), "{output}");
    assert!(output.stderr.contains("`mainstay doctor --restore` restores it"), "{output}");
}

#[test]
fn a_newer_database_is_refused_and_not_changed() {
    let output = with_database(|mut whole| {
        // Where SQLite keeps the number that says which schema the file has.
        whole[60..64].copy_from_slice(&7_u32.to_be_bytes());
        whole
    });
    assert_snapshot!(output, @"
    exit: 4
    --- stderr
    error: the daemon could not be started: the database `[ROOT]/mainstay/state/state.db` has schema 7, this version of Mainstay knows 2
    help: install the newer version again, or point MAINSTAY_HOME elsewhere
    ");
}

#[test]
fn a_damaged_event_log_is_moved_aside() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.ok(["daemon", "stop"]);
    let state = env.mainstay_home().join("state");
    let garbage = "this is no event log ".repeat(1000);
    fs::write(state.join("events.db"), &garbage).unwrap();
    env.ok(["daemon", "start"]);
    env.once("time", "came up", |server| server["status"] == "running");
    assert_eq!(fs::read_to_string(state.join("events.db.damaged")).unwrap(), garbage);
    assert_eq!(env.events_called("time", "ready").len(), 1);
    env.once_logged("moving it aside", 1);
}

#[test]
fn the_daemon_starts_without_a_writable_event_log() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.ok(["daemon", "stop"]);
    let events = env.mainstay_home().join("state/events.db");
    for part in ["", "-wal", "-shm"] {
        let _absent = fs::remove_file(format!("{}{part}", events.display()));
    }
    fs::create_dir(&events).unwrap();
    env.ok(["daemon", "start"]);
    env.once("time", "came up", |server| server["status"] == "running");
    assert_eq!(env.events_called("time", "ready").len(), 1, "it is in memory");
    assert!(env.run(["doctor"]).stdout.contains("event log: "));
    env.once_logged("the event log cannot be opened", 1);
}

#[test]
fn the_daemon_starts_without_a_writable_log() {
    let env = TestEnv::new();
    fs::create_dir_all(env.mainstay_home().join("state/daemon.log")).unwrap();
    env.run_server("time", &[], &[&fixture()]);
    assert_eq!(env.call("time", "count", "{}"), "1");
}

#[test]
fn a_server_that_exits_at_once_is_reported_and_kept() {
    let env = TestEnv::new();
    let line = ["run", "time", "--", &fixture(), "--exit-at-start", "7", "--stderr", "no config"];
    let output = env.run(line);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output}");
    assert!(output.stderr.contains("error: time ended (exited 7 after"), "{output}");
    assert!(output.stderr.contains("\nits last lines:\n  no config\n"), "{output}");
    assert!(output.stderr.contains("help: see `mainstay why time`"), "{output}");
    let status = env.json(["status", "time", "--json"]);
    assert_eq!(status["last_exit"]["code"], 7, "{status}");
    let why = env.ok(["why", "time"]);
    for part in ["exit code 7", "| no config", "of 10 used"] {
        assert!(why.contains(part), "{part} is missing in:\n{why}");
    }
}

#[test]
fn an_argument_that_is_too_large_fails_one_call() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    assert_eq!(env.call("time", "count", "{}"), "1");
    let call = |bytes: usize| {
        let arguments = format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes));
        env.run_with_input(["call", "time", "echo", "-"], &arguments)
    };
    assert_snapshot!(call(21_000_000), @"
    exit: 1
    --- stderr
    error: the request is too large: 21000081 bytes, the limit is 20971520
    ");
    let output = call(18_000_000);
    assert_eq!(output.code, 1, "{output}");
    assert!(output.stderr.contains("`tools/call` is too large: 18000"), "{output}");
    assert_eq!(call(16_000_000).stdout.len(), 16_000_001);
    assert_eq!(env.call("time", "count", "{}"), "2", "it is the same run");
}

#[test]
fn an_answer_that_is_too_large_fails_one_call() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    assert_eq!(env.call("time", "count", "{}"), "1");
    assert_snapshot!(env.run(["call", "time", "bytes", r#"{"n":17825792}"#]), @"
    exit: 1
    --- stderr
    error: the MCP server `time` failed: the server answered `tools/call` with a line of more than 16777216 bytes
    help: `mainstay why time` explains what happened
    ");
    assert_eq!(env.call("time", "count", "{}"), "2", "it is the same run and session");
    until("it is logged", || {
        env.ok(["logs", "time"]).contains("bytes was dropped: too long]").then_some(())
    });
}

/// Runs a command on a changed database, which must stay as it is, and whose return to what it was
/// must bring everything back.
fn with_database(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Output {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.ok(["daemon", "stop"]);
    let path = env.mainstay_home().join("state/state.db");
    let good = fs::read(&path).unwrap();
    let bad = change(good.clone());
    fs::write(&path, &bad).unwrap();
    let output = env.run(["daemon", "start"]);
    assert!(fs::read(&path).unwrap() == bad, "the file was touched");
    fs::write(&path, good).unwrap();
    env.ok(["daemon", "start"]);
    env.once("time", "came back", |server| server["status"] == "running");
    output
}

fn unset(mut command: Command, name: &str) -> Command {
    command.env_remove(name);
    command
}

fn make_executable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}
