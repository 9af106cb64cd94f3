//! The daemon dies, or the answer of its engine is lost, while a container is created: no container is left over, and no
//! server is lost.

use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::rc::Rc;

use mainstay_testkit::docker::{Engine, Fault, FaultProxy, IMAGE};
use rustix::process::Signal;
use serde_json::json;

use super::setup::{Rest, Setup, Wire, assert_works, engine_env, server_name};
use crate::attacks::bystander::with_bystander;
use crate::env::{TestEnv, kill, until};

const CREATE: &str = "POST /containers/create";

/// A Mainstay behind a proxy, without a server yet.
struct EmptySetup {
    env: TestEnv,
    _rest: Rest,
    proxy: FaultProxy,
    engine: Rc<Engine>,
    name: String,
}

impl EmptySetup {
    fn new() -> Self {
        Self::on(Engine::shared())
    }

    fn on(engine: Engine) -> Self {
        let engine = Rc::new(engine);
        let proxy = FaultProxy::new(&engine);
        let env = engine_env(&engine, &proxy.host());
        let name = server_name("fx");
        Self { env, _rest: Rest::new(&engine, &name), proxy, engine, name }
    }

    /// Begins to run the server, and holds the answer to its creation with this number. Returns when the
    /// engine has created the container, with its id.
    fn run_until_created(&self, number: usize) -> (Child, String) {
        self.proxy.set(&[Fault::HoldCreate(number - 1)]);
        let mut command = self.env.command(["run", &self.name, "--image", IMAGE, "--wait"]);
        let command = command.spawn().unwrap();
        self.proxy.wait_for(CREATE, number);
        (command, until("it is created", || self.containers().pop()))
    }

    fn containers(&self) -> Vec<String> {
        self.engine.labelled(&format!("mainstay.server={}", self.name))
    }
}

/// Kills the daemon and the command that waits for it, which starts no other one.
fn kill_both(env: &TestEnv, mut command: Child) {
    kill(command.id(), Signal::STOP);
    env.kill_mainstay();
    command.kill().unwrap();
    command.wait().unwrap();
}

/// The file that has the id of a container.
fn creation_of(env: &TestEnv, container: &str) -> PathBuf {
    let files = fs::read_dir(env.mainstay_home().join("state/containers")).unwrap();
    let mut creations = files.map(|file| file.unwrap().path()).filter(|path| {
        path.extension().is_some_and(|extension| extension == "creation")
            && fs::read_to_string(path).unwrap().contains(container)
    });
    creations.next().expect("the creation of every container is recorded")
}

#[test]
fn a_trial_container_is_removed_by_the_next_daemon() {
    let setup = EmptySetup::new();
    let mut bystander = with_bystander(&setup.env);
    bystander.after("a daemon dies while it creates a trial container", || {
        let (command, _) = setup.run_until_created(1);
        kill_both(&setup.env, command);
        setup.proxy.set(&[]);
        assert!(setup.env.server(&setup.name).is_null(), "it was never accepted");
    });
    until("the container is gone", || setup.containers().is_empty().then_some(()));
}

#[test]
fn a_container_of_an_interrupted_creation_is_replaced_by_the_next_daemon() {
    check_unbound_is_replaced(&EmptySetup::new());
}

/// The daemon dies before it knows the id of its new container.
fn check_unbound_is_replaced(setup: &EmptySetup) {
    let mut bystander = with_bystander(&setup.env);
    let (server, unbound) = bystander.after("a daemon dies while it creates a container", || {
        let (command, unbound) = setup.run_until_created(2);
        kill_both(&setup.env, command);
        setup.proxy.set(&[]);
        (setup.env.once(&setup.name, "ran", |server| server["status"] == "running"), unbound)
    });
    assert_ne!(server["container_id"], json!(unbound));
    assert_eq!(json!(setup.containers()), json!([server["container_id"]]));
}

