//! The load generator against the fixture.

use std::process::{Command, Output};

use serde_json::Value;

use crate::fixture::{Fixture, PROGRAM};

fn mcpload(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcpload")).args(arguments).output().unwrap()
}

#[track_caller]
fn check_clean(arguments: &[&str]) -> Value {
    let output = mcpload(arguments);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert!(output.status.success(), "{report}");
    assert_eq!((&report["errors"], &report["wrong"]), (&0.into(), &0.into()), "{report}");
    assert!(report["calls"].as_u64().unwrap() > 0, "{report}");
    report
}

#[test]
fn every_answer_over_http_is_right() {
    for flags in [&[][..], &["--sse"]] {
        let (fixture, address) = Fixture::start_http(flags);
        let url = format!("http://{address}/mcp");
        let pid = fixture.pid().to_string();
        let report = check_clean(&[
            "http",
            &url,
            "--sessions",
            "4",
            "--seconds",
            "0.3",
            "--warmup",
            "0.1",
            "--cpu-pid",
            &pid,
            "--json",
        ]);
        assert_eq!(report["cpu"][0]["pid"], fixture.pid());
    }
}

#[test]
fn every_answer_over_stdio_is_right() {
    for flags in [&[][..], &["--junk-stdout"]] {
        let plan = ["stdio", "--sessions", "2", "--seconds", "0.3", "--json", "--", PROGRAM];
        check_clean(&[&plan, flags].concat());
    }
}

#[test]
fn large_answers_are_right_too() {
    let tool = ["--tool", "bytes", "--size", "100000"];
    let plan = ["stdio", "--seconds", "0.3", "--json"];
    check_clean(&[&plan[..], &tool, &["--", PROGRAM]].concat());
}

#[test]
fn a_server_that_is_not_there_is_a_plain_failure() {
    let output = mcpload(&["http", "http://127.0.0.1:1/mcp", "--seconds", "1"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.starts_with("mcpload: a session could not be opened: "), "{words}");
}
