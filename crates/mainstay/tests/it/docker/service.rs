//! The service under a real systemd: machines of `scripts/systemd`, which can be rebooted.

mod load;

use std::fs;
use std::path::Path;
use std::process::{self, Command, Stdio};

use mainstay_testkit::docker::Engine;
use serde_json::{Value, json};

use self::load::{Connected, Load, Patient};
use super::setup::assert_works;
use crate::env::{free_port, pid_of, until};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, Raw, call};
use crate::update::setup::{NEW, OLD, version};

/// Where the program is on a machine. Most of these characters are special in units.
const PROGRAM: &str = "/opt/my tools/100%h $HOME/mainstay";

/// Where systemd refuses to start a program from by itself.
const QUOTED: &str = r#"/opt/"my" tool's \bin/mainstay"#;

/// Where a machine's user may replace the program.
const OWN: &str = "/home/me/my tools/mainstay";

/// Where another version of it is.
const NEWER: &str = "/opt/newer";

/// How long a slow call takes: longer than the service needs for a restart.
const SLOW: u64 = 5_000;

/// Where the fixture server is on a machine.
const FIXTURE: &str = "/opt/fixture-mcp";

/// A machine with systemd and a user. Commands are run by that user.
struct Machine {
    engine: Engine,
    name: String,
    /// Where its Mainstay listens, in the network namespace of the engine.
    listen: String,
    /// The program that its user runs.
    program: &'static str,
}

impl Machine {
    /// Boots a machine that has our programs. To be called before any thread is started.
    fn boot(test: &str) -> Self {
        let engine = Engine::shared();
        engine.enter();
        let name = format!("{test}-{}", process::id());
        let listen = format!("127.0.0.1:{}", free_port());
        let machine = Self { engine, name, listen, program: PROGRAM };
        machine.script("up", &[]);
        machine.script("put", &[env!("CARGO_BIN_EXE_mainstay"), PROGRAM]);
        let fixture = machine.engine.socket().with_file_name("fixture-mcp");
        machine.script("put", &[fixture.to_str().unwrap(), FIXTURE]);
        machine
    }

    /// The same, with a program that its user may replace, and another version of it.
    fn boot_to_be_updated(test: &str) -> Self {
        let mut machine = Self::boot(test);
        machine.run(&["install", "-D", PROGRAM, OWN]);
        machine.program = OWN;
        let newer = tempfile::NamedTempFile::new().unwrap();
        fs::write(&newer, version(NEW)).unwrap();
        machine.script("put", &[newer.path().to_str().unwrap(), NEWER]);
        machine
    }

    #[track_caller]
    fn script(&self, verb: &str, args: &[&str]) -> String {
        let output = self.command(verb, args).output().expect("scripts/systemd can be run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "scripts/systemd {verb} {args:?}: {stderr}");
        text(&output.stdout) + &stderr
    }

    fn command(&self, verb: &str, args: &[&str]) -> Command {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/systemd");
        let socket = self.engine.socket();
        let dir = socket.parent().expect("a socket is in a directory");
        let mut command = Command::new(script);
        command.arg(verb).arg(dir).arg(&self.name).args(args).stdin(Stdio::null());
        command
    }

    /// Runs a command, which must succeed, and returns its output.
    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        self.script("as", words)
    }

    /// Runs `mainstay`.
    #[track_caller]
    fn run_from(&self, program: &str, args: &[&str]) -> String {
        let listen = format!("MAINSTAY_LISTEN={}", self.listen);
        self.run(&[&["env", &listen, program], args].concat())
    }

    #[track_caller]
    fn mainstay(&self, args: &[&str]) -> String {
        self.run_from(self.program, args)
    }

