//! The holder dies, both die, or no daemon can start.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::setup::{Blow, Knocker, NAME, Setup, say};
use crate::env::{
    TestEnv, free_port, is_alive, kill, parent_of, pid_of, shim_of, until, until_dead,
};

#[test]
fn a_killed_holder_is_replaced() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    let knockers = [Knocker::tcp(&setup.address()), Knocker::unix(setup.socket())];
    let (daemon, holder) = setup.mainstay();
    kill(holder, Signal::KILL);
    until_dead(holder);
    let next = until("there is another holder", || {
        let (same, next) = setup.mainstay();
        assert_eq!(same, daemon, "the daemon lives on");
        (next != holder && is_alive(next)).then_some(next)
    });
    assert_eq!(say(&session, 1, "count", &json!({})), "1");

    Blow::Kill.strike(&setup.env);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    Blow::Reload.strike(&setup.env);
    assert_eq!(say(&session, 3, "count", &json!({})), "3");
    assert_eq!(setup.mainstay().1, next);
    for knocker in knockers {
        knocker.was_always_welcome();
    }
    setup.assert_server_kept();
}

/// At every step of the hand-over, one of the two daemons continues, or a third one does.
#[test]
fn a_holder_that_is_killed_during_a_reload_leaves_a_daemon() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    let knockers = [Knocker::tcp(&setup.address()), Knocker::unix(setup.socket())];
    for round in 1..=12 {
        let (_, holder) = setup.mainstay();
        let mut reload = setup.env.command(["daemon", "reload"]);
        let mut reload = reload.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Each round kills at another moment; the result must be the same.
        thread::sleep(Duration::from_millis(round * 30));
        kill(holder, Signal::KILL);
        until_dead(holder);
        until("the command has ended", || reload.try_wait().unwrap());
        once_held_anew(&setup, holder);
        assert_eq!(say(&session, round, "count", &json!({})), round.to_string());
    }
    for knocker in knockers {
        knocker.was_always_welcome();
    }
    setup.assert_server_kept();
}

#[test]
fn a_holder_that_dies_before_its_daemon_is_ready_is_replaced() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    let knocker = Knocker::tcp(&setup.address());
    let (old, holder) = setup.mainstay();
    kill(old, Signal::KILL);
    until("the next daemon has opened the state", || {
        let mut others = setup.env.processes().into_iter().filter(|pid| *pid != old);
        others.find(|pid| opened(*pid, "state.db"))
    });
    kill(holder, Signal::KILL);
    until_dead(holder);
    let (next, _) = once_held_anew(&setup, holder);
    assert_ne!(next, old);
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    Blow::Kill.strike(&setup.env);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    knocker.was_always_welcome();
    setup.assert_server_kept();
}

#[test]
fn a_daemon_that_ends_leaves_no_holder_behind() {
    let setup = Setup::new(&[], &[]);
    let server = pid_of(&setup.server);
    let shim = shim_of(&setup.server);
    let kept = [server, shim, parent_of(shim)];
    for round in 0..5 {
        let (daemon, holder) = setup.mainstay();
        kill(holder, Signal::KILL);
        // Before, while and after another one is started.
        thread::sleep(Duration::from_millis(round * 10));
        kill(daemon, Signal::TERM);
        until_dead(daemon);
        until("only the server is left", || {
            let mut left = setup.env.processes().into_iter().filter(|pid| is_alive(*pid));
            left.all(|pid| kept.contains(&pid)).then_some(())
        });
        setup.assert_server_kept();
    }
}

/// The daemon and its holder, once that is another one than this. None is started for it.
fn once_held_anew(setup: &Setup, dead: u32) -> (u32, u32) {
    until("there is another holder", || {
        let (daemon, holder) = setup.mainstay();
        (holder != dead && is_alive(holder)).then_some((daemon, holder))
    })
}

/// Whether a process has a file of this name open.
fn opened(pid: u32, name: &str) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|file| file.ends_with(name))
}

#[test]
fn when_both_are_killed_the_next_command_recovers() {
    let address = format!("127.0.0.1:{}", free_port());
    let setup = Setup::in_env(TestEnv::new().with_var("MAINSTAY_LISTEN", &address), &[], &[]);
    let session = setup.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    let before = setup.mainstay();
    setup.env.kill_mainstay();
    assert_eq!(setup.env.server(NAME)["sessions"], 1);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    setup.assert_server_kept();
    let after = setup.mainstay();
    assert!(before.0 != after.0 && before.1 != after.1);
    Blow::Kill.strike(&setup.env);
    assert_eq!(say(&session, 3, "count", &json!({})), "3");
}

#[test]
fn a_failing_daemon_reports_why_and_recovers() {
    let setup = Setup::new(&[], &[]);
    let (daemon, holder) = setup.mainstay();
    let session = setup.raw();
    let state = setup.env.mainstay_home().join("state");
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
    let failure_report = setup.env.mainstay_home().join("run/last-words");
    until("the holder reports it", || failure_report.exists().then_some(()));
    assert!(is_alive(pid_of(&setup.server)), "the server has no part in it");
    let words = fs::read_to_string(&failure_report).unwrap();
    assert!(words.contains("state.db"), "{words}");
    for args in [&["ls"][..], &["daemon", "status"]] {
        let reported = setup.env.run(args);
        assert_eq!(reported.code, 4, "{reported}");
        assert!(reported.stderr.contains("error: the daemon keeps failing: "), "{reported}");
        assert!(reported.stderr.contains("state.db` "), "{reported}");
        assert!(reported.stderr.contains("help: "), "{reported}");
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
    setup.assert_server_kept();
    assert!(!failure_report.exists(), "a daemon serves again");
    assert_eq!(setup.mainstay().1, holder);
}

#[test]
fn a_client_survives_five_kills_in_a_row() {
    let setup = Setup::new(&[], &[]);
    let (_, holder) = setup.mainstay();
    let session = setup.raw();
    for count in 1..=7 {
        let daemon = setup.mainstay().0;
        kill(daemon, Signal::KILL);
        assert_eq!(say(&session, count, "count", &json!({})), count.to_string());
    }
    setup.assert_server_kept();
    assert_eq!(setup.mainstay().1, holder);
}
