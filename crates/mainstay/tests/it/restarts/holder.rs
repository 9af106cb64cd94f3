//! The holder dies, both die, or no daemon can live.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::scene::{Blow, Knocker, NAME, Scene, say};
use crate::env::{
    TestEnv, free_port, is_alive, kill, parent_of, pid_of, shim_of, until, until_dead,
};

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

/// Whatever the hand-over has come to, one of the two daemons goes on, or a third one does.
#[test]
fn a_holder_that_is_killed_during_a_reload_leaves_a_daemon() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    let knockers = [Knocker::tcp(&scene.address()), Knocker::unix(scene.socket())];
    for round in 1..=12 {
        let (_, holder) = scene.mainstay();
        let mut reload = scene.env.command(["daemon", "reload"]);
        let mut reload = reload.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Each round another moment is met; which one does not matter to what must be.
        thread::sleep(Duration::from_millis(round * 30));
        kill(holder, Signal::KILL);
        until_dead(holder);
        until("the command has ended", || reload.try_wait().unwrap());
        once_held_anew(&scene, holder);
        assert_eq!(say(&session, round, "count", &json!({})), round.to_string());
    }
    for knocker in knockers {
        knocker.was_always_welcome();
    }
    scene.assert_server_kept();
}

#[test]
fn a_holder_that_dies_before_its_daemon_is_ready_is_replaced() {
    let scene = Scene::new(&[], &[]);
    let session = scene.raw();
    let knocker = Knocker::tcp(&scene.address());
    let (old, holder) = scene.mainstay();
    kill(old, Signal::KILL);
    until("the next daemon has opened the state", || {
        let mut others = scene.env.processes().into_iter().filter(|pid| *pid != old);
        others.find(|pid| opened(*pid, "state.db"))
    });
    kill(holder, Signal::KILL);
    until_dead(holder);
    let (next, _) = once_held_anew(&scene, holder);
    assert_ne!(next, old);
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    Blow::Kill.strike(&scene.env);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    knocker.was_always_welcome();
    scene.assert_server_kept();
}

#[test]
fn a_daemon_that_ends_leaves_no_holder_behind() {
    let scene = Scene::new(&[], &[]);
    let server = pid_of(&scene.server);
    let shim = shim_of(&scene.server);
    let kept = [server, shim, parent_of(shim)];
    for round in 0..5 {
        let (daemon, holder) = scene.mainstay();
        kill(holder, Signal::KILL);
        // Before, while and after another one is started.
        thread::sleep(Duration::from_millis(round * 10));
        kill(daemon, Signal::TERM);
        until_dead(daemon);
        until("only the server is left", || {
            let mut left = scene.env.processes().into_iter().filter(|pid| is_alive(*pid));
            left.all(|pid| kept.contains(&pid)).then_some(())
        });
        scene.assert_server_kept();
    }
}

/// The daemon and its holder, once that is another one than this. None is started for it.
fn once_held_anew(scene: &Scene, dead: u32) -> (u32, u32) {
    until("there is another holder", || {
        let (daemon, holder) = scene.mainstay();
        (holder != dead && is_alive(holder)).then_some((daemon, holder))
    })
}

/// Whether a process has a file of this name open.
fn opened(pid: u32, name: &str) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|file| file.ends_with(name))
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
fn a_daemon_that_cannot_live_says_why_and_comes_back_when_it_can() {
    let scene = Scene::new(&[], &[]);
    let (daemon, holder) = scene.mainstay();
    let session = scene.raw();
    let state = scene.env.mainstay_home().join("state");
    let files = ["state.db", "state.db-wal", "state.db-shm"].map(|file| state.join(file));
    let good = files.each_ref().map(|file| fs::read(file).ok());
    until("the session is on disk", || {
        let has_it = |file: &str| {
            let bytes = fs::read(state.join(file)).unwrap_or_default();
            bytes.windows(session.id.len()).any(|part| part == session.id.as_bytes())
        };
        ["sessions.db", "sessions.db-wal"].into_iter().any(has_it).then_some(())
    });
    for file in &files {
        let _absent = fs::remove_file(file);
    }
    fs::write(&files[0], "no database ".repeat(1_000)).unwrap();
    kill(daemon, Signal::KILL);
    let failure_report = scene.env.mainstay_home().join("run/last-words");
    until("the holder reports it", || failure_report.exists().then_some(()));
    assert!(is_alive(pid_of(&scene.server)), "the server has no part in it");
    let words = fs::read_to_string(&failure_report).unwrap();
    assert!(words.contains("state.db"), "{words}");
    for args in [&["ls"][..], &["daemon", "status"]] {
        let told = scene.env.run(args);
        assert_eq!(told.code, 4, "{told}");
        assert!(told.stderr.contains("error: the daemon keeps failing: "), "{told}");
        assert!(told.stderr.contains("state.db` "), "{told}");
        assert!(told.stderr.contains("help: "), "{told}");
    }

    thread::scope(|scope| {
        let early = scope.spawn(|| say(&session, 1, "count", &json!({})));
        let _absent = fs::remove_file(&files[0]);
        for (file, bytes) in files.iter().zip(good).filter_map(|(file, bytes)| Some((file, bytes?)))
        {
            fs::write(file, bytes).unwrap();
        }
        assert_eq!(early.join().unwrap(), "1", "a call made meanwhile is answered");
    });
    scene.assert_server_kept();
    assert!(!failure_report.exists(), "a daemon serves again");
    assert_eq!(scene.mainstay().1, holder);
}

#[test]
fn five_kills_in_a_row_cost_a_client_nothing() {
    let scene = Scene::new(&[], &[]);
    let (_, holder) = scene.mainstay();
    let session = scene.raw();
    for count in 1..=7 {
        let daemon = scene.mainstay().0;
        kill(daemon, Signal::KILL);
        assert_eq!(say(&session, count, "count", &json!({})), count.to_string());
    }
    scene.assert_server_kept();
    assert_eq!(scene.mainstay().1, holder);
}
