//! `config.toml`, the settings of an instance.

use std::fs;

use insta::assert_snapshot;
use serde_json::Value;

use crate::env::{TestEnv, free_port};

/// An environment with this config file.
fn with_file(text: &str) -> TestEnv {
    let env = TestEnv::new();
    fs::create_dir(env.mainstay_home()).unwrap();
    fs::write(env.mainstay_home().join("config.toml"), text).unwrap();
    env
}

#[test]
fn the_variable_takes_precedence_over_the_configured_address() {
    let address = format!("127.0.0.1:{}", free_port());
    let env = with_file(&format!("listen = '{address}'\n")).with_var("MAINSTAY_LISTEN", "");
    env.ok(["ls"]);
    let listen = |env: &TestEnv| env.json(["daemon", "status", "--json"])["listen"].clone();
    assert_eq!(listen(&env), Value::from(address.as_str()));
    env.ok(["daemon", "stop"]);
    let env = env.with_var("MAINSTAY_LISTEN", "127.0.0.1:0");
    env.ok(["daemon", "start"]);
    assert_ne!(listen(&env), Value::from(address.as_str()));
}

#[test]
fn an_invalid_file_prevents_the_start_of_the_daemon() {
    let env = with_file("listen = '127.0.0.1:0'\nrefresh = 'often'\n");
    assert_snapshot!(env.run(["ls"]), @"
    exit: 4
    --- stderr
    error: the daemon could not be started: `[ROOT]/mainstay/config.toml` cannot be used: TOML parse error at line 2, column 11
      |
    2 | refresh = 'often'
      |           ^^^^^^^
    unknown variant `often`, expected one of `auto`, `always`, `never`
    help: fix it, or move it away
    ");
    assert_snapshot!(env.run(["daemon", "run"]), @"
    exit: 1
    --- stderr
    error: `[ROOT]/mainstay/config.toml` cannot be used: TOML parse error at line 2, column 11
      |
    2 | refresh = 'often'
      |           ^^^^^^^
    unknown variant `often`, expected one of `auto`, `always`, `never`
    help: fix it, or move it away
    ");
    assert!(!env.mainstay_home().join("state").exists());
}

#[test]
fn the_doctor_names_the_file() {
    let line = |env: &TestEnv, start: &str| {
        let output = env.run(["doctor"]);
        output.stdout.lines().find(|line| line[6..].starts_with(start)).map(str::to_owned)
    };
    assert_eq!(line(&TestEnv::new(), "config file"), None);
    let found = line(&with_file("refresh = 'never'\n"), "config file");
    assert_eq!(found.as_deref(), Some("ok    config file: [ROOT]/mainstay/config.toml"));
    let bad = with_file("\nfresh = 'never'\n");
    assert_snapshot!(line(&bad, "config file").unwrap(), @"fail  config file: `[ROOT]/mainstay/config.toml` cannot be used: line 2, column 1: unknown field `fresh`, expected one of `listen`, `allowed-hosts`, `admit-root`, `allow-other-users`, `refresh`");
    let daemon = line(&bad, "daemon").unwrap();
    assert_eq!(daemon, "fail  daemon: not running, and cannot be started");
}
