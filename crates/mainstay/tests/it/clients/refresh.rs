//! When entries go and come back: `always`, `auto` and `never`.

use std::fs;

use jiff::SignedDuration;

use super::scene::{CLINE, CURSOR, ClientFile, Scene, Sort, VSCODE, between, last_done, run_gated};

/// Restarts that a story need not wait for.
const QUICK: [&str; 4] = ["--restart-initial", "50ms", "--restart-cap", "50ms"];

#[test]
fn always_takes_the_entry_out_and_brings_it_back_as_it_was() {
    always(CURSOR);
}

#[test]
fn always_keeps_what_cline_wrote() {
    always(CLINE);
}

fn always(sort: Sort) {
    let scene = Scene::new(sort, &["--refresh", "always"]);
    scene.close_gate();
    scene.kill();
    scene.file.once(&scene.before);
    assert_eq!(scene.standing(sort.id), "away");
    scene.open_gate();
    scene.env.once_running("time", 2);
    scene.file.once(&scene.with);
    scene.once_done("added");
    assert_eq!(scene.done(), ["added", "removed", "added"]);
    assert_eq!(scene.standing(sort.id), "ours");
    let events = ["removed", "added"].map(|cause| last_done(&scene.env, "time", cause));
    assert!(between(&events[0], &events[1]) >= SignedDuration::from_secs(2), "{events:?}");
    scene.env.ok(["rm", "time"]);
    assert_eq!(scene.file.text(), scene.before);
}

#[test]
fn clients_that_a_refresh_does_not_help_get_none() {
    for mode in ["auto", "always"] {
        let scene = Scene::new(VSCODE, &["--refresh", mode, "--hold", "1s"]);
        let cursor = ClientFile::install(&scene.env, CURSOR);
        scene.env.ok(["client", "add", "cursor"]);
        let with = cursor.text();
        let stamp = scene.file.stamp();
        scene.close_gate();
        scene.kill();
        cursor.once(CURSOR.text);
        assert_eq!(scene.standing("vscode"), "ours");
        scene.open_gate();
        scene.env.once_running("time", 2);
        cursor.once(&with);
        assert_eq!((scene.file.stamp(), scene.file.text()), (stamp, scene.with.clone()));
    }
}

#[test]
fn a_second_death_inside_the_minute_leaves_the_entry_in_place() {
    let options = [&["--refresh", "always"], QUICK.as_slice()].concat();
    let scene = Scene::new(CURSOR, &options);
    scene.close_gate();
    scene.kill();
    scene.file.once(&scene.before);
    scene.open_gate();
    scene.env.once_running("time", 2);
    scene.file.once(&scene.with);
    scene.once_done("added");
    let stamp = scene.file.stamp();
    scene.kill();
    scene.env.once_running("time", 3);
    assert_eq!(scene.file.stamp(), stamp);
    assert_eq!(scene.done(), ["added", "removed", "added"]);
}

#[test]
fn always_holds_for_a_restart_by_hand_and_may_hold_for_all_servers() {
    let scene = Scene::with_config(CURSOR, "refresh = \"always\"\n", &[]);
    scene.env.ok(["restart", "time"]);
    scene.file.once(&scene.before);
    scene.env.once_running("time", 2);
    scene.file.once(&scene.with);
}

#[test]
fn auto_leaves_the_entry_alone_when_recovery_is_quick() {
    let scene = Scene::new(CURSOR, &QUICK);
    let stamp = scene.file.stamp();
    for generation in 2..=4 {
        scene.kill();
        scene.env.once_running("time", generation);
    }
    assert_eq!((scene.file.stamp(), scene.done()), (stamp, vec!["added".to_owned()]));
    assert_eq!(scene.file.text(), scene.with);
}

#[test]
fn auto_takes_the_entry_out_when_an_outage_outlives_the_hold() {
    let scene = Scene::new(CURSOR, &["--hold", "1s"]);
    scene.close_gate();
    scene.kill();
    scene.file.once(&scene.before);
    let ended = scene.env.events_called("time", "ended").pop().unwrap();
    let removed = scene.once_done("removed");
    assert!(between(&ended, &removed) >= SignedDuration::from_secs(1), "{removed}");
    assert!(removed["detail"].as_str().unwrap().contains("longer than 1 s"), "{removed}");
    scene.open_gate();
    scene.env.once_running("time", 2);
    scene.file.once(&scene.with);
    let added = scene.once_done("added");
    assert!(between(&removed, &added) >= SignedDuration::from_secs(2), "{added}");
}

