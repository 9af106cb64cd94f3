//! When entries are removed and added again: `always`, `auto` and `never`.

use std::fs;

use jiff::SignedDuration;

use super::setup::{CLINE, CURSOR, ClientFile, Setup, Sort, VSCODE, between, last_done, run_gated};

/// Restarts that a test need not wait for.
const QUICK: [&str; 4] = ["--restart-initial", "50ms", "--restart-cap", "50ms"];

#[test]
fn always_removes_the_entry_and_restores_it() {
    always(CURSOR);
}

#[test]
fn always_keeps_what_cline_wrote() {
    always(CLINE);
}

fn always(sort: Sort) {
    let setup = Setup::new(sort, &["--refresh", "always"]);
    setup.close_gate();
    setup.kill();
    setup.file.once(&setup.before);
    assert_eq!(setup.standing(sort.id), "away");
    setup.open_gate();
    setup.env.once_running("time", 2);
    setup.file.once(&setup.with);
    setup.once_done("added");
    assert_eq!(setup.done(), ["added", "removed", "added"]);
    assert_eq!(setup.standing(sort.id), "ours");
    let events = ["removed", "added"].map(|cause| last_done(&setup.env, "time", cause));
    assert!(between(&events[0], &events[1]) >= SignedDuration::from_secs(2), "{events:?}");
    setup.env.ok(["rm", "time"]);
    assert_eq!(setup.file.text(), setup.before);
}

#[test]
fn clients_that_a_refresh_does_not_help_get_none() {
    for mode in ["auto", "always"] {
        let setup = Setup::new(VSCODE, &["--refresh", mode, "--hold", "1s"]);
        let cursor = ClientFile::install(&setup.env, CURSOR);
        setup.env.ok(["client", "add", "cursor"]);
        let with = cursor.text();
        let stamp = setup.file.stamp();
        setup.close_gate();
        setup.kill();
        cursor.once(CURSOR.text);
        assert_eq!(setup.standing("vscode"), "ours");
        setup.open_gate();
        setup.env.once_running("time", 2);
        cursor.once(&with);
        assert_eq!((setup.file.stamp(), setup.file.text()), (stamp, setup.with.clone()));
    }
}

#[test]
fn a_second_death_inside_the_minute_leaves_the_entry_in_place() {
    let options = [&["--refresh", "always"], QUICK.as_slice()].concat();
    let setup = Setup::new(CURSOR, &options);
    setup.close_gate();
    setup.kill();
    setup.file.once(&setup.before);
    setup.open_gate();
    setup.env.once_running("time", 2);
    setup.file.once(&setup.with);
    setup.once_done("added");
    let stamp = setup.file.stamp();
    setup.kill();
    setup.env.once_running("time", 3);
    assert_eq!(setup.file.stamp(), stamp);
    assert_eq!(setup.done(), ["added", "removed", "added"]);
}

#[test]
fn always_applies_to_a_manual_restart_and_can_be_the_default() {
    let setup = Setup::with_config(CURSOR, "refresh = \"always\"\n", &[]);
    setup.env.ok(["restart", "time"]);
    setup.file.once(&setup.before);
    setup.env.once_running("time", 2);
    setup.file.once(&setup.with);
}

#[test]
fn auto_keeps_the_entry_if_recovery_is_quick() {
    let setup = Setup::new(CURSOR, &QUICK);
    let stamp = setup.file.stamp();
    for generation in 2..=4 {
        setup.kill();
        setup.env.once_running("time", generation);
    }
    assert_eq!((setup.file.stamp(), setup.done()), (stamp, vec!["added".to_owned()]));
    assert_eq!(setup.file.text(), setup.with);
}

#[test]
fn auto_removes_the_entry_if_an_outage_exceeds_the_hold() {
    let setup = Setup::new(CURSOR, &["--hold", "1s"]);
    setup.close_gate();
    setup.kill();
    setup.file.once(&setup.before);
    let ended = setup.env.events_called("time", "ended").pop().unwrap();
    let removed = setup.once_done("removed");
    assert!(between(&ended, &removed) >= SignedDuration::from_secs(1), "{removed}");
    assert!(removed["detail"].as_str().unwrap().contains("longer than 1 s"), "{removed}");
    setup.open_gate();
    setup.env.once_running("time", 2);
    setup.file.once(&setup.with);
    let added = setup.once_done("added");
    assert!(between(&removed, &added) >= SignedDuration::from_secs(2), "{added}");
}

