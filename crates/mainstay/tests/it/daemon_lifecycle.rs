//! The daemon may die, be stopped or be replaced at any moment, and the servers survive.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{
    TestEnv, fixture, free_port, is_alive, kill, pid_of, shell_server, shim_of, until, until_dead,
};

#[test]
fn servers_keep_their_memory_when_the_daemon_is_killed() {
    let env = TestEnv::new();
    let server = env.run_server("time", &[], &[&fixture()]);
    assert_eq!(env.call("time", "count", "{}"), "1");
    let old = env.daemon();
    kill(old, Signal::KILL);
    until_dead(old);

    assert_eq!(env.call("time", "count", "{}"), "2", "what it remembers survived");
    assert_ne!(env.daemon(), old);
    let kept = env.server("time");
    for field in ["pid", "generation", "status", "ready_at", "restarts"] {
        assert_eq!(kept[field], server[field], "{field}");
    }
    let events = env.events_called("time", "kept");
    assert_eq!((events.len(), &events[0]["run"]), (1, &json!(1)));
    assert_eq!(env.events_called("time", "started").len(), 1);
    assert!(env.ok(["tools", "time"]).contains("count"));

    kill(pid_of(&kept), Signal::KILL);
    let next = env.once_running("time", 2);
    assert_eq!(next["last_exit"]["signal"], 9, "an adopted server is supervised as before");
}

#[test]
fn an_http_server_is_adopted_with_its_session() {
    let env = TestEnv::new();
    let port = free_port().to_string();
    let options = ["--transport", "streamable-http", "--target-port", &port];
    let address = format!("127.0.0.1:{port}");
    let server = env.run_server("web", &options, &[&fixture(), "--http", &address]);
    assert_eq!(env.call("web", "count", "{}"), "1");
    let old = env.daemon();
    kill(old, Signal::KILL);
    until_dead(old);
    assert_eq!(env.call("web", "count", "{}"), "2");
    assert_eq!(env.server("web")["pid"], server["pid"]);
}

#[test]
fn a_start_survives_the_death_of_the_daemon() {
    let env = TestEnv::new();
    let flags = [&fixture(), "--ready-after", "600"];
    let mut run = env.command(["run", "time", "--wait", "--", flags[0], flags[1], flags[2]]);
    let run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let starting = env.once("time", "was started", |server| server["pid"].is_u64());
    kill(env.daemon(), Signal::KILL);
    finish(run);
    // Whether it was ready is not known, so it is either kept or started again, but never runs twice.
    let up = env.once("time", "was ready", |server| server["status"] == "running");
    assert_eq!(env.call("time", "pid", "{}"), up["pid"].to_string());
    assert!(up["pid"] == starting["pid"] || !is_alive(pid_of(&starting)));
}

#[test]
fn a_server_that_died_without_a_daemon_is_restarted() {
    let env = TestEnv::new();
    let server = env.run_server("time", &[], &[&fixture()]);
    env.kill_mainstay();
    kill(pid_of(&server), Signal::KILL);
    until_dead(pid_of(&server));

    let next = env.once_running("time", 2);
    assert_eq!(env.call("time", "pid", "{}"), next["pid"].to_string());
    let ended = env.events_called("time", "ended");
    assert_eq!((ended.len(), &ended[0]["run"]), (1, &json!(1)));
    assert_eq!(ended[0]["detail"], "killed by SIGKILL while no daemon was there");
}

#[test]
fn stopping_the_daemon_stops_servers_and_starting_it_starts_them() {
    let env = TestEnv::new();
    let on = env.run_server("on", &[], &[&fixture()]);
    env.run_server("off", &[], &[&fixture()]);
    env.ok(["stop", "off"]);
    let daemon = env.daemon();
    assert!(env.run(["daemon", "stop"]).stderr.contains("the daemon and its servers are stopped"));
    assert!(!is_alive(daemon) && !is_alive(pid_of(&on)));
    assert_eq!(env.run(["daemon", "status"]).code, 4);
    until("the shims are gone too", || env.processes().is_empty().then_some(()));

    env.ok(["daemon", "start"]);
    env.once_running("on", 2);
    assert_eq!(env.server("off")["status"], "stopped");
    assert_eq!(env.server("off")["pid"], Value::Null);
}

