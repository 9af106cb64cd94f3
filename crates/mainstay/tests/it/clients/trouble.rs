//! Files that cannot be edited, or not yet.

use std::fs;

use super::scene::{CLINE, CURSOR, ClientFile, Scene, listed};
use crate::env::{TestEnv, fixture, until};

/// A comma is missing at the end of the third line.
const BROKEN: &str = "{\n  \"mcpServers\": {\n    \"other\": {}\n    \"more\": {}\n  }\n}\n";

#[test]
fn a_file_that_cannot_be_read_is_told_with_the_place_and_left_alone() {
    let env = TestEnv::new();
    let file = ClientFile::install(&env, CURSOR);
    env.ok(["client", "add", "cursor"]);
    file.write(BROKEN);
    let stamp = file.stamp();
    let output = env.run(["run", "time", "--wait", "--", &fixture()]);
    assert_eq!(output.code, 0, "{output}");
    for part in ["~/.cursor/mcp.json", "line 3, column 16"] {
        assert!(output.stderr.contains(part), "{part} is missing in {output}");
    }
    let client = listed(&env, "cursor");
    assert!(client["problem"].as_str().unwrap().contains("line 3, column 16"), "{client}");
    assert_eq!((file.stamp(), file.text()), (stamp, BROKEN.to_owned()));
    let failed = env.run(["client", "add", "cursor"]);
    assert_eq!(failed.code, 1, "{failed}");

    file.write(CURSOR.text);
    env.ok(["client", "add", "cursor"]);
    assert_eq!(file.json()["mcpServers"]["time"]["url"], env.server("time")["url"]);
}

#[test]
fn an_entry_cannot_be_taken_out_of_a_broken_file_and_goes_when_it_is_repaired() {
    let scene = Scene::new(CURSOR, &[]);
    scene.file.write(BROKEN);
    let output = scene.env.run(["rm", "time"]);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stderr.contains("line 3, column 16"), "{output}");
    assert_eq!(scene.file.text(), BROKEN);
    scene.file.write(&scene.with);
    scene.env.ok(["client", "remove", "cursor"]);
    assert_eq!(scene.file.text(), scene.before);
}

#[test]
fn cline_is_waited_for_while_it_holds_its_lock() {
    let scene = Scene::new(CLINE, &["--refresh", "always"]);
    let lock = scene.file.path.with_extension("json.lock");
    fs::create_dir(&lock).unwrap();
    fs::write(lock.join("owner.1.1.a-b"), "").unwrap();
    scene.close_gate();
    scene.kill();
    scene.env.once("time", "was down", |server| server["generation"] == 2);
    assert_eq!(scene.file.text(), scene.with);
    fs::remove_dir_all(&lock).unwrap();
    scene.file.once(&scene.before);
    scene.open_gate();
    scene.file.once(&scene.with);
    until("the lock is given back", || (!lock.exists()).then_some(()));
}