    /// Opens a session through `mainstay connect`.
    fn connect(&self, server: &str) -> Connected {
        let listen = format!("MAINSTAY_LISTEN={}", self.listen);
        Connected::open(self.command("as", &["env", &listen, self.program, "connect", server]))
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.mainstay(&[args, &["--json"]].concat())).unwrap()
    }

    #[track_caller]
    fn systemctl(&self, verb: &str) {
        self.run(&["systemctl", "--user", verb, "mainstay"]);
    }

    /// A property of the unit.
    fn property(&self, name: &str) -> String {
        let property = format!("--property={name}");
        let said = self.run(&["systemctl", "--user", "show", "--value", &property, "mainstay"]);
        said.trim_end().to_owned()
    }

    /// The program that the unit's main process runs.
    fn main_program(&self) -> String {
        let exe = format!("/proc/{}/exe", self.property("MainPID"));
        self.run(&["readlink", &exe]).trim_end().to_owned()
    }

    fn server(&self, name: &str) -> Value {
        let servers = self.json(&["ls", "--all"]);
        let mut servers = servers.as_array().expect("`ls` prints an array").iter();
        servers.find(|server| server["name"] == name).cloned().unwrap_or_default()
    }

    fn run_server(&self, name: &str) -> Value {
        let run: Value =
            serde_json::from_str(&self.mainstay(&["run", name, "--wait", "--json", "--", FIXTURE]))
                .unwrap();
        assert_eq!(run["status"], "running", "{run:#}");
        run
    }

    fn daemon(&self) -> u32 {
        pid_of(&self.json(&["daemon", "status"]))
    }

    fn signal(&self, pid: u32, signal: &str) {
        self.script("kill", &[&pid.to_string(), signal]);
    }

    fn is_alive(&self, pid: u32) -> bool {
        let words = ["test", "-e", &format!("/proc/{pid}/exe")];
        self.command("as", &words).status().is_ok_and(|status| status.success())
    }

    /// Asserts that nothing has happened to a server and to a session with it.
    #[track_caller]
    fn assert_unharmed(&self, server: &Value, session: &Raw) {
        assert_works(session);
        let now = self.server(server["name"].as_str().unwrap());
        for field in ["pid", "generation", "restarts", "status"] {
            assert_eq!(now[field], server[field], "{field}");
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _gone = self.command("down", &[]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

#[test]
fn the_unit_is_valid_for_every_program_path() {
    let machine = Machine::boot("paths");
    machine.script("put", &[env!("CARGO_BIN_EXE_mainstay"), QUOTED]);
    for (program, said) in
        [(QUOTED, "the service is running"), (PROGRAM, "the new unit takes effect after a restart")]
    {
        let reported = machine.run_from(program, &["service", "install"]);
        assert!(reported.contains(said), "{reported}");
        let unit = Path::new("/home/me/.config/systemd/user/mainstay.service");
        let verified =
            machine.run(&["systemd-analyze", "--user", "verify", unit.to_str().unwrap()]);
        assert_eq!(verified, "", "systemd has nothing to say about it");
        machine.systemctl("restart");
        assert_eq!(machine.main_program(), program);
    }
    let status = machine.json(&["service", "status"]);
    let path = "/home/me/.config/systemd/user/mainstay.service";
    let expected = json!(["active", true, true, "current", path]);
    let found = json!([
        status["state"],
        status["enabled"],
        status["linger"],
        status["unit"],
        status["path"]
    ]);
    assert_eq!(found, expected);
    machine.mainstay(&["service", "uninstall"]);
    assert_eq!(machine.property("LoadState"), "not-found");
    assert!(machine.daemon() > 0, "a daemon on demand has taken over");
}

#[test]
fn servers_and_sessions_survive_the_service() {
    let machine = Machine::boot("service");
    let server = machine.run_server("clock");
    let session = Raw::open(server["url"].as_str().unwrap());
    assert_works(&session);

    let reported = machine.mainstay(&["service", "install"]);
    assert!(reported.contains("is stopped; its servers keep running"), "{reported}");
    machine.assert_unharmed(&server, &session);

    let (holder, daemon) = (machine.property("MainPID"), machine.daemon());
    machine.signal(daemon, "KILL");
    machine.assert_unharmed(&server, &session);
    assert_ne!(machine.daemon(), daemon);
    assert_eq!(machine.property("MainPID"), holder, "systemd has not noticed");

    let daemon = machine.daemon();
    machine.systemctl("reload");
    machine.assert_unharmed(&server, &session);
    assert_ne!(machine.daemon(), daemon);
    assert_eq!(machine.property("MainPID"), holder);

    machine.systemctl("restart");
    machine.assert_unharmed(&server, &session);
    assert_ne!(machine.property("MainPID"), holder);

    let daemon = machine.daemon();
    machine.signal(machine.property("MainPID").parse().unwrap(), "KILL");
    machine.assert_unharmed(&server, &session);
    assert_eq!(machine.daemon(), daemon, "the daemon has found another holder");
    until("systemd has started the service again", || {
        (machine.property("NRestarts") == "1" && machine.property("ActiveState") == "active")
            .then_some(())
    });
    machine.assert_unharmed(&server, &session);

    // What systemd started waits for the daemon, which it does not know; an end is for both.
    machine.systemctl("stop");
    assert!(!machine.is_alive(daemon) && machine.is_alive(pid_of(&server)));
    assert_eq!(machine.property("Result"), "success");
    machine.systemctl("start");
    machine.assert_unharmed(&server, &session);

    machine.mainstay(&["service", "uninstall"]);
    machine.assert_unharmed(&server, &session);
}

#[test]
fn under_load_an_update_loses_no_call_and_a_restart_at_most_one() {
    let machine = Machine::boot_to_be_updated("update");
    machine.mainstay(&["service", "install"]);
    let server = machine.run_server("clock");
    let session = Raw::open(server["url"].as_str().unwrap());
    let mut connected = machine.connect("clock");
    let mut load = Load::default();
    let (holder, daemon) = (machine.property("MainPID"), machine.daemon());

    load.through(&mut [&mut &session, &mut connected], || {
        let reported = machine.mainstay(&["update", "--from", NEWER]);
        assert!(reported.contains(&format!("updated from {OLD} to {NEW}")), "{reported}");
    });
    machine.assert_unharmed(&server, &session);
    assert_ne!(machine.daemon(), daemon);
    assert_eq!(machine.json(&["daemon", "status"])["version"], NEW);
    assert_eq!(machine.property("ActiveState"), "active");
    assert_eq!(machine.property("MainPID"), holder, "systemd has not noticed");

    let mut slow = session.post(BOTH, &call(1, "sleep", &json!({"ms": SLOW})));
    let event = slow.event().and_then(|event| event.id).expect("an id to resume from");
    load.through(&mut [&mut Patient(&session), &mut connected], || machine.systemctl("restart"));
    let answer = session.get(Some(&event)).answer();
    assert_eq!(text_of(&answer["result"], 0), format!("slept {SLOW} ms"));
    machine.assert_unharmed(&server, &session);
    assert_eq!(machine.json(&["daemon", "status"])["version"], NEW);
    assert_eq!(machine.property("ActiveState"), "active");
    assert_ne!(machine.property("MainPID"), holder);
    assert_eq!(machine.main_program(), OWN);

    // The only one that was in flight over HTTP when the service ended.
    load.assert_executed_once(1);
    assert_eq!(machine.server("clock")["sessions"], 2, "those they began with");
    connected.end();
}

#[test]
fn a_stopped_service_stays_stopped() {
    let machine = Machine::boot("stopped");
    let server = machine.run_server("clock");
    machine.mainstay(&["service", "install"]);

    machine.systemctl("stop");
    assert!(machine.is_alive(pid_of(&server)), "the server runs on");
    let reported = machine.mainstay(&["service", "install"]);
    assert!(reported.contains("it is still stopped"), "{reported}");
    assert_eq!(machine.property("ActiveState"), "inactive");
    machine.systemctl("start");
    assert_eq!(machine.server("clock")["pid"], server["pid"]);

    machine.mainstay(&["daemon", "stop"]);
    until("the service has ended", || {
        (machine.property("ActiveState") == "inactive").then_some(())
    });
    assert!(!machine.is_alive(pid_of(&server)), "its end was the end of its servers");
    assert_eq!(machine.property("Result"), "success");
    machine.systemctl("start");
    until("the server is back", || (machine.server("clock")["status"] == "running").then_some(()));
}

#[test]
fn a_hung_daemon_is_replaced() {
    let machine = Machine::boot("hangs");
    machine.mainstay(&["service", "install"]);
    let server = machine.run_server("clock");
    let drop_in = "mkdir -p ~/.config/systemd/user/mainstay.service.d && \
                   printf '[Service]\\nWatchdogSec=2\\n' >~/.config/systemd/user/mainstay.service.d/quick.conf";
    machine.run(&["sh", "-c", drop_in]);
    machine.run(&["systemctl", "--user", "daemon-reload"]);
    machine.systemctl("restart");
    let daemon = machine.daemon();
    machine.signal(daemon, "STOP");
    until("the daemon that hung is gone", || (!machine.is_alive(daemon)).then_some(()));
    let now = machine.server("clock");
    assert_eq!((&now["pid"], &now["restarts"]), (&server["pid"], &json!(0)));
}

#[test]
fn servers_that_were_on_are_started_after_a_reboot() {
    let machine = Machine::boot("reboot");
    machine.mainstay(&["service", "install"]);
    let server = machine.run_server("clock");
    machine.run_server("idle");
    machine.mainstay(&["stop", "idle"]);
    let session = Raw::open(server["url"].as_str().unwrap());

    machine.script("reboot", &[]);
    assert_eq!(machine.property("ActiveState"), "active", "no login was needed");
    let back = until("the server is on again", || {
        Some(machine.server("clock")).filter(|server| server["status"] == "running")
    });
    assert_eq!(back["url"], server["url"]);
    assert_eq!(machine.server("idle")["status"], "stopped");
    assert_works(&session);
}
