//! A client that supports only stdio gets a command that works.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::env::{TestEnv, fixture};

#[test]
fn claude_desktop_gets_a_command_that_works_in_any_environment() {
    let env = TestEnv::new();
    let dir = env.root().join("home/.config/Claude");
    fs::create_dir_all(&dir).unwrap();
    env.ok(["client", "add", "claude-desktop"]);
    env.run_server("time", &[], &[&fixture()]);
    let text = fs::read_to_string(dir.join("claude_desktop_config.json")).unwrap();
    let entry = serde_json::from_str::<Value>(&text).unwrap()["mcpServers"]["time"].clone();
    assert!(entry["url"].is_null(), "{entry}");
    let program = PathBuf::from(entry["command"].as_str().unwrap());
    assert!(program.is_absolute(), "an app finds nothing on our path: {entry}");

    let args = entry["args"].as_array().unwrap();
    let mut app = Command::new(program)
        .args(args.iter().map(|arg| arg.as_str().unwrap()))
        .env_clear()
        .env("HOME", env.root().join("home"))
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let params = json!({
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "claude-ai", "version": "1"},
    });
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let mut stdin = app.stdin.take().unwrap();
    writeln!(stdin, "{hello}").unwrap();
    let mut answer = String::new();
    BufReader::new(app.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (&answer["id"], &answer["result"]["protocolVersion"]),
        (&json!(0), &json!("2025-06-18"))
    );
    drop(stdin);
    assert!(app.wait().unwrap().success());
}
