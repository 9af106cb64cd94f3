//! Outages of the engine: no restart is counted, no server is lost, and sessions survive.

use std::fs;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use mainstay_testkit::docker::{Engine, FaultProxy, IMAGE, Options};
use rustix::process::Signal;
use serde_json::json;

use super::setup::{Rest, Setup, Wire, engine_env, run, server_name};
use crate::env::{kill, until};
use crate::proxy::client::{Client, Sdk, text_of};
use crate::proxy::raw::{BOTH, call};

const SURVIVE: Options = Options { live_restore: true };
const DIE: Options = Options { live_restore: false };

#[test]
fn containers_that_survive_a_killed_engine_are_reattached() {
    survive(Wire::Stdio, Engine::kill);
}

#[test]
fn containers_that_survive_a_stopped_engine_are_reattached() {
    survive(Wire::Stdio, Engine::stop);
}

#[test]
fn http_containers_survive_a_killed_engine() {
    survive(Wire::Http, Engine::kill);
}

fn survive(wire: Wire, end: fn(&Engine)) {
    let setup = Setup::alone(SURVIVE, wire, &["--restart-max", "1"]);
    let (client, other) = (setup.client(Sdk::Rust), setup.client(Sdk::Ts1));
    let container = setup.container();
    let pid = setup.engine.pid(&container);
    for _ in 0..2 {
        end(&setup.engine);
        setup.status("waiting");
        let held = client.send_call("echo", &json!({"text": "held"}));
        setup.engine.start();
        assert_eq!(held.text(), "held");
        let server = setup.back(1);
        assert_eq!(
            (&server["restarts_total"], &server["container_id"]),
            (&json!(0), &json!(container))
        );
        setup.assert_goes_on(&[&client, &other]);
    }
    assert_eq!(setup.engine.pid(&container), pid);
    // What follows an outage is noticed as before it.
    setup.kill();
    setup.assert_goes_on(&[&client, &other]);
}

#[test]
fn output_during_an_engine_outage_is_not_lost() {
    let engine = Rc::new(Engine::own(SURVIVE));
    let env = engine_env(&engine, &engine.host());
    let name = server_name("fx");
    let volume = format!("{0}:{0}", env.work().display());
    run(&env, &name, Wire::Stdio, &["-v", &volume], &[]);
    let _rest = Rest::new(&engine, &name);
    let url = env.server(&name)["url"].as_str().unwrap().to_owned();
    let client = Client::connect(&env, Sdk::Rust, &url);
    let effects = env.work().join("effects");
    // Neither is replayed: what is answered is what was said meanwhile.
    let path = effects.to_str().unwrap();
    let slow = client.send_call("append", &json!({"path": path, "line": "slow", "ms": 700}));
    until("it had its effect", || effects.exists().then_some(()));
    engine.kill();
    env.once(&name, "was without its engine", |server| server["status"] == "waiting");
    std::thread::sleep(std::time::Duration::from_secs(1));
    engine.start();
    assert_eq!(slow.text(), "appended");
    assert_eq!(fs::read_to_string(&effects).unwrap(), "slow\n");
    let server = env.once_running(&name, 1);
    assert_eq!(server["restarts_total"], 0);
}

/// An engine that is killed loses lines that it has read and not passed on.
#[test]
fn calls_that_are_made_while_an_engine_is_killed_are_answered() {
    let setup = Setup::alone(SURVIVE, Wire::Stdio, &[]);
    let client = setup.client(Sdk::Rust);
    let socket = setup.engine.socket();
    for round in 0..3 {
        let pid = fs::read_to_string(socket.with_file_name("pid")).unwrap();
        let engine: u32 = pid.trim().parse().unwrap();
        let text = |number: i32| json!({"text": format!("round {round}, call {number}")});
        let calls: Vec<_> = (0..60)
            .map(|number| {
                if number == 20 {
                    kill(engine, Signal::KILL);
                }
                thread::sleep(Duration::from_millis(1));
                client.send_call("echo", &text(number))
            })
            .collect();
        // Waits until nothing of it is left.
        setup.engine.kill();
        setup.engine.start();
        for (number, call) in (0..).zip(&calls) {
            assert_eq!(json!({"text": call.text()}), text(number));
        }
    }
    assert_eq!(setup.server()["restarts_total"], 0);
}

#[test]
fn containers_that_die_with_a_stopped_engine_are_started_again() {
    die(Wire::Stdio, Engine::stop);
}

#[test]
fn containers_that_die_with_a_killed_engine_are_started_again() {
    die(Wire::Http, Engine::kill);
}

fn die(wire: Wire, end: fn(&Engine)) {
    let setup = Setup::alone(DIE, wire, &["--restart-max", "1"]);
    let (client, other) = (setup.client(Sdk::Rust), setup.client(Sdk::Py2));
    let container = setup.container();
    for round in 1..=3 {
        end(&setup.engine);
        setup.status("waiting");
        let held = client.send_call("echo", &json!({"text": "held"}));
        setup.engine.start();
        assert_eq!(held.text(), "held");
        let server = setup.back(round + 1);
        assert_eq!(server["restarts"], 0, "an outage costs nothing: {server:#}");
        assert_eq!(server["container_id"], json!(container));
        setup.assert_goes_on(&[&client, &other]);
    }
    let events = setup.env.events(&setup.name);
    assert!(
        events.iter().all(|event| event["cause"] != "stopped"),
        "no restart is counted: {events:#?}"
    );
}

