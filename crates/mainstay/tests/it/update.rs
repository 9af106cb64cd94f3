//! `mainstay update`: another version takes over, or nothing changes.

mod from_0_1_0;
pub(crate) mod setup;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use self::setup::{Flaw, NEW, OLD, Setup, built};
use crate::env::{fixture, kill, pid_of, until};
use crate::proxy::raw::Raw;

#[test]
fn another_version_takes_over_without_interruption() {
    let setup = Setup::running();
    let (server, daemon) = (setup.env.server("fx"), setup.daemon());
    let session = Raw::open(server["url"].as_str().unwrap());
    assert_eq!(count(&session, 1), "1");
    let old = fs::metadata(&setup.program).unwrap();

    assert_snapshot!(setup.update(&setup.newer()), @"
    exit: 0
    --- stderr
    version 9.9.9 can read the state of this instance
    updated from 0.1.0 to 9.9.9; the old program is kept as `[ROOT]/some where/mainstay.previous`
    if the new daemon dies within 30 s, the update is rolled back
    running `mainstay connect` processes stay at the old version until their clients restart them
    ");

    assert_eq!(count(&session, 2), "2", "the session and the server's memory are kept");
    assert_eq!(setup.env.server("fx")["pid"], server["pid"]);
    let now = setup.daemon();
    assert_eq!((&now["version"], &now["holder"]), (&json!(NEW), &daemon["holder"]));
    assert_eq!(now["listen"], daemon["listen"]);
    assert_eq!(setup.ok(&["--version"]), format!("mainstay {NEW}\n"));
    let new = fs::metadata(&setup.program).unwrap();
    assert_eq!((new.mode(), new.uid()), (old.mode(), old.uid()));
    assert_eq!(fs::metadata(setup.previous()).unwrap().ino(), old.ino());
    assert_eq!(setup.files().len(), 2, "{:?}", setup.files());
    assert!(!setup.has_rehearsal());

    assert_eq!(setup.update(&setup.previous()).code, 0, "and back again");
    setup.until_holder_runs(&setup.program);
    assert_eq!(setup.daemon()["holder"], daemon["holder"]);
    assert_eq!(setup.daemon()["version"], OLD);
    assert_eq!(count(&session, 3), "3");
    assert_eq!(setup.env.server("fx")["pid"], server["pid"]);
}

#[test]
fn a_version_whose_daemon_dies_soon_is_rolled_back_without_losing_changes() {
    let setup = Setup::running();
    let (server, daemon) = (setup.env.server("fx"), setup.daemon());
    let session = Raw::open(server["url"].as_str().unwrap());
    let old = fs::metadata(&setup.program).unwrap();
    assert_eq!(setup.update(&setup.newer()).code, 0);
    let new = setup.daemon();
    assert_eq!(new["version"], NEW);
    setup.ok(&["run", "more", "--wait", "--json", "--", &fixture()]);
    setup.ok(&["stop", "more"]);

    kill(pid_of(&new), Signal::KILL);
    let back = until("the old version is back", || {
        Some(setup.daemon()).filter(|daemon| daemon["version"] == OLD)
    });
    assert_eq!(back["holder"], daemon["holder"]);
    assert_eq!(fs::metadata(&setup.program).unwrap().ino(), old.ino(), "the very file");
    assert_eq!(setup.files().len(), 1, "{:?}", setup.files());
    assert_eq!(setup.env.server("more")["status"], "stopped");
    assert_eq!(count(&session, 1), "1");
    assert_eq!(setup.env.server("fx")["pid"], server["pid"]);
    setup.env.once_logged("the last reload or update was rolled back", 1);
    let status = setup.ok(&["daemon", "status"]);
    assert!(status.contains("last update:  rolled back: it was killed by signal 9"), "{status}");
}

#[test]
fn without_a_daemon_only_the_program_is_replaced() {
    let setup = Setup::new();
    let link = setup.env.root().join("link");
    symlink(&setup.program, &link).unwrap();
    let from = setup.newer();
    let update = setup.command(&link, &["update", "--from", from.to_str().unwrap()]);
    assert_snapshot!(setup.env.run_prepared(update), @"
    exit: 0
    --- stderr
    version 9.9.9 can read the state of this instance
    updated from 0.1.0 to 9.9.9; the old program is kept as `[ROOT]/some where/mainstay.previous`
    no daemon is running; the next command starts the new version
    ");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    setup.ok(&["ls"]);
    assert_eq!(setup.daemon()["version"], NEW);
}

#[test]
fn the_same_file_is_installed_already() {
    let setup = Setup::running();
    let daemon = setup.daemon();
    assert_snapshot!(setup.update(Path::new(built())), @"
    exit: 0
    --- stderr
    version 0.1.0 is already installed (the same file)
    ");
    assert_eq!(setup.daemon(), daemon);
    assert_eq!(setup.files().len(), 1);
}

#[test]
fn another_build_of_the_same_version_is_reported_as_such() {
    let setup = Setup::running();
    let daemon = setup.daemon();
    let mut bytes = fs::read(built()).unwrap();
    bytes.push(0);
    assert_snapshot!(setup.update(&setup.file("build", &bytes)), @"
    exit: 0
    --- stderr
    version 0.1.0 can read the state of this instance
    updated to another build of 0.1.0; the old program is kept as `[ROOT]/some where/mainstay.previous`
    if the new daemon dies within 30 s, the update is rolled back
    running `mainstay connect` processes stay at the old version until their clients restart them
    ");
    assert_ne!(setup.daemon()["pid"], daemon["pid"]);
}

#[test]
fn unusable_files_are_refused_without_changes() {
    let setup = Setup::running();
    let daemon = setup.daemon();
    let whole = fs::read(built()).unwrap();
    let cut = setup.file("cut", &whole[..whole.len() / 4]);
    let mut other = whole;
    // Where ELF says which processor a program is for: x86-64 or arm64.
    other[18] = if other[18] == 62 { 183 } else { 62 };
    let other = setup.file("other", &other);

    let reported = setup.refused(&cut);
    assert!(
        reported.contains("/cut` is not Mainstay: its answer to `--version` is "),
        "{reported}"
    );
    let reported = setup.refused(&other);
    assert!(
        reported.contains("/other` is not a program for this system and processor"),
        "{reported}"
    );
    let reported = setup.refused(Path::new("/bin/true"));
    assert!(
        reported.contains("`/bin/true` is not Mainstay: its answer to `--version`"),
        "{reported}"
    );
    let script = setup.file("script", b"#!/bin/sh\n");
    assert!(setup.refused(&script).contains("/script` is not a program for this system"));
    assert!(setup.refused(Path::new("none")).contains("project/none` cannot be read"));
    assert!(setup.refused(Path::new(".")).contains("is not a regular file"));
    assert!(!setup.has_rehearsal());
    assert_eq!(setup.daemon(), daemon);
}

#[test]
fn a_version_that_is_too_old_for_the_state_is_refused() {
    let setup = Setup::running();
    setup.ok(&["daemon", "stop"]);
    // Where SQLite keeps the number that says which schema the file has.
    let state = File::options().write(true).open(setup.env.mainstay_home().join("state/state.db"));
    state.unwrap().write_all_at(&99u32.to_be_bytes(), 60).unwrap();
    let reported = setup.refused(&setup.newer());
    let expected = "error: version 9.9.9 cannot read the state of this instance: the database \
                    `[ROOT]/mainstay/state/state.db` has schema 99, this version of Mainstay knows";
    assert!(reported.contains(expected), "{reported}");
}

#[test]
fn there_is_one_update_at_a_time() {
    let setup = Setup::running();
    let newer = setup.newer();
    let lock = File::create(setup.env.mainstay_home().join("state/update.lock")).unwrap();
    lock.lock().unwrap();
    assert!(setup.refused(&newer).starts_with("error: another update is running\n"));
    drop(lock);
    assert_eq!(setup.update(&newer).code, 0);
}

#[test]
fn the_program_of_another_daemon_is_left_alone() {
    let setup = Setup::new();
    setup.env.ok(["ls"]);
    let expected =
        format!("error: the daemon runs `{}`, but this program is `[ROOT]/some where/", built());
    for from in [&setup.newer(), Path::new(built())] {
        let reported = setup.refused(from);
        assert!(reported.starts_with(&expected), "{reported}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let setup = Setup::running();
    fs::create_dir(setup.program.with_file_name("mainstay.new")).unwrap();
    let reported = setup.refused(&setup.newer());
    assert!(reported.contains("mainstay.new` cannot be written"), "{reported}");
    assert!(reported.contains("then run `mainstay daemon reload`"), "{reported}");
}

#[test]
fn a_version_that_does_not_start_is_rolled_back_every_time() {
    let setup = Setup::running();
    let server = setup.env.server("fx");
    let session = Raw::open(server["url"].as_str().unwrap());
    let flawed = Flaw::ALL.map(|flaw| (flaw, setup.flawed(flaw)));
    let old = fs::metadata(&setup.program).unwrap();
    let holder = setup.daemon()["holder"].clone();
    for (n, (flaw, program)) in (1..=rounds()).zip(flawed.iter().cycle()) {
        let output = setup.update(program);
        assert_eq!(output.code, 1, "{output}");
        let why = match flaw {
            Flaw::NeverPrepared => "unexpected argument '--held' found",
            Flaw::NeverReady => "the socket `[ROOT]/mainstay/run/no/dir.sock` cannot be opened",
        };
        assert!(output.stderr.contains(why), "{flaw:?}: {output}");
        assert!(output.stderr.contains("help: version 0.1.0 is restored and running"), "{output}");
        assert!(!output.stderr.contains("{\"kind\""), "{output}");

        let daemon = setup.daemon();
        assert_eq!((&daemon["version"], &daemon["holder"]), (&json!(OLD), &holder));
        assert!(output.stderr.contains(&format!("(pid {})", pid_of(&daemon))), "{output}");
        assert_eq!(fs::metadata(&setup.program).unwrap().ino(), old.ino(), "the very file");
        assert_eq!(setup.files().len(), 1, "{:?}", setup.files());
        assert_eq!(count(&session, n), n.to_string());
        assert_eq!(setup.env.server("fx")["pid"], server["pid"]);
    }
    assert_eq!(setup.update(&setup.newer()).code, 0, "a good one still can");
    assert_eq!(count(&session, rounds() + 1), (rounds() + 1).to_string());
}

/// How many updates fail in a row: `MAINSTAY_UPDATES`, or a few.
#[expect(clippy::disallowed_methods, reason = "only the environment of the tests knows how many")]
fn rounds() -> u64 {
    std::env::var("MAINSTAY_UPDATES").map_or(5, |rounds| rounds.parse().unwrap())
}

/// Makes the server count in a session.
fn count(session: &Raw, id: u64) -> String {
    let result: Value = session.ask(id, "tools/call", &json!({"name": "count", "arguments": {}}));
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}