#[test]
fn a_server_survives_an_interrupted_replacement() {
    let engine = Rc::new(Engine::shared());
    let proxy = FaultProxy::new(&engine);
    let setup = Setup::behind(&proxy, &engine, Wire::Stdio, &[]);
    let (session, old) = (setup.raw(), setup.container());
    let mut bystander = with_bystander(&setup.env);
    let creations = proxy.count(CREATE);
    proxy.set(&[Fault::HoldCreate(creations + 1)]);
    let replace = ["run", &setup.name, "--replace", "--image", IMAGE, "--memory", "256m", "--wait"];
    let command = setup.env.command(replace).spawn().unwrap();
    proxy.wait_for(CREATE, creations + 2);
    let containers = || engine.labelled(&format!("mainstay.server={}", setup.name));
    let unbound = until("it is created", || containers().pop());
    let server = bystander.after("a daemon dies while it replaces a container", || {
        kill_both(&setup.env, command);
        proxy.set(&[]);
        setup.status("running")
    });
    assert!(![json!(old), json!(unbound)].contains(&server["container_id"]), "{server:#}");
    assert_eq!(json!(containers()), json!([server["container_id"]]));
    assert_works(&session);
}

#[test]
fn a_server_survives_a_move_to_another_engine_address() {
    let engine = Rc::new(Engine::shared());
    let (proxy, second) = (FaultProxy::new(&engine), FaultProxy::new(&engine));
    let setup = Setup::behind(&proxy, &engine, Wire::Stdio, &[]);
    let (session, old) = (setup.raw(), setup.container());
    let mut bystander = with_bystander(&setup.env);
    second.set(&[Fault::HoldCreate(1)]);
    let mut command = setup.env.command(["run", &setup.name, "--replace", "--image", IMAGE]);
    let command = command.env("DOCKER_HOST", second.host()).spawn().unwrap();
    second.wait_for(CREATE, 2);
    let containers = || engine.labelled(&format!("mainstay.server={}", setup.name));
    until("it is created", || containers().iter().any(|id| *id != old).then_some(()));
    let server = bystander.after("a daemon dies while it moves a server to another engine", || {
        kill_both(&setup.env, command);
        second.set(&[]);
        setup.status("running")
    });
    assert_eq!(json!(containers()), json!([server["container_id"]]));
    assert_works(&session);
}

#[test]
fn a_container_is_kept_until_the_record_of_its_run_is_deleted() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let old = setup.container();
    let containers = || setup.engine.labelled(&format!("mainstay.server={}", setup.name));
    let creation = creation_of(&setup.env, &old);
    // A directory in the place of the file stops root, too.
    fs::remove_file(&creation).unwrap();
    fs::create_dir(&creation).unwrap();
    let replace = ["run", &setup.name, "--replace", "--image", IMAGE, "--memory", "256m", "--wait"];
    let mut bystander = with_bystander(&setup.env);
    for command in [&replace[..], &["restart", &setup.name]] {
        let case = format!("`{}` with a record that cannot be deleted", command[0]);
        bystander.during(case, || {
            setup.env.run(command);
            setup.status("error")
        });
        assert_eq!(containers(), std::slice::from_ref(&old));
    }
    let server = bystander.after("a daemon starts when the record can be deleted", || {
        setup.env.kill_mainstay();
        fs::remove_dir(&creation).unwrap();
        setup.env.ok(["restart", &setup.name]);
        setup.status("running")
    });
    assert_eq!(json!(containers()), json!([server["container_id"]]));
}

#[test]
fn a_container_whose_creation_was_not_answered_is_replaced() {
    let setup = EmptySetup::new();
    let mut bystander = with_bystander(&setup.env);
    let (mut command, unbound) = setup.run_until_created(2);
    // All connections break, and the engine is back.
    bystander.during("an engine leaves before it has answered a creation", || {
        setup.proxy.set(&[Fault::Refuse]);
        setup.env.once(&setup.name, "was without its engine", |it| it["status"] == "waiting");
        setup.proxy.set(&[]);
        assert!(command.wait().unwrap().success());
    });
    let server = setup.env.once(&setup.name, "ran", |server| server["status"] == "running");
    assert_ne!(server["container_id"], json!(unbound));
    assert_eq!(json!(setup.containers()), json!([server["container_id"]]));
}