#[test]
fn a_server_that_is_given_up_is_taken_out_and_a_restart_brings_it_back() {
    for sort in [CURSOR, VSCODE, CLINE] {
        let scene = Scene::new(sort, &["--restart-max", "1", "--hold", "10m"]);
        scene.kill();
        scene.env.once_running("time", 2);
        assert_eq!(scene.file.text(), scene.with);
        scene.kill();
        scene.file.once(&scene.before);
        let removed = scene.once_done("removed");
        assert!(removed["detail"].as_str().unwrap().contains("failed"), "{removed}");
        assert_eq!(scene.env.server("time")["status"], "error");
        scene.env.ok(["restart", "time"]);
        scene.file.once(&scene.with);
    }
}

#[test]
fn never_leaves_the_entry_alone_whatever_comes() {
    let scene = Scene::new(CURSOR, &["--refresh", "never", "--hold", "0s", "--restart-max", "1"]);
    let stamp = scene.file.stamp();
    scene.close_gate();
    scene.kill();
    scene.env.once("time", "was down", |server| server["generation"] == 2);
    scene.open_gate();
    scene.env.once_running("time", 2);
    scene.kill();
    scene.env.once("time", "gave up", |server| server["status"] == "error");
    scene.env.ok(["restart", "time"]);
    scene.env.once_running("time", 3);
    assert_eq!((scene.file.stamp(), scene.done()), (stamp, vec!["added".to_owned()]));
    scene.env.ok(["rm", "time"]);
    assert_eq!(scene.file.text(), scene.before);
}

#[test]
fn a_server_that_its_user_stops_keeps_its_entry() {
    let scene = Scene::new(CURSOR, &["--refresh", "auto"]);
    let stamp = scene.file.stamp();
    scene.env.ok(["stop", "time"]);
    scene.env.ok(["start", "time"]);
    scene.env.once_running("time", 2);
    assert_eq!((scene.file.stamp(), scene.done()), (stamp, vec!["added".to_owned()]));
}

#[test]
fn what_a_dead_daemon_took_out_is_added_by_the_next() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    scene.close_gate();
    scene.kill();
    scene.file.once(&scene.before);
    scene.env.kill_mainstay();
    assert_eq!(scene.standing("cursor"), "away");
    scene.open_gate();
    scene.file.once(&scene.with);
}

#[test]
fn a_restart_of_the_daemon_touches_no_file() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    let stamp = scene.file.stamp();
    scene.env.kill_mainstay();
    scene.env.once_running("time", 1);
    assert_eq!(scene.standing("cursor"), "ours");
    scene.env.ok(["rm", "time"]);
    assert!(scene.file.stamp() != stamp, "a removal is a write");
    assert_eq!(
        (scene.done(), scene.file.text()),
        (vec!["added".into(), "removed".into()], scene.before.clone())
    );
}

#[test]
fn a_file_that_we_made_goes_with_the_last_entry() {
    let scene = Scene::new(CURSOR, &[]);
    scene.env.ok(["rm", "time"]);
    fs::remove_file(&scene.file.path).unwrap();
    run_gated(&scene.env, "time", &[]);
    assert_eq!(scene.file.json()["mcpServers"].as_object().unwrap().len(), 1);
    scene.env.ok(["rm", "time"]);
    assert!(!scene.file.path.exists());
    assert!(scene.file.path.parent().unwrap().exists(), "the client's directory is the client's");
}

#[test]
fn the_first_run_of_a_server_with_a_used_name_is_no_restart() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    scene.env.ok(["rm", "time"]);
    run_gated(&scene.env, "time", &["--refresh", "always"]);
    assert_eq!(scene.done(), ["added", "removed", "added"]);
    assert!(scene.file.text().contains("/time/mcp"));
}
