//! Disks and files that do not answer block only what needs them.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture};

/// Commands that need nothing of what is stalled may take no longer.
const LIMIT: Duration = Duration::from_secs(2);

/// Runs a command that must succeed in time.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "how long the command took is what is tested")]
fn in_time(env: &TestEnv, args: &[&str]) {
    let begun = Instant::now();
    env.ok(args);
    let took = begun.elapsed();
    assert!(took < LIMIT, "{args:?} took {took:?}");
}

/// Locks a database for all other writers, like a hung backup.
fn locked(env: &TestEnv, name: &str) -> Connection {
    let database = Connection::open(env.mainstay_home().join("state").join(name)).unwrap();
    database.execute_batch("BEGIN EXCLUSIVE").unwrap();
    database
}

fn in_background(env: &TestEnv, args: &[&str]) -> Child {
    let mut command = env.command(args);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_stalled_database_blocks_only_what_needs_it() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    env.run_server("other", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    for name in ["sessions.db", "events.db"] {
        bystander.during(format!("{name} is locked"), || {
            let lock = locked(&env, name);
            // A new session and a death have to be written there.
            Bystander::of(&env, "fx").is_served();
            env.ok(["restart", "other"]);
            in_time(&env, &["ls"]);
            drop(lock);
        });
    }
    let mut changes = bystander.during("state.db is locked", || {
        let lock = locked(&env, "state.db");
        // More changes than there were threads for everything once.
        let changes: Vec<_> = (0..6).map(|_| in_background(&env, &["stop", "other"])).collect();
        for _ in 0..3 {
            Bystander::of(&env, "fx").is_served();
        }
        in_time(&env, &["ls"]);
        in_time(&env, &["client", "ls"]);
        in_time(&env, &["events", "--tail", "1"]);
        drop(lock);
        changes
    });
    let done = changes.iter_mut().map(|change| change.wait().unwrap().success());
    assert!(done.filter(|done| *done).count() > 0, "the first gets through");
    env.once("other", "stopped", |server| server["status"] == "stopped");
}

#[test]
fn a_pipe_in_place_of_a_file_blocks_nothing() {
    let env = TestEnv::new();
    let cursor = env.root().join("home/.cursor/mcp.json");
    fs::create_dir_all(cursor.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&cursor).status().unwrap();
    assert!(made.success());
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let refused = bystander.during("`client add` of a pipe in place of a file", || {
        let refused = env.run(["client", "add", "cursor"]);
        in_time(&env, &["client", "ls"]);
        refused
    });
    assert_eq!(refused.code, 1, "{refused}");
    bystander.during("`reload` with a pipe in place of a file", || env.ok(["daemon", "reload"]));
}
