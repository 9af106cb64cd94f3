//! The file of sessions is lost, or a part of it, and sessions survive.

use std::fs;

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::json;

use super::setup::{NAME, Setup, say};
use crate::env::{kill, until};
use crate::proxy::raw::{BOTH, Raw, request};

/// Kills the daemon, and removes files of the sessions before the next one serves.
fn kill_daemon_without(setup: &Setup, files: &[&str]) {
    let (daemon, holder) = setup.mainstay();
    // So that no other daemon is started meanwhile.
    kill(holder, Signal::STOP);
    kill(daemon, Signal::KILL);
    for file in files {
        let _absent = fs::remove_file(setup.env.mainstay_home().join("state").join(file));
    }
    kill(holder, Signal::CONT);
}

#[test]
fn no_session_is_lost_with_its_record() {
    for files in [&["sessions.db", "sessions.db-wal", "sessions.db-shm"][..], &["sessions.db-wal"]]
    {
        let setup = Setup::new(&[], &[]);
        let (session, ended) = (setup.raw(), setup.raw());
        assert_eq!(say(&session, 1, "count", &json!({})), "1");
        kill_daemon_without(&setup, files);
        assert_eq!(say(&session, 2, "count", &json!({})), "2", "{files:?}");
        setup.assert_server_kept();
        let lost = setup.env.events_called(NAME, "request");
        assert!(lost.iter().any(|event| event["cause"] == "session-lost"), "{lost:?}");

        let status = |session: &Raw| session.post(BOTH, &request(9, "ping", &json!({}))).status;
        assert_eq!((ended.delete(), status(&ended)), (204, 404), "it was ended by its client");
        let Raw { address, path, .. } = setup.raw();
        let foreign = Raw { address, path, id: "0".repeat(72), authorization: None };
        assert_eq!(status(&foreign), 404);
        let file = Connection::open(setup.env.mainstay_home().join("state/sessions.db")).unwrap();
        let count = "SELECT count(*) FROM sessions WHERE server = ''";
        until("the end is on disk", || {
            let count = file.query_row(count, [], |row| row.get::<_, i64>(0));
            count.is_ok_and(|count| count == 1).then_some(())
        });
        kill(setup.mainstay().0, Signal::KILL);
        assert_eq!(say(&session, 3, "count", &json!({})), "3");
        assert_eq!(status(&ended), 404, "the end outlives the daemon");
    }
}

#[test]
fn a_session_opened_right_before_a_kill_survives() {
    let setup = Setup::new(&[], &[]);
    for round in 1..=5 {
        let (daemon, _) = setup.mainstay();
        let session = setup.raw();
        kill(daemon, Signal::KILL);
        assert_eq!(say(&session, 1, "count", &json!({})), round.to_string());
    }
}
