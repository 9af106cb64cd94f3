//! Clients of an isolated server that connect and disconnect.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture, kill, patiently, until, until_dead};
use crate::proxy::raw::Raw;

/// The number of runs: those of sessions, and the shared one.
fn runs(env: &TestEnv) -> usize {
    let is_run = |pid: &u32| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("fixture-mcp"))
    };
    env.processes().iter().filter(|pid| is_run(pid)).count()
}

/// Waits until no more than 16 are left, and the shared one. Runs are checked twice a minute, which is longer
/// than one wait.
#[track_caller]
fn until_few_runs(env: &TestEnv) {
    let is_so = || (runs(env) <= 16 + 1).then_some(());
    let seen = patiently(is_so).or_else(|| patiently(is_so)).or_else(|| patiently(is_so));
    assert!(seen.is_some(), "{} runs are left", runs(env));
}

#[test]
fn clients_that_come_and_go_leave_few_runs_behind() {
    let env = TestEnv::new();
    let server = env.run_server("fx", &["--isolate"], &[&fixture()]);
    let url = server["url"].as_str().unwrap();
    let mut bystander = Bystander::of(&env, "fx");
    let pid = |session: &Raw, id| {
        let result = session.ask(id, "tools/call", &json!({"name": "pid", "arguments": {}}));
        result["content"][0]["text"].as_str().unwrap().parse::<u32>().unwrap()
    };
    let first = Raw::open(url);
    let before = pid(&first, 1);
    bystander.during("22 clients of an isolated server that open a session and leave", || {
        (0..22).for_each(|_| drop(Raw::open(url)));
        until_few_runs(&env);
        until_dead(before);
    });
    // Its session continues, with a run of its own.
    let after = bystander.during("a client whose isolated run was ended", || pid(&first, 2));
    assert_ne!(after, before);

    // The next daemon starts no run for clients that are not there.
    bystander.after("the daemon of an isolated server is killed", || {
        kill(env.daemon(), Signal::KILL);
    });
    until_few_runs(&env);
    let last = pid(&first, 3);
    assert_eq!(first.delete(), 204);
    bystander.is_served();
    // Nor does it keep the runs of sessions that have ended.
    env.ok(["daemon", "reload"]);
    until_dead(last);
    bystander.is_served();
}

#[test]
fn clients_that_open_and_end_sessions_leave_few_runs_behind() {
    let env = TestEnv::new();
    let server = env.run_server("fx", &["--isolate"], &[&fixture()]);
    let url = server["url"].as_str().unwrap();
    let mut bystander = Bystander::of(&env, "fx");
    for _ in 0..22 {
        let session = Raw::open(url);
        session.ask(1, "tools/call", &json!({"name": "pid", "arguments": {}}));
        assert_eq!(session.delete(), 204);
        bystander.is_served();
    }
    // The bystander may have a run of its own.
    until("few runs are left", || (runs(&env) <= 16 + 2).then_some(()));
    env.ok(["stop", "fx"]);
    until("no run is left", || (runs(&env) == 0).then_some(()));
}
