//! Containers that only look like Mainstay's: copies made by `docker commit`, copied labels, the same names. They are
//! never removed.
//!
//! To prove that a sweep leaves something alone, another container has to go in the same sweep.

use std::fs;
use std::rc::Rc;

use mainstay_testkit::docker::{Engine, Fault, FaultProxy, IMAGE, Options};
use serde_json::{Value, json};

use super::setup::{Rest, Setup, Wire, assert_works, engine_env, run, server_name};
use crate::attacks::bystander::{Bystander, with_bystander};
use crate::env::{TestEnv, until};

/// A container that Mainstay did not create, with its image if that was made for it.
struct Lookalike {
    engine: Rc<Engine>,
    id: String,
    image: Option<String>,
    started_at: String,
}

impl Lookalike {
    /// `docker commit CONTAINER`, then `docker run` of the image.
    fn copy(engine: &Rc<Engine>, container: &str) -> Self {
        let image = format!("{}:1", server_name("copy"));
        engine.docker(&["commit", "--pause=false", container, &image]);
        let id = engine.docker(&["run", "-d", "-i", "--name", &server_name("mine"), &image]);
        Self::new(engine, id, Some(image))
    }

    /// A container with all labels of another one.
    fn forge(engine: &Rc<Engine>, container: &str) -> Self {
        let labels = engine.inspect(container, "{{json .Config.Labels}}");
        let labels: Value = serde_json::from_str(&labels).unwrap();
        let labels = labels.as_object().unwrap().iter();
        let labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
        assert!(labels.iter().any(|label| label.starts_with("mainstay.nonce=")), "{labels:?}");
        let labels = labels.iter().flat_map(|label| ["--label", label]);
        let command: Vec<&str> =
            ["run", "-d", "-i"].into_iter().chain(labels).chain([IMAGE]).collect();
        Self::new(engine, engine.docker(&command), None)
    }

    /// A container with a name.
    fn named(engine: &Rc<Engine>, name: &str) -> Self {
        Self::new(engine, engine.docker(&["run", "-d", "-i", "--name", name, IMAGE]), None)
    }

    fn new(engine: &Rc<Engine>, id: String, image: Option<String>) -> Self {
        let started_at = engine.inspect(&id, "{{.State.StartedAt}}");
        Self { engine: Rc::clone(engine), id, image, started_at }
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let state = self.engine.inspect(&self.id, "{{.State.StartedAt}} {{.State.Running}}");
        assert_eq!(state, format!("{} true", self.started_at));
    }
}

impl Drop for Lookalike {
    fn drop(&mut self) {
        self.engine.try_docker(&["rm", "--force", &self.id]);
        if let Some(image) = &self.image {
            self.engine.try_docker(&["rmi", "--force", image]);
        }
    }
}

fn exists(engine: &Engine, container: &str) -> bool {
    engine.try_docker(&["inspect", "--type", "container", container]).status.success()
}

fn container_of(env: &TestEnv, name: &str) -> String {
    env.server(name)["container_id"].as_str().unwrap().to_owned()
}

fn behind_a_proxy() -> (FaultProxy, Setup) {
    let engine = Rc::new(Engine::shared());
    let proxy = FaultProxy::new(&engine);
    let setup = Setup::behind(&proxy, &engine, Wire::Stdio, &[]);
    (proxy, setup)
}

/// Returns when a whole sweep is over. Each round has a container that must be swept: that of a server
/// that is removed while its engine does not answer. An engine is swept by one sweep at a time, so the
/// second round proves that the first one is over.
fn sweep(proxy: &FaultProxy, setup: &Setup, bystander: &mut Bystander, case: &str) {
    bystander.during(format!("a sweep beside {case}"), || sweep_twice(proxy, setup));
}

fn sweep_twice(proxy: &FaultProxy, setup: &Setup) {
    for round in ["one", "two"] {
        let name = server_name(round);
        run(&setup.env, &name, Wire::Stdio, &[], &[]);
        let container = container_of(&setup.env, &name);
        proxy.set(&[Fault::Refuse]);
        setup.env.once(&name, "was without its engine", |server| server["status"] == "waiting");
        setup.env.ok(["rm", &name]);
        assert!(exists(&setup.engine, &container));
        proxy.set(&[]);
        until("the container is swept", || (!exists(&setup.engine, &container)).then_some(()));
    }
}

#[test]
fn a_copy_made_by_docker_commit_outlives_the_server() {
    let (proxy, setup) = behind_a_proxy();
    let mut bystander = with_bystander(&setup.env);
    let container = setup.container();
    let copy = Lookalike::copy(&setup.engine, &container);
    bystander.during("`rm` beside a copy by docker commit", || setup.env.ok(["rm", &setup.name]));
    assert!(!exists(&setup.engine, &container), "the server's own container goes");
    sweep(&proxy, &setup, &mut bystander, "a copy of a removed container");
    copy.assert_untouched();
}

