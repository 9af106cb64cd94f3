//! People who edit the same files.

use std::fs;
use std::os::unix::fs::symlink;

use super::scene::{CURSOR, ClientFile, Scene, done, listed};
use crate::env::{TestEnv, fixture, until};

#[test]
fn an_entry_that_its_user_took_out_stays_out_until_asked_for() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    // What vanishes right after it was added was overwritten by a client, and is added again.
    until("it is taken for the user's wish", || {
        if scene.file.text() != scene.before {
            scene.file.write(&scene.before);
        }
        (scene.standing("cursor") == "withdrawn").then_some(())
    });
    let stamp = scene.file.stamp();
    scene.kill();
    scene.env.once_running("time", 2);
    scene.once_done("left");
    assert_eq!((scene.file.stamp(), scene.standing("cursor")), (stamp, "withdrawn".to_owned()));
    scene.env.ok(["client", "add", "cursor"]);
    let url = scene.env.server("time")["url"].clone();
    assert_eq!(scene.file.json()["mcpServers"]["time"]["url"], url);
}

#[test]
fn an_entry_that_its_user_pointed_elsewhere_stays_so() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    let url = scene.env.server("time")["url"].as_str().unwrap().to_owned();
    let elsewhere = scene.with.replace(&url, "http://127.0.0.1:9/elsewhere");
    scene.file.write(&elsewhere);
    scene.kill();
    scene.env.once_running("time", 2);
    scene.once_done("left");
    assert_eq!(
        (scene.file.text(), scene.standing("cursor")),
        (elsewhere.clone(), "drifted".to_owned())
    );
    scene.env.ok(["rm", "time"]);
    assert_eq!(scene.file.text(), elsewhere);
}

#[test]
fn an_entry_of_the_same_name_is_left_alone_and_told() {
    let env = TestEnv::new();
    let file = ClientFile::install(&env, CURSOR);
    env.ok(["client", "add", "cursor"]);
    let output = env.run(["run", "other", "--wait", "--", &fixture()]);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stderr.contains("not ours"), "{output}");
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
fn what_a_user_changes_while_the_entry_is_out_stays_changed() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    scene.close_gate();
    scene.kill();
    scene.file.once(&scene.before);
    let changed = |text: &str| text.replace("my-server", "my-newer-server");
    scene.file.write(&changed(&scene.before));
    scene.open_gate();
    scene.once_done("added");
    assert_eq!(scene.file.text(), changed(&scene.with));
}

#[test]
fn a_second_mainstay_of_the_same_user_leaves_the_entries_of_the_first_alone() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    let home = scene.env.root().join("home");
    let other = TestEnv::new().with_var("HOME", home.to_str().unwrap());
    other.ok(["client", "add", "cursor"]);
    let output = other.run(["run", "time", "--refresh", "always", "--wait", "--", &fixture()]);
    assert!(output.code == 0 && output.stderr.contains("not ours"), "{output}");
    other.ok(["rm", "time"]);
    other.ok(["client", "remove", "cursor"]);
    assert_eq!(scene.file.text(), scene.with);
    assert_eq!(scene.standing("cursor"), "ours");
}

#[test]
fn a_file_that_is_a_link_stays_one() {
    let scene = Scene::new(CURSOR, &["--refresh", "always"]);
    let target = scene.env.work().join("dotfiles.json");
    fs::rename(&scene.file.path, &target).unwrap();
    symlink(&target, &scene.file.path).unwrap();
    scene.close_gate();
    scene.kill();
    scene.file.once(&scene.before);
    scene.open_gate();
    scene.file.once(&scene.with);
    assert_eq!(fs::read_link(&scene.file.path).unwrap(), target);
}
