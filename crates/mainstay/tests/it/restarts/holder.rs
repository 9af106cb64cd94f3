//! The holder dies, both die, or no daemon can live.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::scene::{Blow, Knocker, NAME, Scene, say};
use crate::env::{TestEnv, free_port, is_alive, kill, pid_of, until, until_dead};

#[test]
fn a_killed_holder_is_replaced_and_the_daemon_is_held_as_before() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    let knockers = [Knocker::tcp(&scene.address()), Knocker::unix(scene.socket())];
    let (daemon, holder) = scene.mainstay();
    kill(holder, Signal::KILL);
    until_dead(holder);
    let next = until("there is another holder", || {
        let (same, next) = scene.mainstay();
        assert_eq!(same, daemon, "the daemon lives on");
        (next != holder && is_alive(next)).then_some(next)
    });
    assert_eq!(say(&session, 1, "count", &json!({})), "1");

    Blow::Kill.strike(&scene.env);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    Blow::Reload.strike(&scene.env);
    assert_eq!(say(&session, 3, "count", &json!({})), "3");
    assert_eq!(scene.mainstay().1, next);
    for knocker in knockers {
        knocker.was_always_welcome();
    }
    scene.assert_server_kept();
}

#[test]
fn when_both_are_killed_the_next_command_brings_everything_back() {
    let address = format!("127.0.0.1:{}", free_port());
    let scene = Scene::in_env(TestEnv::new().with_var("MAINSTAY_LISTEN", &address), &[], &[]);
    let session = scene.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    let before = scene.mainstay();
    scene.env.kill_mainstay();
    assert_eq!(scene.env.server(NAME)["sessions"], 1);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    scene.assert_server_kept();
    let after = scene.mainstay();
    assert!(before.0 != after.0 && before.1 != after.1);
    Blow::Kill.strike(&scene.env);
    assert_eq!(say(&session, 3, "count", &json!({})), "3");
}

#[test]
fn a_daemon_that_cannot_live_is_given_up_and_says_why() {
    let scene = Scene::new(&[], &[]);
    let (daemon, holder) = scene.mainstay();
    let state = scene.env.mainstay_home().join("state");
    let files = ["state.db", "state.db-wal", "state.db-shm"].map(|file| state.join(file));
    let good = files.each_ref().map(|file| fs::read(file).ok());
    for file in &files {
        let _absent = fs::remove_file(file);
    }
    fs::write(&files[0], "no database ".repeat(1_000)).unwrap();
    kill(daemon, Signal::KILL);
    let last_words = scene.env.mainstay_home().join("run/last-words");
    until("the holder gives up", || last_words.exists().then_some(()));
    until_dead(holder);
    assert!(is_alive(pid_of(&scene.server)), "the server has no part in it");
    let words = fs::read_to_string(&last_words).unwrap();
    assert!(words.contains("state.db"), "{words}");
    let told = scene.env.run(["ls"]);
    assert_eq!(told.code, 4, "{told}");
    assert!(told.stderr.contains("state.db` "), "{told}");
    assert!(told.stderr.contains("help: "), "{told}");

    let _absent = fs::remove_file(&files[0]);
    for (file, bytes) in files.iter().zip(good).filter_map(|(file, bytes)| Some((file, bytes?))) {
        fs::write(file, bytes).unwrap();
    }
    scene.assert_server_kept();
    assert!(!last_words.exists(), "a daemon serves again");
}