#[test]
fn a_daemon_can_be_stopped_without_its_servers() {
    let env = TestEnv::new();
    let server = env.run_server("time", &[], &[&fixture()]);
    let daemon = env.daemon();
    let words = env.run(["daemon", "stop", "--keep-servers"]).stderr;
    assert!(words.contains("its servers keep running"), "{words}");
    assert!(!is_alive(daemon) && is_alive(pid_of(&server)));
    env.ok(["daemon", "start"]);
    assert_eq!(env.call("time", "pid", "{}"), server["pid"].to_string());
}

#[test]
fn a_server_cannot_start_the_daemon_that_supervises_it() {
    let env = TestEnv::new();
    let program = env!("CARGO_BIN_EXE_mainstay");
    let script = shell_server(&format!(
        "until test -e go; do sleep 0.02; done
         {program} daemon run >run 2>&1
         {program} ls >ls.new 2>&1
         mv ls.new ls
         exec sleep 600"
    ));
    let home = format!("MAINSTAY_HOME={}", env.mainstay_home().display());
    let server = env.run_server("time", &["-e", &home], &["sh", "-c", &script]);
    env.ok(["daemon", "stop", "--keep-servers"]);
    env.write("go", "");
    let ls = until("it was reported", || fs::read_to_string(env.work().join("ls")).ok());
    let expected = "error: a server cannot start the daemon that supervises it\n\
                    help: run `mainstay daemon start` in a terminal\n";
    assert_eq!(ls, expected);
    assert_eq!(fs::read_to_string(env.work().join("run")).unwrap(), expected);
    assert_eq!(env.run(["daemon", "status"]).code, 4, "no daemon runs");

    env.ok(["daemon", "start"]);
    assert_eq!(env.server("time")["pid"], server["pid"], "one from outside takes over");
}

#[test]
fn a_terminated_daemon_leaves_its_servers_running() {
    let env = TestEnv::new();
    let server = env.run_server("time", &[], &[&fixture()]);
    let daemon = env.daemon();
    kill(daemon, Signal::TERM);
    until_dead(daemon);
    assert!(!socket(&env).exists(), "one that ends in order takes its socket along");
    assert_eq!(env.call("time", "pid", "{}"), server["pid"].to_string());
    assert_eq!(env.events_called("time", "kept").len(), 1);
}

#[test]
fn a_second_daemon_reports_the_first_and_exits() {
    let env = TestEnv::new();
    env.ok(["ls"]);
    let daemon = env.daemon();
    let holder = &env.json(["daemon", "status", "--json"])["holder"];
    let second = env.run(["daemon", "run"]);
    assert_eq!(second.code, 1, "{second}");
    let expected =
        format!("a daemon is already running (pid {holder}) for `[ROOT]/mainstay/state`");
    assert!(second.stderr.contains(&expected), "{second}");
    assert_eq!(env.daemon(), daemon, "the first is not disturbed");
}

