//! Calls that are never answered.

use std::fs;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::bystander::{Bystander, with_bystander};
use super::flood::{allow_many_descriptors, connections, resident, start_with_limit};
use crate::env::{TestEnv, fixture, kill, pid_of, until};
use crate::proxy::raw::{BOTH, JSON, Raw, call, parts};

/// How many requests of one session may wait for an answer.
const IN_SESSION: usize = 1024;

#[test]
fn hung_calls_of_one_session_affect_no_other() {
    allow_many_descriptors();
    let env = TestEnv::new();
    start_with_limit(&env, "-S -n 1024");
    env.run_server("fx", &[], &[&fixture()]);
    let executed = env.root().join("executed");
    let count = ["--count-file", executed.to_str().unwrap()];
    let server = env.run_server("slow", &[], &[&[&*fixture()], &count[..]].concat());
    let url = server["url"].as_str().unwrap();
    let (mut bystander, mut same_server) = (Bystander::of(&env, "fx"), Bystander::of(&env, "slow"));
    let attacker = Raw::open(url);
    let (address, path) = parts(url);
    let hung = call(1, "sleep", &json!({"ms": 600_000})).to_string();
    let text = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {JSON}\r\nAccept: {BOTH}\r\n\
         Mcp-Session-Id: {}\r\nContent-Length: {}\r\n\r\n{hung}",
        attacker.id,
        hung.len()
    );
    let calls = |tool: &str| {
        let executed = fs::read_to_string(&executed).unwrap_or_default();
        executed.lines().filter(|line| *line == tool).count()
    };
    let flood = bystander.during("1,024 calls that are never answered", || {
        let flood = connections(url, IN_SESSION, &text);
        until("all calls are made", || (calls("sleep") == IN_SESSION).then_some(()));
        same_server.is_served();
        flood
    });
    let refused = bystander.during("one call more than a session may have", || {
        let refused = attacker.post(BOTH, &call(2, "count", &json!({}))).answer();
        same_server.is_served();
        refused
    });
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("not sent to the server"), "{refused}");
    assert_eq!(calls("count"), 0);
    env.ok(["ls"]);
    // A call of another server that takes longer than an immediate answer.
    let other = Raw::open(env.server("fx")["url"].as_str().unwrap());
    let slept = other.post(BOTH, &call(3, "sleep", &json!({"ms": 400}))).answer();
    assert!(slept["result"].is_object(), "{slept}");
    bystander.during("1,024 callers leave", || drop(flood));
}

/// Together they are more than a shim keeps, and the server writes each answer before it reads on.
#[test]
fn large_calls_at_the_same_time_are_all_answered() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = with_bystander(&env);
    let session = Raw::open(env.server("fx")["url"].as_str().unwrap());
    let text = "x".repeat(3_900_000);
    let large = |id| {
        let answer = session.answered(&call(id, "echo", &json!({"text": text})));
        assert_eq!(answer["result"]["content"][0]["text"], text.as_str());
    };
    bystander.during("12 calls of 4 MB, and their answers", || {
        thread::scope(|scope| (1..=12).for_each(|id| drop(scope.spawn(move || large(id)))));
    });
}

/// What waits for a server that does not read is limited by its bytes, too.
#[test]
fn large_calls_to_a_server_that_does_not_read_use_bounded_memory() {
    const CALLS: u64 = 30;
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let stuck = env.run_server("stuck", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let attacker = Raw::open(stuck["url"].as_str().unwrap());
    kill(pid_of(&stuck), Signal::STOP);
    let text = "x".repeat(3_900_000);
    let large = |id| attacker.post(BOTH, &call(id, "echo", &json!({"text": text}))).answer();
    let attack = || {
        thread::scope(|scope| {
            let calls: Vec<_> = (1..=CALLS).map(|id| scope.spawn(move || large(id))).collect();
            until("some are refused", || {
                (calls.iter().filter(|call| call.is_finished()).count() >= 13).then_some(())
            });
            let pages = resident(env.daemon());
            kill(pid_of(&stuck), Signal::CONT);
            assert!(pages < (300 << 20) / 4096, "{pages} pages");
            let answers = calls.into_iter().map(|call| call.join().unwrap());
            answers.filter(|answer| answer["error"].is_object()).collect()
        })
    };
    let case = "30 calls of 4 MB to a server that does not read for a while";
    let refused: Vec<Value> = bystander.during(case, attack);
    for answer in &refused {
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("not sent to the server"), "{message}");
    }
    assert_eq!(refused.len(), 13, "64 MiB of a session are accepted");
}
