//! Entries that are taken out for a refresh, and put back into files that others edit meanwhile.

use std::fs;
use std::path::PathBuf;

use mainstay_clients::Purpose;
use mainstay_clients::ledger::Done;

use crate::home::{Home, http, read, remove, server};

/// A client with comments in its file, and where that is.
const ZED: (&str, &str) = ("zed", ".config/zed/settings.json");
const CODEX: (&str, &str) = ("codex", ".codex/config.toml");

/// A home with entries of ours for `time` and `git` in a client's file, which its user has then changed.
fn scene(
    (client, path): (&str, &str),
    before: &str,
    edit: impl Fn(&str) -> String,
) -> (Home, PathBuf, String) {
    let home = Home::new();
    let file = home.write(path, before);
    for name in ["time", "git"] {
        home.registrar().add(client, &server(name), &http()).unwrap();
    }
    let with = edit(&read(&file));
    fs::write(&file, &with).unwrap();
    (home, file, with)
}

fn zed() -> (Home, PathBuf, String) {
    let before = "{\n  // The servers of the team.\n  \"context_servers\": {\n    \"other\": {}, // theirs\n  },\n}\n";
    scene(ZED, before, |text| {
        let text = text.replacen("\"url\"", "// our clock\n      \"url\"", 1);
        text.replace("\n    \"git\"", "\n    // Ask before you change this.\n    \"git\"")
    })
}

fn codex() -> (Home, PathBuf, String) {
    let before =
        "model = \"o3\" # the best\n\n[mcp_servers.other]\nurl = \"x\"\n\n[tui]\ntheme = 1\n";
    scene(CODEX, before, |text| {
        text.replacen("[mcp_servers.time]", "[mcp_servers.time] # our clock", 1)
    })
}

#[test]
fn two_entries_removed_together_are_restored_in_any_order() {
    for ((home, file, with), client) in [(zed(), "zed"), (codex(), "codex")] {
        let registrar = home.registrar();
        for out in [["time", "git"], ["git", "time"]] {
            for back in [["time", "git"], ["git", "time"]] {
                for name in out {
                    remove(&registrar, client, name, Purpose::Refresh);
                }
                for name in back {
                    let change = registrar.add(client, &server(name), &http()).unwrap();
                    assert_eq!(change.done, Done::PutBack);
                }
                assert_eq!(read(&file), with, "{out:?}, {back:?}");
            }
        }
        for name in ["time", "git"] {
            remove(&registrar, client, name, Purpose::ForGood);
        }
        assert!(!read(&file).contains("time"), "{}", read(&file));
    }
}

#[test]
fn an_entry_keeps_its_place_and_comments_in_an_edited_file() {
    let edit = |text: &str| {
        text.replace("\"other\": {}", "\"other\": {\"enabled\": true}")
            .replace("theme = 1", "theme = 2")
    };
    for ((home, file, with), client) in [(zed(), "zed"), (codex(), "codex")] {
        let registrar = home.registrar();
        remove(&registrar, client, "time", Purpose::Refresh);
        fs::write(&file, edit(&read(&file))).unwrap();
        registrar.add(client, &server("time"), &http()).unwrap();
        assert_eq!(read(&file), edit(&with));
    }
}

#[test]
fn a_record_of_an_earlier_version_can_be_read() {
    let (home, file, _) = zed();
    let registrar = home.registrar();
    remove(&registrar, "zed", "time", Purpose::Refresh);
    let ledger = home.state().join("clients.json");
    let mut json: serde_json::Value = serde_json::from_str(&read(&ledger)).unwrap();
    let records = json["records"].as_array_mut().unwrap();
    let away = records.iter_mut().find(|record| record["server"] == "time").unwrap();
    let state = away["state"]["away"].as_object_mut().unwrap();
    assert!(state.remove("removed").is_some());
    fs::write(&ledger, json.to_string()).unwrap();
    fs::write(&file, read(&file).replace("theirs", "mine")).unwrap();
    let change = registrar.add("zed", &server("time"), &http()).unwrap();
    assert_eq!(change.done, Done::PutBack);
    assert!(read(&file).contains("/time/mcp"), "{}", read(&file));
}
