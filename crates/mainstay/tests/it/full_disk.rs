//! A full disk: nothing is lost, and the error names it.

use std::fs;
use std::process::{Child, Command, Stdio};

use insta::assert_snapshot;
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};

use crate::env::{Output, TestEnv, fixture, kill, pid_of, until};

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

/// A disk of its own for a test's Mainstay, in a mount namespace that lives as long as the child.
pub(crate) struct Disk<'a> {
    env: &'a TestEnv,
    holder: Child,
}

impl<'a> Disk<'a> {
    pub(crate) fn mount(env: &'a TestEnv, options: &str) -> Self {
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
    pub(crate) fn run<'s>(&self, args: impl IntoIterator<Item = &'s str>) -> Output {
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
        // It is meant to fail when the disk is full.
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
pub(crate) fn wrapped(command: &Command, program: &str, words: &[String]) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(words).args(command.get_args()).env_clear().stdin(Stdio::null());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped
}
