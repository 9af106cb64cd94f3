//! `mainstay update`: another version takes over, or nothing has happened.

mod from_0_1_0;
pub(crate) mod scene;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use self::scene::{Flaw, NEW, OLD, Scene, built};
use crate::env::{fixture, kill, pid_of, until};
use crate::proxy::raw::Raw;

#[test]
fn another_version_takes_over_and_nobody_notices() {
    let scene = Scene::running();
    let (server, daemon) = (scene.env.server("fx"), scene.daemon());
    let session = Raw::open(server["url"].as_str().unwrap());
    assert_eq!(count(&session, 1), "1");
    let old = fs::metadata(&scene.program).unwrap();

    assert_snapshot!(scene.update(&scene.newer()), @"
    exit: 0
    --- stderr
    version 9.9.9 can read the state of this instance
    updated from 0.1.0 to 9.9.9; the old program is kept as `[ROOT]/some where/mainstay.previous`
    if the new daemon dies within 30 s, the update is rolled back
    running `mainstay connect` processes stay at the old version until their clients restart them
    ");

    assert_eq!(count(&session, 2), "2", "the session and the server's memory are kept");
    assert_eq!(scene.env.server("fx")["pid"], server["pid"]);
    let now = scene.daemon();
    assert_eq!((&now["version"], &now["holder"]), (&json!(NEW), &daemon["holder"]));
    assert_eq!(now["listen"], daemon["listen"]);
    assert_eq!(scene.ok(&["--version"]), format!("mainstay {NEW}\n"));
    let new = fs::metadata(&scene.program).unwrap();
    assert_eq!((new.mode(), new.uid()), (old.mode(), old.uid()));
    assert_eq!(fs::metadata(scene.previous()).unwrap().ino(), old.ino());
    assert_eq!(scene.files().len(), 2, "{:?}", scene.files());
    assert!(!scene.has_rehearsal());

    assert_eq!(scene.update(&scene.previous()).code, 0, "and back again");
    scene.until_holder_runs(&scene.program);
    assert_eq!(scene.daemon()["holder"], daemon["holder"]);
    assert_eq!(scene.daemon()["version"], OLD);
    assert_eq!(count(&session, 3), "3");
    assert_eq!(scene.env.server("fx")["pid"], server["pid"]);
}

#[test]
fn a_version_whose_daemon_dies_soon_is_undone_and_keeps_what_was_changed() {
    let scene = Scene::running();
    let (server, daemon) = (scene.env.server("fx"), scene.daemon());
    let session = Raw::open(server["url"].as_str().unwrap());
    let old = fs::metadata(&scene.program).unwrap();
    assert_eq!(scene.update(&scene.newer()).code, 0);
    let new = scene.daemon();
    assert_eq!(new["version"], NEW);
    scene.ok(&["run", "more", "--wait", "--json", "--", &fixture()]);
    scene.ok(&["stop", "more"]);

    kill(pid_of(&new), Signal::KILL);
    let back = until("the old version is back", || {
        Some(scene.daemon()).filter(|daemon| daemon["version"] == OLD)
    });
    assert_eq!(back["holder"], daemon["holder"]);
    assert_eq!(fs::metadata(&scene.program).unwrap().ino(), old.ino(), "the very file");
    assert_eq!(scene.files().len(), 1, "{:?}", scene.files());
    assert_eq!(scene.env.server("more")["status"], "stopped");
    assert_eq!(count(&session, 1), "1");
    assert_eq!(scene.env.server("fx")["pid"], server["pid"]);
    scene.env.once_logged("the last reload or update was rolled back", 1);
    let status = scene.ok(&["daemon", "status"]);
    assert!(status.contains("last update:  undone: it was killed by signal 9"), "{status}");
}

#[test]
fn without_a_daemon_only_the_program_is_replaced() {
    let scene = Scene::new();
    let link = scene.env.root().join("link");
    symlink(&scene.program, &link).unwrap();
    let from = scene.newer();
    let update = scene.command(&link, &["update", "--from", from.to_str().unwrap()]);
    assert_snapshot!(scene.env.run_prepared(update), @"
    exit: 0
    --- stderr
    version 9.9.9 can read the state of this instance
    updated from 0.1.0 to 9.9.9; the old program is kept as `[ROOT]/some where/mainstay.previous`
    no daemon is running; the next command starts the new version
    ");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    scene.ok(&["ls"]);
    assert_eq!(scene.daemon()["version"], NEW);
}

#[test]
fn the_same_file_is_installed_already() {
    let scene = Scene::running();
    let daemon = scene.daemon();
    assert_snapshot!(scene.update(Path::new(built())), @"
    exit: 0
    --- stderr
    version 0.1.0 is already installed (the same file)
    ");
    assert_eq!(scene.daemon(), daemon);
    assert_eq!(scene.files().len(), 1);
}

#[test]
fn another_build_of_the_same_version_is_told_as_such() {
    let scene = Scene::running();
    let daemon = scene.daemon();
    let mut bytes = fs::read(built()).unwrap();
    bytes.push(0);
    assert_snapshot!(scene.update(&scene.file("build", &bytes)), @"
    exit: 0
    --- stderr
    version 0.1.0 can read the state of this instance
    updated to another build of 0.1.0; the old program is kept as `[ROOT]/some where/mainstay.previous`
    if the new daemon dies within 30 s, the update is rolled back
    running `mainstay connect` processes stay at the old version until their clients restart them
    ");
    assert_ne!(scene.daemon()["pid"], daemon["pid"]);
}

#[test]
fn what_cannot_be_updated_to_is_refused_without_a_trace() {
    let scene = Scene::running();
    let daemon = scene.daemon();
    let whole = fs::read(built()).unwrap();
    let cut = scene.file("cut", &whole[..whole.len() / 4]);
    let mut other = whole;
    // Where ELF says which processor a program is for: x86-64 or arm64.
    other[18] = if other[18] == 62 { 183 } else { 62 };
    let other = scene.file("other", &other);

    let told = scene.refused(&cut);
    assert!(told.contains("/cut` is not Mainstay: its answer to `--version` is "), "{told}");
    let told = scene.refused(&other);
    assert!(told.contains("/other` is not a program for this system and processor"), "{told}");
    let told = scene.refused(Path::new("/bin/true"));
    assert!(told.contains("`/bin/true` is not Mainstay: its answer to `--version`"), "{told}");
    let script = scene.file("script", b"#!/bin/sh\n");
    assert!(scene.refused(&script).contains("/script` is not a program for this system"));
    assert!(scene.refused(Path::new("none")).contains("project/none` cannot be read"));
    assert!(scene.refused(Path::new(".")).contains("is not a regular file"));
    assert!(!scene.has_rehearsal());
    assert_eq!(scene.daemon(), daemon);
}

#[test]
fn a_version_that_is_too_old_for_the_state_is_refused() {
    let scene = Scene::running();
    scene.ok(&["daemon", "stop"]);
    // Where SQLite keeps the number that says which schema the file has.
    let state = File::options().write(true).open(scene.env.mainstay_home().join("state/state.db"));
    state.unwrap().write_all_at(&99u32.to_be_bytes(), 60).unwrap();
    let told = scene.refused(&scene.newer());
    let expected = "error: version 9.9.9 cannot read the state of this instance: the database \
                    `[ROOT]/mainstay/state/state.db` has schema 99, this version of Mainstay knows";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn there_is_one_update_at_a_time() {
    let scene = Scene::running();
    let newer = scene.newer();
    let lock = File::create(scene.env.mainstay_home().join("state/update.lock")).unwrap();
    lock.lock().unwrap();
    assert!(scene.refused(&newer).starts_with("error: another update is running\n"));
    drop(lock);
    assert_eq!(scene.update(&newer).code, 0);
}

#[test]
fn the_program_of_another_daemon_is_left_alone() {
    let scene = Scene::new();
    scene.env.ok(["ls"]);
    let expected =
        format!("error: the daemon runs `{}`, but this program is `[ROOT]/some where/", built());
    for from in [&scene.newer(), Path::new(built())] {
        let told = scene.refused(from);
        assert!(told.starts_with(&expected), "{told}");
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let scene = Scene::running();
    fs::create_dir(scene.program.with_file_name("mainstay.new")).unwrap();
    let told = scene.refused(&scene.newer());
    assert!(told.contains("mainstay.new` cannot be written"), "{told}");
    assert!(told.contains("then run `mainstay daemon reload`"), "{told}");
}

#[test]
fn a_version_that_does_not_come_up_is_undone_every_time() {
    let scene = Scene::running();
    let server = scene.env.server("fx");
    let session = Raw::open(server["url"].as_str().unwrap());
    let flawed = Flaw::ALL.map(|flaw| (flaw, scene.flawed(flaw)));
    let old = fs::metadata(&scene.program).unwrap();
    let holder = scene.daemon()["holder"].clone();
    for (n, (flaw, program)) in (1..=rounds()).zip(flawed.iter().cycle()) {
        let output = scene.update(program);
        assert_eq!(output.code, 1, "{output}");
        let why = match flaw {
            Flaw::NeverPrepared => "unexpected argument '--held' found",
            Flaw::NeverReady => "the socket `[ROOT]/mainstay/run/no/dir.sock` cannot be opened",
        };
        assert!(output.stderr.contains(why), "{flaw:?}: {output}");
        assert!(output.stderr.contains("help: version 0.1.0 is restored and running"), "{output}");
        assert!(!output.stderr.contains("{\"kind\""), "{output}");

        let daemon = scene.daemon();
        assert_eq!((&daemon["version"], &daemon["holder"]), (&json!(OLD), &holder));
        assert!(output.stderr.contains(&format!("(pid {})", pid_of(&daemon))), "{output}");
        assert_eq!(fs::metadata(&scene.program).unwrap().ino(), old.ino(), "the very file");
        assert_eq!(scene.files().len(), 1, "{:?}", scene.files());
        assert_eq!(count(&session, n), n.to_string());
        assert_eq!(scene.env.server("fx")["pid"], server["pid"]);
    }
    assert_eq!(scene.update(&scene.newer()).code, 0, "a good one still can");
    assert_eq!(count(&session, rounds() + 1), (rounds() + 1).to_string());
}

/// How many updates fail in a row: `MAINSTAY_UPDATES`, or a few.
#[expect(clippy::disallowed_methods, reason = "only whoever starts the tests knows how many")]
fn rounds() -> u64 {
    std::env::var("MAINSTAY_UPDATES").map_or(5, |rounds| rounds.parse().unwrap())
}

/// Has the server count on in a session.
fn count(session: &Raw, id: u64) -> String {
    let result: Value = session.ask(id, "tools/call", &json!({"name": "count", "arguments": {}}));
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}
