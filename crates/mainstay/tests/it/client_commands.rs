//! What the commands about clients print.

use std::fs;

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::env::{TestEnv, fixture, free_port};

/// A user who has Cursor and Claude Desktop, and a server at an address that is known.
fn env() -> (TestEnv, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let env = TestEnv::new().with_var("MAINSTAY_LISTEN", &address);
    for dir in [".cursor", ".config/Claude"] {
        fs::create_dir_all(env.root().join("home").join(dir)).unwrap();
    }
    (env, address)
}

fn shown(env: &TestEnv, address: &str, args: &[&str]) -> String {
    env.run(args).to_string().replace(address, "[ADDRESS]")
}

#[test]
fn a_new_user_gets_hints() {
    let (env, address) = env();
    assert_snapshot!(env.run(["client", "ls"]), @"
    exit: 0
    --- stdout
    CLIENT          PRODUCT         INSTALLED  CHOSEN  SERVERS  FILE
    cursor          Cursor          yes        -       0        ~/.cursor/mcp.json
    claude-desktop  Claude Desktop  yes        -       0        ~/.config/Claude/claude_desktop_config.json
    --- stderr
    no client has been added yet: `mainstay client add cursor` adds your servers to this one
    ");
    env.run_server("time", &[], &[&fixture()]);
    assert_snapshot!(env.run(["client", "add", "cursor", "claude-desktop"]), @"
    exit: 0
    --- stderr
    added `time` to Claude Desktop and Cursor
    restart Claude Desktop to see it
    ");
    assert_snapshot!(env.run(["client", "add", "cursor"]), @"
    exit: 0
    --- stderr
    Cursor: nothing to do, all servers are there already
    ");
    assert_snapshot!(env.run(["client", "ls"]), @"
    exit: 0
    --- stdout
    CLIENT          PRODUCT         INSTALLED  CHOSEN  SERVERS  FILE
    cursor          Cursor          yes        yes     1        ~/.cursor/mcp.json
    claude-desktop  Claude Desktop  yes        yes     1        ~/.config/Claude/claude_desktop_config.json
    ");
    assert_snapshot!(shown(&env, &address, &["client", "show", "cursor"]), @"
    exit: 0
    --- stdout
    client:     cursor
    product:    Cursor
    installed:  yes: ~/.cursor/mcp.json exists
    chosen:     yes: it gets every server
    file:       ~/.cursor/mcp.json
    changes:    seen at once

    Entries
      time  added by Mainstay  url http://[ADDRESS]/time/mcp
    ");
    let status = env.ok(["status", "time"]);
    assert!(status.contains("\nclients:    Claude Desktop, Cursor\n"), "{status}");
    assert_snapshot!(env.run(["rm", "time"]), @"
    exit: 0
    --- stdout
    time is removed
    --- stderr
    removed `time` from Claude Desktop and Cursor
    restart Claude Desktop to see that it is gone
    ");
    assert_snapshot!(env.run(["client", "remove", "cursor"]), @"
    exit: 0
    --- stderr
    Cursor had no Mainstay entries. New servers will not be added.
    ");
}

#[test]
fn run_reports_the_clients_of_a_server() {
    let (env, _) = env();
    let fixture = fixture();
    let run = |options: &[&str]| {
        let args = [&["run", "time", "--replace", "--wait"], options, &["--", &fixture]].concat();
        env.run(args).stderr
    };
    let hint = run(&[]);
    assert!(hint.contains("`mainstay client add ID`"), "{hint}");
    let clients = || {
        let status = env.ok(["status", "time"]);
        status.lines().find(|line| line.starts_with("clients:")).map(str::to_owned)
    };
    assert_eq!(clients(), None);
    assert_eq!(run(&["--no-clients"]), "changed: clients\n");
    assert_eq!(clients().as_deref(), Some("clients:    none (--no-clients)"));
    assert_snapshot!(run(&["--client", "cursor"]), @"
    changed: clients
    added `time` to Cursor (~/.cursor/mcp.json)
    ");
    let json = env.json(["run", "web", "--client", "cursor", "--json", "--", &fixture]);
    assert_eq!((&json["name"], &json["clients"][0]["client"]), (&json!("web"), &json!("cursor")));
}

#[test]
fn a_file_that_cannot_be_edited_is_reported_with_a_help() {
    let (env, _) = env();
    let file = env.root().join("home/.cursor/mcp.json");
    fs::write(&file, "{\n  \"mcpServers\": { oops\n").unwrap();
    for name in ["a", "b"] {
        env.run_server(name, &["--client", "cursor"], &[&fixture()]);
    }
    assert_snapshot!(env.run(["client", "add", "cursor"]), @"
    exit: 1
    --- stderr
    warning: `a` and `b` are not in Cursor yet: ~/.cursor/mcp.json was left as it is: line 2, column 19: expected a key in double quotes or `}`
    help: fix the file; Mainstay tries again within a minute, or at once with `mainstay client add cursor`
    ");
    assert_snapshot!(env.run(["client", "ls"]), @"
    exit: 0
    --- stdout
    CLIENT          PRODUCT         INSTALLED  CHOSEN  SERVERS  FILE
    cursor          Cursor          yes        yes     0        ~/.cursor/mcp.json
    claude-desktop  Claude Desktop  yes        -       0        ~/.config/Claude/claude_desktop_config.json
    --- stderr
    cursor: ~/.cursor/mcp.json was left as it is: line 2, column 19: expected a key in double quotes or `}`; fix this; Mainstay tries again within a minute, or at once with `mainstay client add cursor`
    ");
    let why = env.ok(["why", "a"]);
    assert!(why.contains("a client's file could not be edited"), "{why}");
    let doctor = env.run(["doctor"]).stdout;
    assert!(doctor.contains("warn  client cursor: "), "{doctor}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\n  \"mcpServers\": { oops\n");
}

#[test]
fn a_conflicting_entry_is_reported_with_a_help() {
    let (env, _) = env();
    let file = env.root().join("home/.cursor/mcp.json");
    fs::write(&file, "{\"mcpServers\": {\"time\": {\"url\": \"http://127.0.0.1:1/\"}}}").unwrap();
    env.run_server("time", &[], &[&fixture()]);
    assert_snapshot!(env.run(["client", "add", "cursor"]), @"
    exit: 0
    --- stderr
    warning: left `time` in Cursor (~/.cursor/mcp.json) alone: Mainstay did not write this entry; see `mainstay client show cursor`
    ");
    let show = env.ok(["client", "list"]) + &env.ok(["client", "show", "cursor"]);
    let reported = "- the file has an entry `time` of yours, so the server `time` is not added; rename or delete that entry, then run `mainstay client add cursor`";
    assert!(show.contains(reported), "{show}");
    let why = env.ok(["why", "time"]);
    assert!(why.contains("its entry in Cursor was changed by hand and is left so"), "{why}");
}

#[test]
fn all_clients_at_once() {
    let (env, _) = env();
    env.run_server("time", &[], &[&fixture()]);
    assert_snapshot!(env.run(["client", "add", "--all"]), @"
    exit: 0
    --- stderr
    added `time` to Claude Desktop and Cursor
    restart Claude Desktop to see it
    ");
    let why = env.ok(["why", "time"]);
    assert!(why.contains(" client  added to 2 clients (Claude Desktop and Cursor)\n"), "{why}");
    assert_snapshot!(env.run(["client", "remove", "--all"]), @"
    exit: 0
    --- stderr
    removed `time` from Claude Desktop and Cursor
    restart Claude Desktop to see that it is gone
    ");
    assert_snapshot!(env.run(["client", "remove", "--all"]), @"
    exit: 0
    --- stderr
    nothing to do: no client was added, and no file has an entry of Mainstay
    ");
    assert_snapshot!(TestEnv::new().run(["client", "add", "--all"]), @"
    exit: 1
    --- stderr
    no client was found on this machine; `mainstay client ls -a` lists all known clients and their files
    ");
}

#[test]
fn clients_in_json() {
    let (env, address) = env();
    env.run_server("time", &["--client", "cursor"], &[&fixture()]);
    let Value::Array(all) = env.json(["client", "ls", "--json"]) else { panic!("no array") };
    let cursor = all.iter().find(|client| client["id"] == "cursor").unwrap();
    assert_eq!(*cursor, env.json(["client", "show", "cursor", "--json"]));
    assert_eq!(
        cursor["entries"],
        json!([{
            "name": "time",
            "standing": "ours",
            "wanted": true,
            "says": {"url": format!("http://{address}/time/mcp")},
        }])
    );
    let reports = env.json(["client", "rm", "cursor", "--json"]);
    assert_eq!((&reports[0]["server"], &reports[0]["done"]), (&json!("time"), &json!("removed")));
}

#[test]
fn a_client_that_is_not_installed_is_refused() {
    let (env, _) = env();
    assert_snapshot!(env.run(["client", "add", "cursor", "codex"]), @"
    exit: 1
    --- stderr
    error: Codex is not installed (`[ROOT]/home/.codex/config.toml` would be its file)
    help: nothing was changed; if it is installed, start it once, so that it creates its directory
    ");
    assert_eq!(env.json(["client", "show", "cursor", "--json"])["chosen"], false);
}
