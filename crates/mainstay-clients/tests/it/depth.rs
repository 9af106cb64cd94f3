//! Files that are nested deeper than any client's: refused or edited, and never the end of the process.

use mainstay_clients::ClientError;
use mainstay_clients::ledger::Done;

use crate::home::{Home, URL, http, read, server};

/// As much as a thread for blocking work has.
const STACK: usize = 2 << 20;

const DEEP: usize = 50_000;

/// Adds our entry to a text, on a thread of the usual size.
#[track_caller]
fn check(client: &'static str, file: &str, text: &str) {
    let home = Home::new();
    let file = home.write(file, text);
    let registrar = home.registrar();
    let add = move || {
        let seen = registrar.status(client).map(drop);
        (registrar.add(client, &server("time"), &http()), seen)
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(add).unwrap();
    let (added, seen) = thread.join().unwrap();
    match added {
        Ok(change) => {
            assert_eq!(change.done, Done::Added);
            assert!(read(&file).contains(URL));
            seen.unwrap();
        }
        Err(ClientError::Edit { .. }) => assert_eq!(read(&file), text),
        Err(error) => panic!("{}", error.line().chars().take(300).collect::<String>()),
    }
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn deep_json() {
    let file = ".cursor/mcp.json";
    check("cursor", file, &format!("{{\"a\": {}}}", nested(DEEP)));
    check("cursor", file, &format!("{{\"mcpServers\": {{\"a\": {}}}}}", nested(505)));
}

#[test]
fn deep_toml() {
    let file = ".codex/config.toml";
    let dots = ".b".repeat(DEEP);
    for text in [
        format!("a = {}\n", nested(DEEP)),
        format!("[mcp_servers.a]\nb = {}\n", nested(DEEP)),
        format!("[mcp_servers.a]\nb{dots} = 1\n"),
        format!("[mcp_servers.a{dots}]\nb = 1\n"),
        format!("[q.a{dots}]\nb = 1\n"),
    ] {
        check("codex", file, &text);
    }
}
