//! Two Mainstays of one user, each with a state directory of its own, and one file.

use std::fs;
use std::sync::Arc;

use mainstay_clients::ledger::Done;
use mainstay_clients::{Purpose, Registrar, Target};

use crate::home::{Home, read, remove, server};

const TURNS: u16 = 24;

fn target(port: u16) -> Target {
    Target::Http { url: format!("http://127.0.0.1:{port}/mcp") }
}

#[test]
fn two_instances_do_not_disturb_each_other() {
    let home = Arc::new(Home::new());
    let before = "{\n  \"theme\": \"dark\"\n}\n";
    let file = home.write(".cursor/mcp.json", before);
    let registrar = |name: &str| Registrar::new(home.state().join(name), home.machine());
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            scope.spawn(move || {
                let registrar = registrar(name);
                for turn in 1..=TURNS {
                    let change = registrar.add("cursor", &server(name), &target(turn)).unwrap();
                    assert!(change.wrote(), "{turn}: {change}");
                    if turn.is_multiple_of(3) && turn < TURNS {
                        let changes = remove(&registrar, "cursor", name, Purpose::ForGood);
                        assert_eq!(changes[0].done, Done::Removed, "{turn}");
                    }
                }
            });
        }
    });
    let json: serde_json::Value = serde_json::from_str(&read(&file)).unwrap();
    for name in ["one", "two"] {
        assert_eq!(json["mcpServers"][name]["url"], format!("http://127.0.0.1:{TURNS}/mcp"));
        remove(&registrar(name), "cursor", name, Purpose::ForGood);
    }
    let json: serde_json::Value = serde_json::from_str(&read(&file)).unwrap();
    assert_eq!(json["theme"], "dark");
    assert!(!read(&file).contains("127.0.0.1"), "{}", read(&file));
    let beside = fs::read_dir(file.parent().unwrap()).unwrap();
    assert_eq!(beside.count(), 1);
}