#[test]
fn everything_on_disk_is_private() {
    let env = TestEnv::new();
    env.run_server("time", &["-e", "TOKEN=hush"], &[&fixture(), "--stderr", "hello"]);
    assert_eq!(mode(&socket(&env)), 0o600);
    let mut seen = 0;
    let mut left = vec![env.mainstay_home()];
    while let Some(path) = left.pop() {
        if path.is_symlink() {
            continue; // The mode of a link means nothing; its directory is checked.
        }
        assert_eq!(mode(&path) & 0o077, 0, "{} is open to others", path.display());
        seen += 1;
        if path.is_dir() {
            assert_eq!(mode(&path), 0o700, "{}", path.display());
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen > 10, "only {seen} files were found");
}

#[test]
fn a_dead_daemons_socket_is_replaced() {
    let env = TestEnv::new();
    env.ok(["ls"]);
    let old = env.daemon();
    env.kill_mainstay();
    assert!(socket(&env).exists());
    env.ok(["ls"]);
    assert_ne!(env.daemon(), old);
}

#[test]
fn intent_is_restored_after_a_reboot() {
    let env = TestEnv::new();
    env.run_server("on", &[], &[&fixture()]);
    env.run_server("off", &[], &[&fixture()]);
    env.ok(["stop", "off"]);
    // The daemon first: it must not notice the ends of the others.
    env.kill_mainstay();
    for pid in env.processes() {
        kill(pid, Signal::KILL);
    }
    until("everything is dead", || env.processes().is_empty().then_some(()));
    fs::remove_dir_all(env.mainstay_home().join("run")).unwrap();

    let on = env.once_running("on", 2);
    assert_eq!(env.call("on", "pid", "{}"), on["pid"].to_string());
    assert_eq!(env.server("off")["status"], "stopped");
}

#[test]
fn after_a_reboot_the_cause_is_the_restart_of_the_machine() {
    for run_dir_survives in [true, false] {
        let env = TestEnv::new();
        kill(pid_of(&env.run_server("time", &[], &[&fixture()])), Signal::KILL);
        assert_eq!(env.once_running("time", 2)["last_exit"]["cause"], "exited");
        env.kill_mainstay();
        for pid in env.processes() {
            kill(pid, Signal::KILL);
        }
        until("everything is dead", || env.processes().is_empty().then_some(()));
        if !run_dir_survives {
            fs::remove_dir_all(env.mainstay_home().join("run")).unwrap();
        }
        let events =
            rusqlite::Connection::open(env.mainstay_home().join("state/events.db")).unwrap();
        let noted = "UPDATE progress SET content = json_set(content, '$.boot', 'the one before')";
        assert_eq!(events.execute(noted, []).unwrap(), 1);
        drop(events);

        let server = env.once_running("time", 3);
        assert_eq!(server["last_exit"]["cause"], "machine-restarted", "{server}");
        assert_eq!(server["last_exit"]["detail"], "the machine restarted");
        let ended = env.events_called("time", "ended");
        assert_eq!(ended.last().unwrap()["cause"], "machine-restarted", "{ended:?}");
        let why = env.ok(["why", "time"]);
        assert!(why.contains("the machine restarted"), "{why}");
        // It stays so for the daemons after it, and is reported once.
        env.kill_mainstay();
        let server = env.once("time", "is back", |server| server["status"] == "running");
        assert_eq!(server["last_exit"]["cause"], "machine-restarted", "{server}");
        assert_eq!(env.events_called("time", "ended").len(), ended.len());
    }
}

#[test]
fn a_server_ends_with_its_killed_shim() {
    let env = TestEnv::new();
    let pid_file = env.work().join("orphan");
    let file = pid_file.to_str().unwrap();
    let flags = [&fixture(), "--daemonize-child", "--child-pid-file", file];
    let first = env.run_server("time", &[], &flags);
    let orphan = fs::read_to_string(&pid_file).unwrap().parse().unwrap();
    let shim = shim_of(&first);
    assert_ne!(shim, env.daemon());
    kill(shim, Signal::KILL);
    let second = env.once_running("time", 2);
    assert!(!is_alive(pid_of(&first)), "the server does not outlive its shim");
    assert!(!is_alive(orphan), "nor does anything that it started");
    assert_eq!(env.call("time", "pid", "{}"), second["pid"].to_string());
    assert_eq!(second["restarts"], 1);
}

#[test]
fn a_server_ends_with_its_shim_also_without_a_daemon() {
    let env = TestEnv::new();
    let flags = [&fixture(), "--ignore-stdin-eof"];
    let first = env.run_server("time", &[], &flags);
    let shim = shim_of(&first);
    env.kill_mainstay();
    kill(shim, Signal::KILL);
    until_dead(shim);
    let second = env.once_running("time", 2);
    until_dead(pid_of(&first));
    assert_eq!(env.call("time", "pid", "{}"), second["pid"].to_string());
}

#[test]
fn an_unknown_run_is_removed() {
    let env = TestEnv::new();
    env.ok(["ls"]);
    env.ok(["daemon", "stop"]);
    let state = env.mainstay_home().join("state");
    let old = env.work().join("old-state");
    copy_database(&state, &old);
    let server = env.run_server("time", &[], &[&fixture()]);
    env.ok(["daemon", "stop", "--keep-servers"]);
    assert!(is_alive(pid_of(&server)));

    copy_database(&old, &state);
    env.ok(["daemon", "start"]);
    assert_eq!(env.json(["ls", "--json"]), json!([]));
    until_dead(pid_of(&server));
    let run = env.mainstay_home().join("run");
    until("its files are gone too", || {
        let empty = |dir: &str| fs::read_dir(run.join(dir)).unwrap().next().is_none();
        (empty("runs/time") && empty("sessions")).then_some(())
    });
    env.run_server("time", &[], &[&fixture()]);
}

#[test]
fn many_commands_at_once_start_one_daemon() {
    let env = TestEnv::new();
    let start = |_| env.command(["ls", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let racers: Vec<Child> = (0..10).map(start).collect();
    for racer in racers {
        let output = racer.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "[]");
    }
    let mainstays = env.mainstays();
    until("only one daemon is left", || (env.processes() == mainstays).then_some(()));
}

#[test]
fn a_follower_gets_events_until_the_daemon_ends() {
    let env = TestEnv::new();
    let first = env.run_server("time", &[], &[&fixture()]);
    let events = env.follow(["events", "-f", "--json"]);
    let logs = env.follow(["logs", "-f", "time"]);
    events.line(|line| line.contains(r#""event":"ready""#));
    kill(pid_of(&first), Signal::KILL);
    let ended = events.line(|line| line.contains(r#""event":"ended""#));
    let ended: Value = serde_json::from_str(&ended).unwrap();
    assert_eq!((&ended["server"], &ended["run"]), (&json!("time"), &json!(1)));
    events.line(|line| line.contains(r#""event":"ready""#));
    logs.line(|line| line.contains("run 2 started"));
    env.ok(["daemon", "stop"]);
    events.line(|line| line.contains("stopped on request"));
    assert_eq!(events.ending(), (Some(0), String::new()));
    assert_eq!(logs.ending(), (Some(0), String::new()));
}

fn finish(mut child: Child) {
    until("the command ended", || child.try_wait().unwrap());
}

fn socket(env: &TestEnv) -> std::path::PathBuf {
    env.mainstay_home().join("run/daemon.sock")
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// Puts the database of intent of one directory in place of another's.
fn copy_database(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in ["state.db", "state.db-wal", "state.db-shm"] {
        // What the newer one left must not be taken for the older one's.
        let _absent = fs::remove_file(to.join(file));
        let _absent = fs::copy(from.join(file), to.join(file));
    }
}

#[test]
fn requests_are_executed_even_if_the_caller_disconnects() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    for round in 0..5 {
        say_and_hang_up(&env, &json!({"method": "stop", "params": {"which": {"names": ["time"]}}}));
        env.once("time", "stopped", |server| server["status"] == "stopped");
        let status = env.json(["status", "time", "--json"]);
        assert_eq!(status["wanted"], "off", "round {round}: intent and driver agree");
        env.ok(["start", "time"]);
        env.once("time", "running", |server| server["status"] == "running");
    }
    say_and_hang_up(&env, &json!({"method": "remove", "params": {"which": "all"}}));
    until("nothing is left", || env.json(["ls", "--json"]).as_array()?.is_empty().then_some(()));
}

#[test]
fn the_last_exit_of_a_server_survives_a_stop_of_the_daemon() {
    let env = TestEnv::new();
    kill(pid_of(&env.run_server("time", &[], &[&fixture()])), Signal::KILL);
    assert_eq!(env.once_running("time", 2)["last_exit"]["cause"], "exited");
    env.ok(["daemon", "stop"]);
    env.ok(["daemon", "start"]);
    let server = env.once_running("time", 3);
    assert_eq!(server["last_exit"]["cause"], "asked", "{server}");
    assert_eq!((&server["restarts"], &server["restarts_total"]), (&json!(1), &json!(1)));
}

/// Sends a request to the daemon and disconnects without waiting for the answer.
fn say_and_hang_up(env: &TestEnv, request: &Value) {
    let socket = env.mainstay_home().join("run/daemon.sock");
    let mut stream = BufReader::new(UnixStream::connect(socket).unwrap());
    let mut hello = String::new();
    stream.read_line(&mut hello).unwrap();
    writeln!(stream.get_mut(), "{request}").unwrap();
}
