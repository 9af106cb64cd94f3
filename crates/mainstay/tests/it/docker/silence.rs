//! Servers in containers that do not answer: which of them are killed, and what becomes of calls.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::rc::Rc;
use std::thread;

use mainstay_testkit::docker::{Engine, IMAGE};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::setup::{QUICK, Rest, Setup, Wire, engine_env, server_name};
use crate::env::{kill, until};
use crate::proxy::client::text_of;
use crate::proxy::raw::{Raw, call};

/// The directory of a test in its container.
const NOTES: &str = "/notes";

fn setup(engine: &Rc<Engine>, wire: Wire, hang_after: &str) -> Setup {
    let volume = format!(".:{NOTES}");
    let options = [&["-v", &volume, "--hang-after", hang_after][..], &QUICK].concat();
    Setup::on(engine, wire, &options, &[])
}

impl Setup {
    /// How often a line was appended.
    fn effects(&self) -> usize {
        let found = fs::read_to_string(self.env.work().join("effects")).unwrap_or_default();
        found.lines().count()
    }

    /// The server once this is its status, and its reason has this text.
    #[track_caller]
    fn shows(&self, status: &str, reason: &str) -> Value {
        let is_so = |server: &Value| {
            server["status"] == status && server["reason"].as_str().unwrap().contains(reason)
        };
        self.env.once(&self.name, &format!("was {status}: {reason}"), is_so)
    }

    /// Lets the server answer once more, and then do nothing.
    fn park(&self, session: &Raw) {
        let parked = session.answered(&call(1, "park", &json!({})));
        assert_eq!(text_of(&parked["result"], 0), "parked");
        until("it is parked", || {
            self.env.ok(["logs", &self.name]).contains("parked").then_some(())
        });
    }

    #[track_caller]
    fn assert_never_killed(&self) {
        let server = self.back(1);
        assert_eq!(server["restarts_total"], 0, "{server}");
        assert!(self.env.events_called(&self.name, "hung").is_empty());
    }

    /// It was killed once because it hung, and what it was doing is in its log.
    #[track_caller]
    fn assert_hung(&self) {
        let server = self.back(2);
        assert_eq!(server["last_exit"]["cause"], "hung", "{server}");
        let hung = self.env.events_called(&self.name, "hung");
        assert!(hung[0]["detail"].as_str().unwrap().contains("none of its threads ran"));
        assert_eq!(hung.len(), 1, "{hung:?}");
        let log = self.env.ok(["logs", &self.name]);
        assert!(log.contains("what its processes wait for:") && log.contains("thread "), "{log}");
        assert!(log.contains("container ") && log.contains(" runs since "), "{log}");
    }
}

fn append(session: &Raw, id: u64) -> Value {
    let arguments = json!({"path": format!("{NOTES}/effects"), "line": "x"});
    session.answered(&call(id, "append", &arguments))
}

/// A stdio server that deadlocks is killed, and the next run executes the call that it has not read.
fn a_deadlock_is_killed(engine: &Rc<Engine>) {
    let setup = setup(engine, Wire::Stdio, "4s");
    let session = setup.raw();
    setup.park(&session);
    assert_eq!(text_of(&append(&session, 2)["result"], 0), "appended");
    assert_eq!(setup.effects(), 1);
    setup.assert_hung();
}

#[test]
fn a_deadlock_is_killed_and_the_unread_call_is_executed_once() {
    a_deadlock_is_killed(&Rc::new(Engine::shared()));
}

#[test]
fn a_deadlock_in_podman_is_killed_and_the_unread_call_is_executed_once() {
    a_deadlock_is_killed(&Rc::new(Engine::podman()));
}

#[test]
fn a_deadlock_of_a_server_that_speaks_http_is_killed() {
    let setup = setup(&Rc::new(Engine::shared()), Wire::Http, "4s");
    let session = setup.raw();
    setup.park(&session);
    let answer = append(&session, 2);
    assert!(answer.to_string().contains("its effect is unknown"), "{answer}");
    setup.assert_hung();
    assert_eq!(text_of(&append(&session, 3)["result"], 0), "appended");
    assert_eq!(setup.effects(), 1);
}

#[test]
fn a_server_inside_a_call_is_not_killed() {
    for wire in [Wire::Stdio, Wire::Http] {
        let setup = setup(&Rc::new(Engine::shared()), wire, "2s");
        let fifo = setup.env.work().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let session = setup.raw();
        let path = json!({"path": format!("{NOTES}/fifo")});
        thread::scope(|scope| {
            let blocked = scope.spawn(|| session.answered(&call(1, "block", &path)));
            setup.shows("blocked", "blocked in `block` for");
            let held = scope.spawn(|| append(&session, 2));
            let since = setup.env.events(&setup.name).len();
            until("it was observed for longer than it may hang", || {
                let reason = setup.server()["reason"].as_str().unwrap().to_owned();
                let passed = reason.split(' ').find_map(|word| word.parse::<u32>().ok());
                passed.filter(|seconds| *seconds >= 8)
            });
            assert_eq!((setup.effects(), setup.env.events(&setup.name).len()), (0, since));
            fs::File::options().write(true).open(&fifo).unwrap().write_all(b"read").unwrap();
            assert_eq!(text_of(&blocked.join().unwrap()["result"], 0), "read");
            assert_eq!(text_of(&held.join().unwrap()["result"], 0), "appended");
        });
        assert_eq!(setup.effects(), 1);
        setup.assert_never_killed();
    }
}

#[test]
fn a_stopped_or_paused_container_is_never_killed() {
    let setup = setup(&Rc::new(Engine::shared()), Wire::Http, "2s");
    let session = setup.raw();
    // Its first process is an init, and the server is the only child of that.
    let init = setup.engine.pid(&setup.container());
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
    let pid = children.trim().parse().unwrap();
    thread::scope(|scope| {
        kill(pid, Signal::STOP);
        let first = scope.spawn(|| append(&session, 1));
        setup.shows("suspended", "is stopped (SIGSTOP");
        kill(pid, Signal::CONT);
        assert_eq!(text_of(&first.join().unwrap()["result"], 0), "appended");
    });
    setup.back(1);
    setup.docker(&["pause"]);
    setup.status("waiting");
    thread::scope(|scope| {
        let held = scope.spawn(|| append(&session, 2));
        setup.event("paused");
        let verdicts = || {
            let kinds = ["overdue", "busy", "blocked", "suspended", "unresponsive"];
            kinds.map(|kind| setup.env.events_called(&setup.name, kind).len())
        };
        let before = verdicts();
        // Longer than a server may hang.
        setup.env.run(["call", &setup.name, "echo", r#"{"text":"x"}"#, "--timeout", "6s"]);
        assert_eq!(setup.status("waiting")["reason"], "paused by someone else");
        assert_eq!(verdicts(), before);
        setup.docker(&["unpause"]);
        assert_eq!(text_of(&held.join().unwrap()["result"], 0), "appended");
    });
    setup.assert_never_killed();
}

#[test]
fn a_slow_start_says_what_the_processes_in_the_container_do() {
    let engine = Rc::new(Engine::shared());
    let (env, name) = (engine_env(&engine, &engine.host()), server_name("slow"));
    let _rest = Rest::new(&engine, &name);
    env.ok(["run", &name, "--image", IMAGE, "--", "--ready-after", "600000"]);
    let server = env.once(&name, "was observed", |server| server["start"].is_object());
    assert_eq!(server["start"]["activity"], "not-answering", "{server}");
    let why = env.ok(["why", &name]);
    assert!(why.contains("it has read `initialize`, but does not answer"), "{why}");
}