#[test]
fn a_failed_server_loses_its_entry_until_a_restart() {
    for sort in [CURSOR, VSCODE, CLINE] {
        let setup = Setup::new(sort, &["--restart-max", "1", "--hold", "10m"]);
        setup.kill();
        setup.env.once_running("time", 2);
        assert_eq!(setup.file.text(), setup.with);
        setup.kill();
        setup.file.once(&setup.before);
        let removed = setup.once_done("removed");
        assert!(removed["detail"].as_str().unwrap().contains("failed"), "{removed}");
        assert_eq!(setup.env.server("time")["status"], "error");
        setup.env.ok(["restart", "time"]);
        setup.file.once(&setup.with);
    }
}

#[test]
fn never_keeps_the_entry() {
    let setup = Setup::new(CURSOR, &["--refresh", "never", "--hold", "0s", "--restart-max", "1"]);
    let stamp = setup.file.stamp();
    setup.close_gate();
    setup.kill();
    setup.env.once("time", "was down", |server| server["generation"] == 2);
    setup.open_gate();
    setup.env.once_running("time", 2);
    setup.kill();
    setup.env.once("time", "gave up", |server| server["status"] == "error");
    setup.env.ok(["restart", "time"]);
    setup.env.once_running("time", 3);
    assert_eq!((setup.file.stamp(), setup.done()), (stamp, vec!["added".to_owned()]));
    setup.env.ok(["rm", "time"]);
    assert_eq!(setup.file.text(), setup.before);
}

#[test]
fn a_stopped_server_keeps_its_entry() {
    let setup = Setup::new(CURSOR, &["--refresh", "auto"]);
    let stamp = setup.file.stamp();
    setup.env.ok(["stop", "time"]);
    setup.env.ok(["start", "time"]);
    setup.env.once_running("time", 2);
    assert_eq!((setup.file.stamp(), setup.done()), (stamp, vec!["added".to_owned()]));
}

#[test]
fn entries_removed_by_a_dead_daemon_are_added_by_the_next() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    setup.close_gate();
    setup.kill();
    setup.file.once(&setup.before);
    setup.env.kill_mainstay();
    assert_eq!(setup.standing("cursor"), "away");
    setup.open_gate();
    setup.file.once(&setup.with);
}

#[test]
fn a_restart_of_the_daemon_changes_no_file() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    let stamp = setup.file.stamp();
    setup.env.kill_mainstay();
    setup.env.once_running("time", 1);
    assert_eq!(setup.standing("cursor"), "ours");
    setup.env.ok(["rm", "time"]);
    assert!(setup.file.stamp() != stamp, "a removal is a write");
    assert_eq!(
        (setup.done(), setup.file.text()),
        (vec!["added".into(), "removed".into()], setup.before.clone())
    );
}

#[test]
fn a_file_created_by_mainstay_is_removed_with_the_last_entry() {
    let setup = Setup::new(CURSOR, &[]);
    setup.env.ok(["rm", "time"]);
    fs::remove_file(&setup.file.path).unwrap();
    run_gated(&setup.env, "time", &[]);
    assert_eq!(setup.file.json()["mcpServers"].as_object().unwrap().len(), 1);
    setup.env.ok(["rm", "time"]);
    assert!(!setup.file.path.exists());
    assert!(setup.file.path.parent().unwrap().exists(), "the client's directory is the client's");
}

#[test]
fn the_first_run_under_a_reused_name_is_not_a_restart() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    setup.env.ok(["rm", "time"]);
    run_gated(&setup.env, "time", &["--refresh", "always"]);
    assert_eq!(setup.done(), ["added", "removed", "added"]);
    assert!(setup.file.text().contains("/time/mcp"));
}
