//! The store of intent is lost, damaged or an older copy, while servers run.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use super::scene::{NAME, Scene, say};
use crate::env::{is_alive, kill, pid_of, until, until_dead};

const FILES: [&str; 3] = ["state.db", "state.db-wal", "state.db-shm"];

fn state(scene: &Scene, name: &str) -> PathBuf {
    scene.env.mainstay_home().join("state").join(name)
}

fn remove(scene: &Scene, names: &[&str]) {
    for name in names {
        let _absent = fs::remove_file(state(scene, name));
    }
}

/// Kills the daemon, and waits until the holder reports that the next one refuses to start.
fn kill_daemon_and_await_refusal(scene: &Scene) {
    kill(scene.mainstay().0, Signal::KILL);
    let failure_report = scene.env.mainstay_home().join("run/last-words");
    until("the holder reports it", || failure_report.exists().then_some(()));
}

#[test]
fn a_lost_store_is_reported_and_restored_while_its_servers_run_on() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    for garbage in [None, Some("no database ".repeat(1_000))] {
        remove(&scene, &FILES);
        if let Some(garbage) = &garbage {
            fs::write(state(&scene, "state.db"), garbage).unwrap();
        }
        kill_daemon_and_await_refusal(&scene);
        for args in [&["ls"][..], &["daemon", "status"], &["doctor"]] {
            let told = scene.env.run(args).to_string();
            assert!(told.contains("state.db` is "), "{args:?}: {told}");
            assert!(told.contains("`mainstay doctor --restore` restores it"), "{args:?}: {told}");
        }
        assert_eq!(scene.env.run(["ls"]).code, 4);
        assert!(is_alive(pid_of(&scene.server)));

        let told = scene.env.run(["doctor", "--restore"]);
        assert_eq!(told.code, 0, "{told}");
        assert!(told.stderr.contains("state.db.backup`, made "), "{told}");
        assert!(told.stderr.contains(&format!(": {NAME}\n")), "{told}");
        scene.env.once(NAME, "is back", |server| server["status"] == "running");
        scene.assert_server_kept();
    }
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    assert_eq!(
        fs::read(state(&scene, "state.db.damaged")).unwrap().get(..11).unwrap(),
        b"no database"
    );
    let told = scene.env.run(["doctor", "--restore"]);
    assert!(told.code == 0 && told.stderr.contains("nothing was changed"), "{told}");
}

#[test]
fn without_a_copy_only_an_empty_start_is_left() {
    let scene = Scene::new(&[], &[]);
    remove(&scene, &FILES);
    remove(&scene, &["state.db.backup"]);
    kill_daemon_and_await_refusal(&scene);
    let told = scene.env.run(["ls"]);
    assert!(
        told.code == 4 && told.stderr.contains("`mainstay doctor --restore --empty`"),
        "{told}"
    );
    let told = scene.env.run(["doctor", "--restore"]);
    assert!(
        told.code == 1 && told.stderr.contains("`mainstay doctor --restore --empty`"),
        "{told}"
    );
    let told = scene.env.run(["doctor", "--restore", "--empty"]);
    assert_eq!(told.code, 0, "{told}");
    let running = format!("still running until the next daemon starts: {NAME}\n");
    assert!(told.stderr.contains(&running), "{told}");
    assert_eq!(scene.env.json(["ls", "-a", "--json"]), json!([]));
    until_dead(pid_of(&scene.server));
}

#[test]
fn servers_obey_a_daemon_whose_store_is_an_older_copy() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    let older = fs::read(state(&scene, "state.db")).unwrap();
    for count in 1..=3 {
        kill(scene.mainstay().0, Signal::KILL);
        assert_eq!(say(&session, count, "count", &json!({})), count.to_string());
    }
    scene.env.kill_mainstay();
    remove(&scene, &FILES);
    fs::write(state(&scene, "state.db"), older).unwrap();
    // Without it, only the shim knows the number.
    fs::remove_dir_all(scene.env.mainstay_home().join("run/streams")).unwrap();
    scene.env.ok(["daemon", "start"]);
    assert_eq!(scene.env.call(NAME, "count", "{}"), "4");
    scene.assert_server_kept();
}

#[test]
fn an_empty_start_moves_the_copy_aside() {
    let scene = Scene::new(&[], &[]);
    remove(&scene, &FILES);
    kill_daemon_and_await_refusal(&scene);
    let told = scene.env.run(["doctor", "--restore", "--empty"]);
    assert_eq!(told.code, 0, "{told}");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let files = fs::read_dir(state(&scene, "")).unwrap().map(|entry| name(entry.unwrap()));
    let mut aside = files.filter(|name| name.starts_with("state.db.backup.2"));
    let aside = aside.next().expect("the copy is kept");
    assert!(told.stderr.contains(&format!("state/{aside}`")), "{told}");
    assert_eq!(scene.env.json(["ls", "-a", "--json"]), json!([]));
    let copy = rusqlite::Connection::open(state(&scene, &aside)).unwrap();
    let count = copy.query_row("SELECT count(*) FROM servers", [], |row| row.get::<_, i64>(0));
    assert_eq!(count.unwrap(), 1);
}

#[test]
fn a_daemon_that_runs_on_reloads_the_restored_store() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    let daemon = scene.mainstay().0;
    remove(&scene, &FILES);
    let told = scene.env.run(["doctor", "--restore"]);
    assert_eq!(told.code, 0, "{told}");
    assert!(told.stderr.contains("a new daemon serves (pid "), "{told}");
    assert_ne!(scene.mainstay().0, daemon);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    scene.assert_server_kept();
    scene.env.run_server("other", &[], &[&crate::env::fixture()]);
    kill(scene.mainstay().0, Signal::KILL);
    let names = |list: &serde_json::Value| list.as_array().map(Vec::len);
    assert_eq!(names(&scene.env.json(["ls", "--json"])), Some(2), "it is in the restored store");
}