#[test]
fn a_copy_made_by_docker_commit_is_left_alone_while_the_server_exists() {
    let (proxy, setup) = behind_a_proxy();
    let session = setup.raw();
    let container = setup.container();
    let mut bystander = with_bystander(&setup.env);
    let copy = Lookalike::copy(&setup.engine, &container);
    sweep(&proxy, &setup, &mut bystander, "a copy by docker commit");
    copy.assert_untouched();
    assert_eq!(setup.container(), container);
    assert_works(&session);
    let name = setup.engine.inspect(&copy.id, "{{.Name}}");
    until("the log names the copy", || {
        let log = setup.log();
        let mut lines = log.lines().filter(|line| line.contains("Mainstay labels but no record"));
        lines.any(|line| line.contains(name.trim_start_matches('/'))).then_some(())
    });
}

#[test]
fn a_copy_stays_when_the_server_is_removed_while_its_engine_is_away() {
    let setup = Setup::alone(Options::default(), Wire::Stdio, &[]);
    let container = setup.container();
    let copy = Lookalike::copy(&setup.engine, &container);
    let other = server_name("by");
    run(&setup.env, &other, Wire::Stdio, &[], &[]);
    let mut bystander = with_bystander(&setup.env);
    bystander.during("`rm` while the engine of a copy is away", || {
        setup.engine.stop();
        setup.status("waiting");
        setup.env.ok(["rm", &setup.name]);
    });
    bystander.after("the engine of a copy is back", || {
        setup.env.kill_mainstay();
        setup.engine.start();
        setup.env.once_running(&other, 2);
        until("its container is gone", || (!exists(&setup.engine, &container)).then_some(()));
    });
    assert!(exists(&setup.engine, &copy.id));
}

#[test]
fn copied_labels_and_our_name_prove_nothing() {
    let (proxy, setup) = behind_a_proxy();
    let session = setup.raw();
    let container = setup.container();
    let mut bystander = with_bystander(&setup.env);
    let forged = Lookalike::forge(&setup.engine, &container);
    setup.engine.docker(&["rename", &container, &server_name("moved")]);
    setup.engine.docker(&["rename", &forged.id, &format!("mainstay-{}", setup.name)]);

    sweep(&proxy, &setup, &mut bystander, "forged labels and a taken name");
    forged.assert_untouched();
    // A daemon that starts recovers its own container, not the one with the labels and the name.
    let recovered = bystander.after("a daemon starts beside forged labels", || {
        setup.env.kill_mainstay();
        setup.back(1)
    });
    assert_eq!(recovered["container_id"], json!(container));
    let restarted = bystander.during("a restart beside forged labels", || setup.kill());
    assert_eq!(restarted["container_id"], json!(container));
    assert_works(&session);

    // A changed spec replaces its own container.
    bystander.during("a replacement beside forged labels", || {
        run(&setup.env, &setup.name, Wire::Stdio, &["--replace", "--memory", "256m"], &[])
    });
    let replaced = setup.container();
    assert!(!exists(&setup.engine, &container));
    bystander.during("restart, stop and rm beside forged labels", || {
        setup.env.ok(["restart", &setup.name]);
        setup.env.ok(["stop", &setup.name]);
        setup.env.ok(["rm", &setup.name]);
    });
    assert!(!exists(&setup.engine, &replaced));
    sweep(&proxy, &setup, &mut bystander, "forged labels of a removed container");
    forged.assert_untouched();
}

#[test]
fn names_that_are_taken_are_reported() {
    let engine = Rc::new(Engine::shared());
    let env = engine_env(&engine, &engine.host());
    let name = server_name("fx");
    let _rest = Rest::new(&engine, &name);
    env.ok(["ls"]);
    let instance = env.json(["daemon", "status", "--json"])["instance"].clone();
    let instance = &instance.as_str().unwrap()[..8];
    let names = [format!("mainstay-{name}"), format!("mainstay-{name}-{instance}")];
    let taken = names.each_ref().map(|name| Lookalike::named(&engine, name));
    let mut bystander = with_bystander(&env);
    let output = bystander.during("`run` of a server whose names are taken", || {
        env.run(["run", &name, "--image", IMAGE, "--wait"])
    });
    assert_eq!(output.code, 1, "{output}");
    for (name, container) in names.iter().zip(&taken) {
        let who = format!("`{name}` (id {})", &container.id[..12]);
        assert!(output.stderr.contains(&who), "{output}");
        container.assert_untouched();
    }
    assert!(output.stderr.contains("rename or remove one"), "{output}");
    assert!(env.server(&name).is_null(), "nothing is left of it");

    engine.docker(&["rename", &taken[0].id, &server_name("moved")]);
    bystander.during("run and rm of a server one of whose names is taken", || {
        run(&env, &name, Wire::Stdio, &[], &[]);
        env.ok(["rm", &name]);
    });
    taken.iter().for_each(Lookalike::assert_untouched);
}

#[test]
fn a_container_whose_record_was_lost_is_left_alone() {
    let (proxy, setup) = behind_a_proxy();
    let container = setup.container();
    let mut bystander = with_bystander(&setup.env);
    bystander.after("the record of a container is lost", || {
        setup.env.kill_mainstay();
        for file in fs::read_dir(setup.env.mainstay_home().join("state/containers")).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        setup.env.once(&setup.name, "got another container", |server| {
            server["status"] == "running" && server["container_id"] != json!(container)
        });
    });
    sweep(&proxy, &setup, &mut bystander, "a container whose record is lost");
    assert_eq!(setup.engine.inspect(&container, "{{.State.Running}}"), "true");
}