#[test]
fn a_container_whose_creation_was_answered_with_an_internal_error_is_removed() {
    let setup = EmptySetup::new();
    setup.proxy.set(&[Fault::FailCreate]);
    let output = with_bystander(&setup.env).during("a creation answered with an error", || {
        setup.env.run(["run", &setup.name, "--image", IMAGE, "--wait"])
    });
    assert_eq!(output.code, 1, "{output}");
    assert!(output.stderr.contains("out of order"), "{output}");
    until("the container is gone", || setup.containers().is_empty().then_some(()));
}

#[test]
fn a_running_copy_of_an_unknown_container_is_left_alone() {
    let setup = EmptySetup::new();
    let mut bystander = with_bystander(&setup.env);
    let (command, unbound) = setup.run_until_created(1);
    let image = format!("{}:1", server_name("copy"));
    setup.engine.docker(&["commit", &unbound, &image]);
    let copy = setup.engine.docker(&["run", "-d", "-i", &image]);
    setup.engine.docker(&["rm", &unbound]);
    bystander.after("a daemon starts beside a running copy with an unused nonce", || {
        kill_both(&setup.env, command);
        setup.proxy.set(&[]);
        setup.env.ok(["ls"])
    });
    let log = setup.env.mainstay_home().join("state/daemon.log");
    until("the log names the copy", || {
        let log = fs::read_to_string(&log).unwrap();
        let mut lines = log.lines().filter(|line| line.contains("Mainstay labels but no record"));
        lines.any(|line| line.contains(&copy)).then_some(())
    });
    assert_eq!(setup.engine.inspect(&copy, "{{.State.Running}}"), "true");
    setup.engine.docker(&["rm", "--force", &copy]);
    setup.engine.docker(&["rmi", "--force", &image]);
}

#[test]
fn the_containers_of_podman_are_found_by_their_nonces_too() {
    check_unbound_is_replaced(&EmptySetup::on(Engine::podman()));
}

#[test]
fn nothing_is_created_that_cannot_be_recorded() {
    let setup = EmptySetup::new();
    let mut bystander = with_bystander(&setup.env);
    // A file in the place of the directory stops root, too.
    let records = setup.env.mainstay_home().join("state/containers");
    fs::remove_dir_all(&records).unwrap();
    fs::write(&records, "").unwrap();
    let output = bystander.during("a creation that cannot be recorded", || {
        setup.env.run(["run", &setup.name, "--image", IMAGE, "--wait"])
    });
    assert_eq!(output.code, 1, "{output}");
    assert_eq!(
        output.stderr.lines().take(2).collect::<Vec<_>>(),
        [
            format!(
                "error: `{}`: its container cannot be recorded in `[ROOT]/mainstay/state/containers`: \
                 Not a directory (os error 20)",
                setup.name
            ),
            "help: nothing was changed; make that directory writable or free disk space, then try again"
                .to_owned()
        ]
    );
    assert_eq!(setup.proxy.count(CREATE), 0);
    fs::remove_file(&records).unwrap();
}

#[test]
fn containers_of_version_0_1_0_are_recovered_and_removed() {
    let setup = Setup::new(Wire::Stdio, &[], &[]);
    let session = setup.raw();
    let (container, pid) = (setup.container(), setup.engine.pid(&setup.container()));
    let mut bystander = with_bystander(&setup.env);
    let recovered =
        bystander.after("a container of 0.1.0 without a record of its creation", || {
            setup.env.kill_mainstay();
            // It wrote the record of the run only.
            for file in fs::read_dir(setup.env.mainstay_home().join("state/containers")).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "creation") {
                    fs::remove_file(path).unwrap();
                }
            }
            setup.back(1)
        });
    assert_eq!(recovered["container_id"], json!(container));
    assert_eq!(setup.engine.pid(&container), pid);
    assert_works(&session);
    setup.env.ok(["rm", &setup.name]);
    assert_eq!(setup.engine.labelled(&format!("mainstay.server={}", setup.name)), [""; 0]);
    let left: Vec<_> =
        fs::read_dir(setup.env.mainstay_home().join("state/containers")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
