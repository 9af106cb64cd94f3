//! Every environment that clients pass finds the same daemon, and a stop by the user is respected in all of them.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::{fixture, is_alive, kill, pid_of, until_dead};

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A user's home directory. Dropping it stops the daemon.
struct Home(tempfile::TempDir);

type Variables = Vec<(&'static str, String)>;

impl Home {
    fn new() -> Self {
        let home = tempfile::Builder::new().prefix("mainstay-home-").tempdir().unwrap();
        let config = home.path().join(".config/mainstay");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("config.toml"), "listen = '127.0.0.1:0'\n").unwrap();
        for dir in ["runtime", "other-runtime"] {
            fs::create_dir(home.path().join(dir)).unwrap();
        }
        Self(home)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn state(&self) -> PathBuf {
        self.0.path().join(".local/state/mainstay")
    }

    /// What a login shell passes on.
    fn shell(&self) -> Variables {
        let mut variables = self.sdk();
        variables.extend([("XDG_RUNTIME_DIR", self.path("runtime")), ("LANG", "C.UTF-8".into())]);
        variables
    }

    /// What the TypeScript and Python SDKs pass to the programs that they start.
    fn sdk(&self) -> Variables {
        let mut variables = self.bare();
        let words = [("LOGNAME", "u"), ("SHELL", "/bin/sh"), ("TERM", "xterm"), ("USER", "u")];
        variables.extend(words.map(|(name, value)| (name, value.to_owned())));
        variables
    }

    fn bare(&self) -> Variables {
        vec![("HOME", self.path("")), ("PATH", PATH.into())]
    }

    fn environments(&self) -> Vec<(&'static str, Variables)> {
        let with = |mut variables: Variables, more: &[(&'static str, &str)]| {
            variables.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
            variables
        };
        let other = self.path("other-runtime");
        vec![
            ("a login shell", self.shell()),
            ("the TypeScript and Python SDKs", self.sdk()),
            ("Claude Desktop", with(self.bare(), &[("LANG", "C"), ("USER", "u")])),
            ("VS Code", with(self.shell(), &[("VSCODE_PID", "1"), ("ELECTRON_RUN_AS_NODE", "1")])),
            ("cron", with(self.bare(), &[("LOGNAME", "u"), ("SHELL", "/bin/sh")])),
            ("sudo", with(self.sdk(), &[("SUDO_USER", "root"), ("SUDO_UID", "0")])),
            ("su", with(self.sdk(), &[("XDG_RUNTIME_DIR", &other)])),
        ]
    }

    fn command(&self, variables: &Variables, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        command.args(args).env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Exit code, standard output and standard error.
    fn run(&self, variables: &Variables, args: &[&str]) -> (i32, String, String) {
        let output = self.command(variables, args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    #[track_caller]
    fn json(&self, variables: &Variables, args: &[&str]) -> Value {
        let (code, stdout, stderr) = self.run(variables, args);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        serde_json::from_str(&stdout).unwrap()
    }

    fn daemon(&self, variables: &Variables) -> Value {
        self.json(variables, &["daemon", "status", "--json"])
    }

    /// Opens a session through `connect`, and gives the name of the server that answered.
    fn connect(&self, variables: &Variables) -> Value {
        let mut command = self.command(variables, &["connect", "e"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let initialize =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        writeln!(child.stdin.take().unwrap(), "{initialize}").unwrap();
        let output = child.wait_with_output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["result"]["serverInfo"]["name"].clone()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.run(&self.bare(), &["daemon", "stop"]);
    }
}

#[test]
fn every_environment_finds_the_same_daemon() {
    let home = Home::new();
    let server = fixture();
    for (starter, variables) in home.environments() {
        let ran =
            home.json(&variables, &["run", "e", "--replace", "--wait", "--json", "--", &server]);
        assert_eq!(ran["status"], "running", "{starter}");
        let daemon = home.daemon(&variables);
        for (finder, variables) in home.environments() {
            assert_eq!(home.daemon(&variables)["pid"], daemon["pid"], "{starter}, {finder}");
        }
        home.json(&variables, &["ls", "--json"]);
        let (code, _, stderr) = home.run(&home.bare(), &["daemon", "stop"]);
        assert_eq!(code, 0, "{stderr}");
    }
    home.json(&home.shell(), &["restart", "e", "--json"]);
    for (finder, variables) in home.environments() {
        assert!(home.connect(&variables).is_string(), "{finder}");
    }
}

#[test]
fn a_daemon_in_the_runtime_directory_is_found_without_the_variable() {
    let home = Home::new();
    // As a program up to 0.1.0 left it.
    let run_dir = PathBuf::from(home.path("runtime/mainstay"));
    fs::create_dir_all(run_dir.join("runs")).unwrap();
    home.json(&home.shell(), &["ls", "--json"]);
    assert_eq!(home.daemon(&home.shell())["socket"], json!(run_dir.join("daemon.sock")));
    let found = home.daemon(&home.bare());
    assert_eq!(found, home.daemon(&home.shell()));

    // The user logs out: everything in the runtime directory is removed. The next daemon uses the usual directory.
    kill_mainstay(&found);
    fs::remove_dir_all(home.path("runtime")).unwrap();
    home.json(&home.bare(), &["ls", "--json"]);
    let usual = home.state().join("run/daemon.sock");
    assert_eq!(home.daemon(&home.shell())["socket"], json!(usual));
}

#[test]
fn a_stop_by_the_user_is_respected_until_servers_are_started() {
    let home = Home::new();
    let server = fixture();
    home.json(&home.shell(), &["run", "e", "--wait", "--json", "--", &server]);
    home.run(&home.shell(), &["daemon", "stop"]);
    for args in [&["ls"][..], &["status", "e"], &["why", "e"], &["connect", "e"], &["logs", "e"]] {
        let (code, stdout, stderr) = home.run(&home.sdk(), args);
        assert_eq!((code, stdout.as_str()), (4, ""), "{args:?}");
        assert_eq!(
            stderr,
            "error: Mainstay is stopped, because of `mainstay daemon stop`\n\
             help: `mainstay daemon start` starts it and its servers\n",
            "{args:?}"
        );
    }
    let (code, stdout, _) = home.run(&home.sdk(), &["daemon", "status"]);
    assert_eq!(code, 4);
    assert!(stdout.starts_with("stopped by `mainstay daemon stop`"), "{stdout}");
    assert!(home.run(&home.sdk(), &["doctor"]).1.contains("stopped by `mainstay daemon stop`"));

    let (code, _, stderr) = home.run(&home.sdk(), &["start", "e"]);
    assert_eq!(code, 0, "{stderr}");
    home.json(&home.bare(), &["ls", "--json"]);
    kill_mainstay(&home.daemon(&home.bare()));
    home.json(&home.bare(), &["ls", "--json"]);
}

#[test]
fn a_signal_is_not_a_stop_by_the_user() {
    let home = Home::new();
    home.json(&home.shell(), &["ls", "--json"]);
    for process in ["pid", "holder"] {
        let daemon = home.daemon(&home.bare());
        let (signalled, holder) = (pid(&daemon, process), pid(&daemon, "holder"));
        kill(signalled, Signal::TERM);
        until_dead(holder);
        home.json(&home.bare(), &["ls", "--json"]);
    }
}

#[test]
fn a_stop_ends_servers_that_no_daemon_has() {
    let home = Home::new();
    let ran = home.json(&home.shell(), &["run", "e", "--wait", "--json", "--", &fixture()]);
    let daemon = home.daemon(&home.bare());
    kill(pid(&daemon, "holder"), Signal::TERM);
    until_dead(pid(&daemon, "holder"));
    assert!(is_alive(pid_of(&ran)), "a signal ends no server");
    let (code, _, stderr) = home.run(&home.bare(), &["daemon", "stop"]);
    assert_eq!((code, &*stderr), (0, "the daemon and its servers are stopped\n"));
    assert!(!is_alive(pid_of(&ran)));
    let (code, _, stderr) = home.run(&home.bare(), &["daemon", "reload"]);
    assert!(code == 4 && stderr.contains("Mainstay is stopped"), "{stderr}");
}

#[test]
fn a_stop_that_meets_a_start_is_a_stop() {
    let home = Home::new();
    home.json(&home.bare(), &["ls", "--json"]);
    home.run(&home.bare(), &["daemon", "stop"]);
    for _ in 0..4 {
        let start = home.command(&home.bare(), &["daemon", "start"]).output();
        let mut start_again = home.command(&home.bare(), &["daemon", "start"]).spawn().unwrap();
        assert!(start.unwrap().status.success());
        home.run(&home.bare(), &["daemon", "stop"]);
        start_again.wait().unwrap();
        let (code, _, stderr) = home.run(&home.bare(), &["daemon", "stop"]);
        assert_eq!(code, 0, "{stderr}");
        let (_, stdout, _) = home.run(&home.bare(), &["daemon", "status"]);
        assert!(stdout.starts_with("stopped by"), "{stdout}");
    }
}

fn pid(daemon: &Value, field: &str) -> u32 {
    u32::try_from(daemon[field].as_u64().unwrap()).unwrap()
}

/// Kills daemon and holder, so that neither can start the other again.
fn kill_mainstay(daemon: &Value) {
    let (holder, daemon) = (pid(daemon, "holder"), pid_of(daemon));
    kill(holder, Signal::STOP);
    kill(daemon, Signal::KILL);
    until_dead(daemon);
    kill(holder, Signal::KILL);
    until_dead(holder);
}
