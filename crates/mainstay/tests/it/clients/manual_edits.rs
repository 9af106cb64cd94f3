//! Users and clients that edit the same files.

use std::fs;
use std::os::unix::fs::symlink;

use super::setup::{CURSOR, ClientFile, Setup, done, listed};
use crate::env::{TestEnv, fixture, until};

#[test]
fn an_entry_removed_by_the_user_stays_removed_until_requested() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    // What vanishes right after it was added was overwritten by a client, and is added again.
    until("it is taken for the user's wish", || {
        if setup.file.text() != setup.before {
            setup.file.write(&setup.before);
        }
        (setup.standing("cursor") == "withdrawn").then_some(())
    });
    let stamp = setup.file.stamp();
    setup.kill();
    setup.env.once_running("time", 2);
    setup.once_done("left");
    assert_eq!((setup.file.stamp(), setup.standing("cursor")), (stamp, "withdrawn".to_owned()));
    setup.env.ok(["client", "add", "cursor"]);
    let url = setup.env.server("time")["url"].clone();
    assert_eq!(setup.file.json()["mcpServers"]["time"]["url"], url);
}

#[test]
fn an_entry_changed_by_the_user_is_kept() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    let url = setup.env.server("time")["url"].as_str().unwrap().to_owned();
    let elsewhere = setup.with.replace(&url, "http://127.0.0.1:9/elsewhere");
    setup.file.write(&elsewhere);
    setup.kill();
    setup.env.once_running("time", 2);
    setup.once_done("left");
    assert_eq!(
        (setup.file.text(), setup.standing("cursor")),
        (elsewhere.clone(), "drifted".to_owned())
    );
    setup.env.ok(["rm", "time"]);
    assert_eq!(setup.file.text(), elsewhere);
}

#[test]
fn a_foreign_entry_of_the_same_name_is_kept_and_reported() {
    let env = TestEnv::new();
    let file = ClientFile::install(&env, CURSOR);
    env.ok(["client", "add", "cursor"]);
    let output = env.run(["run", "other", "--wait", "--", &fixture()]);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stderr.contains("Mainstay did not write this entry"), "{output}");
    assert!(output.stderr.contains("~/.cursor/mcp.json"), "{output}");
    assert_eq!(done(&env, "other"), ["left"]);
    let entries = listed(&env, "cursor")["entries"].clone();
    assert!(
        entries.as_array().unwrap().iter().all(|entry| entry["standing"] == "foreign"),
        "{entries}"
    );
    env.ok(["client", "add", "cursor"]);
    env.ok(["rm", "other"]);
    assert_eq!(file.text(), CURSOR.text);
}

#[test]
fn changes_by_the_user_without_the_entry_are_kept() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    setup.close_gate();
    setup.kill();
    setup.file.once(&setup.before);
    let changed = |text: &str| text.replace("my-server", "my-newer-server");
    setup.file.write(&changed(&setup.before));
    setup.open_gate();
    setup.once_done("added");
    assert_eq!(setup.file.text(), changed(&setup.with));
}

#[test]
fn a_second_instance_keeps_the_entries_of_the_first() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    let home = setup.env.root().join("home");
    let other = TestEnv::new().with_var("HOME", home.to_str().unwrap());
    other.ok(["client", "add", "cursor"]);
    let output = other.run(["run", "time", "--refresh", "always", "--wait", "--", &fixture()]);
    assert!(
        output.code == 0 && output.stderr.contains("Mainstay did not write this entry"),
        "{output}"
    );
    other.ok(["rm", "time"]);
    other.ok(["client", "remove", "cursor"]);
    assert_eq!(setup.file.text(), setup.with);
    assert_eq!(setup.standing("cursor"), "ours");
}

#[test]
fn a_file_that_is_a_link_stays_one() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    let target = setup.env.work().join("dotfiles.json");
    fs::rename(&setup.file.path, &target).unwrap();
    symlink(&target, &setup.file.path).unwrap();
    setup.close_gate();
    setup.kill();
    setup.file.once(&setup.before);
    setup.open_gate();
    setup.file.once(&setup.with);
    assert_eq!(fs::read_link(&setup.file.path).unwrap(), target);
}