/// The container runtime may keep something of the start that the engine does not know of.
#[test]
fn a_server_is_back_after_its_engine_was_killed_during_a_start() {
    let setup =
        Setup::alone(DIE, Wire::Stdio, &["--restart-initial", "1ms", "--restart-cap", "1ms"]);
    for pause in [100, 150, 200, 300] {
        let generation = setup.generation();
        kill(setup.engine.pid(&setup.container()), Signal::KILL);
        thread::sleep(Duration::from_millis(pause));
        setup.engine.kill();
        setup.engine.start();
        setup.env.once(&setup.name, "was back", |server| {
            server["status"] == "running" && server["generation"].as_u64() > Some(generation)
        });
        assert_eq!(setup.env.call(&setup.name, "echo", r#"{"text":"back"}"#), "back");
    }
}

/// Docker's proxy accepts connections after the death of a container, and closes them.
#[test]
fn a_late_report_of_a_death_loses_no_safe_call() {
    let setup = Setup::alone(DIE, Wire::Http, &[]);
    let client = setup.client(Sdk::Rust);
    let server = setup.engine.pid(&setup.container());
    let pid = fs::read_to_string(setup.engine.socket().with_file_name("pid")).unwrap();
    let engine: u32 = pid.trim().parse().unwrap();
    kill(engine, Signal::STOP);
    kill(server, Signal::KILL);
    let held = client.send_call("echo", &json!({"text": "held"}));
    // Long enough for two attempts at the dead run, and too short for an outage.
    thread::sleep(Duration::from_millis(1300));
    kill(engine, Signal::CONT);
    assert_eq!(held.text(), "held");
}

#[test]
fn an_engine_that_is_absent_when_the_daemon_starts_is_waited_for() {
    let setup = Setup::alone(SURVIVE, Wire::Stdio, &[]);
    let session = setup.raw();
    let container = setup.container();
    setup.engine.stop();
    setup.env.kill_mainstay();
    setup.status("waiting");
    let held = session.post(BOTH, &call(1, "echo", &json!({"text": "held"})));
    setup.engine.start();
    assert_eq!(text_of(&held.answer()["result"], 0), "held");
    let server = setup.env.once(&setup.name, "knew its container again", |server| {
        server["status"] == "running" && server["container_id"] == json!(container)
    });
    assert_eq!((&server["generation"], &server["restarts_total"]), (&json!(1), &json!(0)));
}

#[test]
fn a_container_that_dies_while_the_engine_is_away_is_started_again() {
    // Docker 20.10 starts one that speaks stdio with its standard input at an end, once.
    for wire in [Wire::Http, Wire::Stdio] {
        let setup = Setup::alone(SURVIVE, wire, &[]);
        let client = setup.client(Sdk::Rust);
        let pid = setup.engine.pid(&setup.container());
        setup.engine.stop();
        setup.status("waiting");
        kill(pid, Signal::KILL);
        setup.engine.start();
        let server = setup.env.once(&setup.name, "was started again", |server| {
            server["status"] == "running" && server["generation"].as_u64() >= Some(2)
        });
        assert_eq!(server["restarts"], 0, "{server:#}");
        setup.assert_goes_on(&[&client]);
    }
}

#[test]
fn another_engine_behind_the_same_socket_is_an_outage() {
    let (engine, other) = (Rc::new(Engine::own(SURVIVE)), Engine::own(DIE));
    let proxy = FaultProxy::new(&engine);
    let setup = Setup::behind(&proxy, &engine, Wire::Stdio, &[]);
    let client = setup.client(Sdk::Rust);
    let foreign = other.docker(&["run", "-d", "-i", IMAGE]);
    proxy.aim(&other);
    setup.env.once(&setup.name, "said that it is another engine", |server| {
        let reason = server["reason"].as_str().unwrap_or_default();
        server["status"] == "waiting" && reason.starts_with("another engine answers at ")
    });
    let why = setup.env.ok(["why", &setup.name]);
    assert!(why.contains("start the engine that has its container;"), "{why}");
    proxy.aim(&engine);
    let server = setup.back(1);
    assert_eq!(server["restarts_total"], 0);
    setup.assert_goes_on(&[&client]);
    assert_eq!(other.docker(&["ps", "--all", "--quiet", "--no-trunc"]), foreign, "it is untouched");
}

#[test]
fn many_servers_are_back_soon_after_their_engine() {
    let engine = Rc::new(Engine::own(DIE));
    let env = engine_env(&engine, &engine.host());
    let names: Vec<_> = (0..5).map(|number| server_name(&format!("s{number}"))).collect();
    for name in &names {
        run(&env, name, Wire::Stdio, &[], &[]);
    }
    engine.stop();
    for name in &names {
        env.once(name, "waited", |server| server["status"] == "waiting");
    }
    engine.start();
    for name in &names {
        let server = env.once_running(name, 2);
        assert_eq!(server["restarts"], 0, "{server:#}");
    }
}
