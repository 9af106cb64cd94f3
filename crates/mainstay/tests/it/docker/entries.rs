//! Entries in clients' files when containers exit and are removed.

use std::rc::Rc;

use mainstay_testkit::docker::{Engine, Options};
use serde_json::json;

use super::setup::{Rest, Wire, engine_env, run, server_name};
use crate::clients::setup::{CLINE, CURSOR, ClientFile, Sort, VSCODE, done};
use crate::env::{TestEnv, until};

/// Clients with three kinds of files.
const SORTS: [Sort; 3] = [CURSOR, VSCODE, CLINE];

/// A server in a container that is registered with a client.
struct Registered {
    env: TestEnv,
    _rest: Rest,
    engine: Rc<Engine>,
    name: String,
    file: ClientFile,
    /// The file with Mainstay's entry and the user's additions to it.
    with: String,
}

impl Registered {
    fn new(engine: Engine, sort: Sort, options: &[&str], flags: &[&str]) -> Self {
        let engine = Rc::new(engine);
        let env = engine_env(&engine, &engine.host());
        let file = ClientFile::install(&env, sort);
        env.ok(["client", "add", sort.id]);
        let name = server_name("fx");
        let url = run(&env, &name, Wire::Stdio, options, flags)["url"].as_str().unwrap().to_owned();
        until("it is registered", || file.text().contains(&url).then_some(()));
        let with = file.add_own_fields(&url);
        Self { env, _rest: Rest::new(&engine, &name), engine, name, file, with }
    }

    fn container(&self) -> String {
        self.env.server(&self.name)["container_id"].as_str().unwrap().to_owned()
    }

    fn done(&self) -> Vec<String> {
        done(&self.env, &self.name)
    }
}

#[test]
fn an_exit_removes_the_entry_and_the_restart_adds_it() {
    exit(CURSOR);
}

#[test]
fn an_exit_removes_the_entry_from_cline_and_the_restart_adds_it() {
    exit(CLINE);
}

fn exit(sort: Sort) {
    let options = ["--refresh", "always", "--restart-initial", "1s"];
    // Time for a second exit before anybody could have added the entry again.
    let server = Registered::new(Engine::shared(), sort, &options, &["--ready-after", "3000"]);
    let container = server.container();
    server.engine.docker(&["kill", &container]);
    server.file.once(sort.text);
    server.env.once(&server.name, "was up again", |found| found["generation"] == 2);
    server.engine.docker(&["kill", &container]);
    server.env.once(&server.name, "waited", |found| found["next_restart_at"].is_string());
    assert_eq!(server.file.text(), sort.text);
    server.env.once_running(&server.name, 3);
    server.file.once(&server.with);
    until("it is reported", || (server.done() == ["added", "removed", "added"]).then_some(()));
    let why = server.env.ok(["why", &server.name]);
    assert!(why.contains(sort.path), "{why}");
}

#[test]
fn a_quick_recovery_keeps_the_entry() {
    for sort in SORTS {
        let server = Registered::new(Engine::shared(), sort, &[], &[]);
        let stamp = server.file.stamp();
        server.engine.docker(&["kill", &server.container()]);
        server.env.once_running(&server.name, 2);
        assert_eq!((server.file.stamp(), server.done()), (stamp, vec!["added".to_owned()]));
    }
}

#[test]
fn an_engine_outage_longer_than_the_hold_removes_the_entry() {
    let engine = Engine::own(Options::default());
    let server = Registered::new(engine, CURSOR, &["--hold", "1s"], &[]);
    let [vscode, cline] = [VSCODE, CLINE].map(|sort| {
        let file = ClientFile::install(&server.env, sort);
        server.env.ok(["client", "add", sort.id]);
        (file.text(), file)
    });
    server.engine.stop();
    server.file.once(CURSOR.text);
    cline.1.once(CLINE.text);
    server.engine.start();
    server.env.once_running(&server.name, 2);
    server.file.once(&server.with);
    cline.1.once(&cline.0);
    assert_eq!(vscode.1.text(), vscode.0, "a refresh would stop a running server");
    assert_eq!(server.env.server(&server.name)["restarts"], 0);
}

#[test]
fn a_removed_container_removes_its_entry_for_good() {
    for (sort, mode) in SORTS.into_iter().zip(["auto", "never", "always"]) {
        let server = Registered::new(Engine::shared(), sort, &["--refresh", mode], &[]);
        server.engine.docker(&["rm", "--force", &server.container()]);
        server.file.once(sort.text);
        until("it is forgotten", || server.env.server(&server.name).is_null().then_some(()));
        until("it is reported", || (server.done() == ["added", "removed"]).then_some(()));
    }
}

#[test]
fn a_container_removed_without_its_entry_never_adds_it() {
    let options = ["--refresh", "always", "--restart-max", "0"];
    let server = Registered::new(Engine::shared(), CURSOR, &options, &[]);
    let container = server.container();
    server.engine.docker(&["kill", &container]);
    server.file.once(CURSOR.text);
    server.engine.docker(&["rm", "--force", &container]);
    until("it is forgotten", || server.env.server(&server.name).is_null().then_some(()));
    let entries = crate::clients::setup::listed(&server.env, "cursor")["entries"].clone();
    let foreign = entries.as_array().unwrap().iter().all(|entry| entry["standing"] == "foreign");
    assert!(foreign, "nothing of ours is left: {entries}");
    assert_eq!(server.file.text(), CURSOR.text);
}

#[test]
fn a_removal_without_a_daemon_removes_the_entry() {
    let server = Registered::new(Engine::shared(), CURSOR, &[], &[]);
    let (other, container) = (server_name("by"), server.container());
    // Not all containers may go at once.
    run(&server.env, &other, Wire::Stdio, &["--no-clients"], &[]);
    server.env.kill_mainstay();
    server.engine.docker(&["rm", "--force", &container]);
    until("it is forgotten", || server.env.server(&server.name).is_null().then_some(()));
    server.file.once(CURSOR.text);
    server.env.ok(["rm", &other]);
}

#[test]
fn rm_removes_the_entry_and_restores_the_file() {
    for sort in SORTS {
        let server = Registered::new(Engine::shared(), sort, &[], &[]);
        let output = server.env.run(["rm", &server.name]);
        assert_eq!(output.code, 0, "{output}");
        assert!(output.stderr.contains(sort.path), "{output}");
        assert_eq!(server.file.text(), sort.text);
        assert_eq!(json!(server.done()), json!(["added", "removed"]));
    }
}
