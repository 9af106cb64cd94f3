//! The store of intent is lost, damaged or an older copy, while servers run.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use super::setup::{NAME, Setup, say};
use crate::env::{is_alive, kill, pid_of, until, until_dead};

const FILES: [&str; 3] = ["state.db", "state.db-wal", "state.db-shm"];

fn state(setup: &Setup, name: &str) -> PathBuf {
    setup.env.mainstay_home().join("state").join(name)
}

fn remove(setup: &Setup, names: &[&str]) {
    for name in names {
        let _absent = fs::remove_file(state(setup, name));
    }
}

/// Kills the daemon, and waits until the holder reports that the next one refuses to start.
fn kill_daemon_and_await_refusal(setup: &Setup) {
    kill(setup.mainstay().0, Signal::KILL);
    let failure_report = setup.env.mainstay_home().join("run/last-words");
    until("the holder reports it", || failure_report.exists().then_some(()));
}

#[test]
fn a_lost_store_is_reported_and_restored_while_servers_run() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    for garbage in [None, Some("no database ".repeat(1_000))] {
        remove(&setup, &FILES);
        if let Some(garbage) = &garbage {
            fs::write(state(&setup, "state.db"), garbage).unwrap();
        }
        kill_daemon_and_await_refusal(&setup);
        for args in [&["ls"][..], &["daemon", "status"], &["doctor"]] {
            let reported = setup.env.run(args).to_string();
            assert!(reported.contains("state.db` is "), "{args:?}: {reported}");
            assert!(
                reported.contains("`mainstay doctor --restore` restores it"),
                "{args:?}: {reported}"
            );
        }
        assert_eq!(setup.env.run(["ls"]).code, 4);
        assert!(is_alive(pid_of(&setup.server)));

        let reported = setup.env.run(["doctor", "--restore"]);
        assert_eq!(reported.code, 0, "{reported}");
        assert!(reported.stderr.contains("state.db.backup`, made "), "{reported}");
        assert!(reported.stderr.contains(&format!(": {NAME}\n")), "{reported}");
        setup.env.once(NAME, "is back", |server| server["status"] == "running");
        setup.assert_server_kept();
    }
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    assert_eq!(
        fs::read(state(&setup, "state.db.damaged")).unwrap().get(..11).unwrap(),
        b"no database"
    );
    let reported = setup.env.run(["doctor", "--restore"]);
    assert!(reported.code == 0 && reported.stderr.contains("nothing was changed"), "{reported}");
}

#[test]
fn without_a_copy_only_an_empty_start_is_left() {
    let setup = Setup::new(&[], &[]);
    remove(&setup, &FILES);
    remove(&setup, &["state.db.backup"]);
    kill_daemon_and_await_refusal(&setup);
    let reported = setup.env.run(["ls"]);
    assert!(
        reported.code == 4 && reported.stderr.contains("`mainstay doctor --restore --empty`"),
        "{reported}"
    );
    let reported = setup.env.run(["doctor", "--restore"]);
    assert!(
        reported.code == 1 && reported.stderr.contains("`mainstay doctor --restore --empty`"),
        "{reported}"
    );
    let reported = setup.env.run(["doctor", "--restore", "--empty"]);
    assert_eq!(reported.code, 0, "{reported}");
    let running = format!("still running until the next daemon starts: {NAME}\n");
    assert!(reported.stderr.contains(&running), "{reported}");
    assert_eq!(setup.env.json(["ls", "-a", "--json"]), json!([]));
    until_dead(pid_of(&setup.server));
}

#[test]
fn servers_obey_a_daemon_whose_store_is_an_older_copy() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    let older = fs::read(state(&setup, "state.db")).unwrap();
    for count in 1..=3 {
        kill(setup.mainstay().0, Signal::KILL);
        assert_eq!(say(&session, count, "count", &json!({})), count.to_string());
    }
    setup.env.kill_mainstay();
    remove(&setup, &FILES);
    fs::write(state(&setup, "state.db"), older).unwrap();
    // Without it, only the shim knows the number.
    fs::remove_dir_all(setup.env.mainstay_home().join("run/streams")).unwrap();
    setup.env.ok(["daemon", "start"]);
    assert_eq!(setup.env.call(NAME, "count", "{}"), "4");
    setup.assert_server_kept();
}

#[test]
fn an_empty_start_moves_the_copy_aside() {
    let setup = Setup::new(&[], &[]);
    remove(&setup, &FILES);
    kill_daemon_and_await_refusal(&setup);
    let reported = setup.env.run(["doctor", "--restore", "--empty"]);
    assert_eq!(reported.code, 0, "{reported}");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let files = fs::read_dir(state(&setup, "")).unwrap().map(|entry| name(entry.unwrap()));
    let mut aside = files.filter(|name| name.starts_with("state.db.backup.2"));
    let aside = aside.next().expect("the copy is kept");
    assert!(reported.stderr.contains(&format!("state/{aside}`")), "{reported}");
    assert_eq!(setup.env.json(["ls", "-a", "--json"]), json!([]));
    let copy = rusqlite::Connection::open(state(&setup, &aside)).unwrap();
    let count = copy.query_row("SELECT count(*) FROM servers", [], |row| row.get::<_, i64>(0));
    assert_eq!(count.unwrap(), 1);
}

#[test]
fn a_running_daemon_reloads_the_restored_store() {
    let setup = Setup::new(&[], &[]);
    let session = setup.raw();
    assert_eq!(say(&session, 1, "count", &json!({})), "1");
    let daemon = setup.mainstay().0;
    remove(&setup, &FILES);
    let reported = setup.env.run(["doctor", "--restore"]);
    assert_eq!(reported.code, 0, "{reported}");
    assert!(reported.stderr.contains("a new daemon serves (pid "), "{reported}");
    assert_ne!(setup.mainstay().0, daemon);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    setup.assert_server_kept();
    setup.env.run_server("other", &[], &[&crate::env::fixture()]);
    kill(setup.mainstay().0, Signal::KILL);
    let names = |list: &serde_json::Value| list.as_array().map(Vec::len);
    assert_eq!(names(&setup.env.json(["ls", "--json"])), Some(2), "it is in the restored store");
}
