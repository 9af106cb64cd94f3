//! What a server writes reaches a terminal as text and colours, and a pipe byte for byte.

use serde_json::json;

use super::bystander::{Bystander, with_bystander};
use crate::env::{TestEnv, fixture, shell_server, until};

/// Moves the cursor, clears the screen, renames the window, writes the clipboard, asks the terminal to type, rings,
/// overwrites the line, switches character sets, and reorders and hides text.
const HOSTILE: &str = "x\u{1b}[2J\u{1b}[1;1H\u{1b}]0;owned\u{7}\u{1b}]52;c;ZXZpbA==\u{1b}\\\u{1b}[6n\u{1b}[21t\
     \u{1b}P$q\u{1b}\\\u{7}\u{8}\r\u{e}\u{1b}(0\u{1b}c\u{9b}2J\u{9d}0;owned\u{9c}\u{7f}\u{202e}gpj.exe\u{2066}\
     \u{200b}\u{feff}\u{2028}\u{1b}[31mred";

/// Text and colours, and nothing else.
#[track_caller]
fn assert_harmless(what: &str, shown: &str) {
    let mut rest = String::new();
    let mut pieces = shown.split("\u{1b}[");
    rest.push_str(pieces.next().unwrap());
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(piece.len());
        assert!(piece[end..].starts_with('m'), "{what}: {shown:?}");
        rest.push_str(&piece[end + 1..]);
    }
    let harmful = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || "\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}".contains(c)
    };
    assert!(!rest.contains(harmful), "{what}: {shown:?}");
}

#[test]
fn output_of_a_server_cannot_control_the_terminal() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let hostile = env.write("hostile", &format!("{HOSTILE}\n{}\n", "long".repeat(16_000)));
    let script = format!("cat '{}' >&2; exit 3", hostile.display());
    env.run_failing("loud", &["--restart-max", "0"], &["/bin/sh", "-c", &script]);
    let tool = json!({"name": HOSTILE, "description": HOSTILE, "inputSchema": {"properties": {HOSTILE: {}}}});
    let answers = env.write("answers", &format!("{}\n", json!({"tools": [tool]})));
    let lists = shell_server(&format!(
        r#"while read -r line; do
            id=$(printf '%s' "$line" | sed 's/.*"id":\([^,}}]*\).*/\1/')
            case $line in
                *tools/list*) printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$id" "$(cat '{}')" ;;
                *tools/call*) printf '{{"jsonrpc":"2.0","id":%s,"error":{{"code":1,"message":%s}}}}\n' "$id" "$(cat '{}')" ;;
            esac
        done"#,
        answers.display(),
        env.write("message", &json!(HOSTILE).to_string()).display(),
    ))
    .replace(r#""capabilities":{}"#, r#""capabilities":{"tools":{}}"#);
    env.run_server("lists", &[], &["/bin/sh", "-c", &lists]);

    let echo = json!({"text": HOSTILE}).to_string();
    let commands: [&[&str]; 14] = [
        &["logs", "loud"],
        &["logs", "loud", "--json"],
        &["why", "loud"],
        &["why", "loud", "--json"],
        &["status", "loud"],
        &["events"],
        &["events", "loud", "--json"],
        &["ls", "-a"],
        &["tools", "lists"],
        &["tools", "lists", "--json"],
        &["call", "lists", HOSTILE],
        &["call", "fx", "echo", &echo],
        &["call", "fx", "echo", &echo, "--json"],
        &["call", "fx", HOSTILE, &echo],
    ];
    for command in commands {
        let case = format!("terminal escapes in the output of {command:?}");
        let shown = bystander.during(case, || env.on_terminal(command));
        assert!(!shown.is_empty(), "{command:?} shows nothing");
        assert_harmless(&format!("{command:?}"), &shown);
    }
    let why = env.on_terminal(&["why", "loud"]);
    assert!(why.contains(" characters)") && why.len() < 10_000, "{why}");

    // Programs get what the server wrote.
    assert!(env.ok(["logs", "loud"]).contains(HOSTILE));
    assert_eq!(env.ok(["call", "fx", "echo", &echo]), format!("{HOSTILE}\n"));
}

#[test]
fn colors_of_a_log_end_with_their_line() {
    let env = TestEnv::new();
    let script = shell_server(r"printf '\033[31mred\nplain\n' >&2; read -r line");
    env.run_server("red", &[], &["/bin/sh", "-c", &script]);
    with_bystander(&env).during("a color without an end in a log", || {
        until("both lines are there", || {
            env.on_terminal(&["logs", "red", "--raw"])
                .contains("\u{1b}[31mred\u{1b}[0m\nplain\n")
                .then_some(())
        });
    });
    assert!(env.ok(["logs", "red", "--raw"]).contains("\u{1b}[31mred\nplain\n"));
}
