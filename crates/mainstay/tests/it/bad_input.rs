//! Invalid input and broken environments: each has a clear error, and nothing is lost.
//!
//! Invalid commands are in `usage`, files in `import`, servers that misbehave in `supervise`, second daemons and stale
//! sockets in `daemon_lifecycle`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use insta::assert_snapshot;
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};

use crate::env::{Output, TestEnv, fixture, kill, pid_of, until};

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
fn a_full_disk_stops_no_server_and_loses_nothing() {
    let env = TestEnv::new();
    let disk = Disk::mount(&env, "size=600k");
    let fixture = fixture();
    let first = disk.json(["run", "time", "--wait", "--json", "--", &fixture]);
    disk.fill();
    assert_snapshot!(disk.run(["run", "more", "--", &fixture]), @"
    exit: 1
    --- stderr
    error: the disk is full: `[ROOT]/mainstay/state/state.db` could not be written
    help: free some space; nothing was changed
    ");
    assert_eq!(disk.names(), ["time"]);
    kill(pid_of(&first), Signal::KILL);
    let second = until("time is back", || {
        let server = disk.json(["ls", "--json"])[0].take();
        (server["status"] == "running" && server["generation"] == 2).then_some(server)
    });
    let reported = disk.run(["call", "time", "pid"]).stdout;
    assert_eq!(reported.trim_end(), second["pid"].to_string());
    let events = disk.run(["events", "time"]).stdout;
    assert!(events.contains("killed by SIGKILL"), "kept in memory meanwhile: {events}");

    disk.free();
    disk.json(["run", "more", "--wait", "--json", "--", &fixture]);
    assert_eq!(disk.names(), ["more", "time"]);
    let output = disk.run(["daemon", "stop", "--keep-servers"]);
    assert_eq!(output.code, 0, "{output}");
    let output = disk.run(["daemon", "start"]);
    assert_eq!(output.code, 0, "{output}");
    let events = disk.run(["events", "time"]).stdout;
    assert!(events.contains("killed by SIGKILL"), "written when there was room: {events}");
}

#[test]
fn a_reload_on_a_full_disk_leaves_the_daemon_as_it_is() {
    let env = TestEnv::new();
    let disk = Disk::mount(&env, "size=2m");
    disk.json(["run", "time", "--wait", "--json", "--", &fixture()]);
    let daemon = disk.json(["daemon", "status", "--json"])["pid"].take();
    disk.fill();
    let reload = disk.run(["daemon", "reload"]);
    assert_eq!(reload.code, 1, "{reload}");
    assert!(reload.stderr.contains("no space left on device"), "{reload}");
    assert_eq!(disk.json(["daemon", "status", "--json"])["pid"], daemon);
    assert_eq!(disk.run(["call", "time", "count"]).stdout, "1\n");
    disk.free();
    assert_eq!(disk.run(["daemon", "reload"]).code, 0);
    assert_ne!(disk.json(["daemon", "status", "--json"])["pid"], daemon);
}

#[test]
fn a_daemon_on_a_full_disk_reports_it() {
    let env = TestEnv::new();
    let disk = Disk::mount(&env, "size=600k");
    disk.fill();
    assert_snapshot!(disk.run(["ls"]), @"
    exit: 4
    --- stderr
    error: the daemon could not be started: the directory `[ROOT]/mainstay/state` cannot be used: no space left on device
    help: free some space on the disk of `[ROOT]/mainstay/state`
    ");
    let doctor = disk.run(["doctor"]);
    assert_eq!(doctor.code, 1, "{doctor}");
    let no_room = "fail  state directory: `[ROOT]/mainstay/state` has only 0 KB left";
    assert!(doctor.stdout.contains(no_room), "{doctor}");
    let no_daemon = "fail  daemon: not running, and cannot be started\n";
    assert!(doctor.stdout.contains(no_daemon), "{doctor}");
    disk.free();
    assert_eq!(disk.json(["ls", "--json"]), json!([]));
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

/// A disk of its own for a test's Mainstay, in a mount namespace that lives as long as the child.
struct Disk<'a> {
    env: &'a TestEnv,
    holder: Child,
}

impl<'a> Disk<'a> {
    fn mount(env: &'a TestEnv, options: &str) -> Self {
        let home = env.mainstay_home();
        fs::create_dir(&home).unwrap();
        let script = r#"mount -t tmpfs -o "$1,mode=700" tmpfs "$2" && : > "$3" && exec sleep 600"#;
        let unshare: &[&str] = if geteuid().is_root() { &["-m"] } else { &["-m", "-r"] };
        let mounted = env.work().join("mounted");
        let holder = Command::new("unshare")
            .args(unshare)
            .args(["sh", "-c", script, "sh", options])
            .args([&home, &mounted])
            .current_dir(env.work())
            .spawn()
            .unwrap();
        until("the disk is mounted", || mounted.exists().then_some(()));
        Self { env, holder }
    }

    /// Runs the program where the disk is mounted.
    fn run<'s>(&self, args: impl IntoIterator<Item = &'s str>) -> Output {
        self.env.run_prepared(self.inside(&self.env.command(args)))
    }

    fn json<'s>(&self, args: impl IntoIterator<Item = &'s str>) -> Value {
        let output = self.run(args);
        assert_eq!(output.code, 0, "{output}");
        serde_json::from_str(&output.stdout).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let servers = self.json(["ls", "--json"]);
        let names = servers.as_array().unwrap().iter().map(|server| server["name"].as_str());
        names.map(|name| name.unwrap().to_owned()).collect()
    }

    fn fill(&self) {
        // It is meant to fail: when there is no room left.
        self.shell("cat /dev/zero > mainstay/filler 2> /dev/null; test -s mainstay/filler");
    }

    fn free(&self) {
        self.shell("rm mainstay/filler");
    }

    fn shell(&self, script: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(self.env.root()).env("PATH", "/usr/bin:/bin");
        let output = self.env.run_prepared(self.inside(&command));
        assert_eq!(output.code, 0, "{output}");
    }

    /// The command as it runs in the namespace, where it has to find its directory again.
    fn inside(&self, command: &Command) -> Command {
        let pid = self.holder.id().to_string();
        let user: &[&str] =
            if geteuid().is_root() { &[] } else { &["-U", "--preserve-credentials"] };
        let dir = command.get_current_dir().unwrap().to_str().unwrap();
        let line =
            [&["-m", "-t", &pid], user, &["sh", "-c", r#"cd "$0" && exec "$@""#, dir]].concat();
        let mut words: Vec<String> = line.into_iter().map(String::from).collect();
        words.push(command.get_program().to_str().unwrap().to_owned());
        wrapped(command, "nsenter", &words)
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // The environment cannot reach this daemon and would kill it, so it is stopped first.
        self.run(["daemon", "stop"]);
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

/// The same command with the same environment, as arguments of another one.
fn wrapped(command: &Command, program: &str, words: &[String]) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(words).args(command.get_args()).env_clear().stdin(Stdio::null());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped
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
