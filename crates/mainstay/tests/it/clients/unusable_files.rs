//! Files that cannot be edited, or not yet.

use std::fs;

use super::setup::{CLINE, CURSOR, ClientFile, Setup, listed};
use crate::env::{TestEnv, fixture, until};

/// A comma is missing at the end of the third line.
const BROKEN: &str = "{\n  \"mcpServers\": {\n    \"other\": {}\n    \"more\": {}\n  }\n}\n";

#[test]
fn an_invalid_file_is_reported_with_its_position_and_not_changed() {
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
fn an_entry_is_removed_once_a_broken_file_is_repaired() {
    let setup = Setup::new(CURSOR, &[]);
    setup.file.write(BROKEN);
    let output = setup.env.run(["rm", "time"]);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stderr.contains("line 3, column 16"), "{output}");
    assert_eq!(setup.file.text(), BROKEN);
    setup.file.write(&setup.with);
    setup.env.ok(["client", "remove", "cursor"]);
    assert_eq!(setup.file.text(), setup.before);
}

#[test]
fn edits_wait_for_the_lock_of_cline() {
    let setup = Setup::new(CLINE, &["--refresh", "always"]);
    let lock = setup.file.path.with_extension("json.lock");
    fs::create_dir(&lock).unwrap();
    fs::write(lock.join("owner.1.1.a-b"), "").unwrap();
    setup.close_gate();
    setup.kill();
    setup.env.once("time", "was down", |server| server["generation"] == 2);
    assert_eq!(setup.file.text(), setup.with);
    fs::remove_dir_all(&lock).unwrap();
    setup.file.once(&setup.before);
    setup.open_gate();
    setup.file.once(&setup.with);
    until("the lock is given back", || (!lock.exists()).then_some(()));
}
