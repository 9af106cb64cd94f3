//! Clients that move to another file.

use std::fs;
use std::os::unix::fs::symlink;

use mainstay_clients::ledger::Done;
use mainstay_clients::{Purpose, Registrar};

use crate::home::{Home, URL, age, http, read, remove, server};

#[test]
fn a_server_is_removed_from_the_file_it_was_written_to() {
    let home = Home::new();
    let legacy =
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json";
    let legacy = home.write(legacy, "{}\n");
    let registrar = home.registrar();
    let change = registrar.add("cline", &server("time"), &http()).unwrap();
    assert_eq!(change.file, legacy);
    // The extension is updated and moves to another file.
    home.write(".cline/data/settings/cline_mcp_settings.json", "{}\n");
    let changes = remove(&registrar, "cline", "time", Purpose::ForGood);
    assert_eq!((changes.len(), &changes[0].file, &changes[0].done), (1, &legacy, &Done::Removed));
    assert_eq!(read(&legacy), "{}\n");
}

#[test]
fn an_entry_moves_with_its_client_to_another_file() {
    let old =
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json";
    let new = ".cline/data/settings/cline_mcp_settings.json";
    let migrated = format!(
        "{{\"mcpServers\": {{\"time\": {{\"type\": \"streamableHttp\", \"url\": \"{URL}\"}}}}}}"
    );
    // The extension starts with an empty file, or with what it takes along.
    for found in ["{}\n", &migrated] {
        let home = Home::new();
        let old = home.write(old, "{}\n");
        let registrar = home.registrar();
        registrar.add("cline", &server("time"), &http()).unwrap();
        let new = home.write(new, found);
        let change = registrar.add("cline", &server("time"), &http()).unwrap();
        assert_eq!(change.file, new);
        assert!(read(&new).contains(URL));
        assert_eq!(read(&old), "{}\n");
        age(&home);
        registrar.add("cline", &server("time"), &http()).unwrap();
        let records = registrar.records().unwrap();
        assert_eq!((records.len(), &records[0].file), (1, &new));
        let changes = remove(&registrar, "cline", "time", Purpose::ForGood);
        assert_eq!(changes[0].done, Done::Removed);
        assert!(!read(&new).contains(URL), "{}", read(&new));
    }
}

#[test]
fn the_users_fields_move_with_the_entry() {
    for away in [false, true] {
        let home = Home::new();
        let old = home.write(".config/opencode/opencode.json", "{}\n");
        let registrar = home.registrar();
        registrar.add("opencode", &server("time"), &http()).unwrap();
        let ours = format!("\"url\": \"{URL}\"");
        let more = "\"headers\": {\"k\": \"v\"}, \"enabled\": false";
        fs::write(&old, read(&old).replace(&ours, &format!("{more}, {ours}"))).unwrap();
        if away {
            remove(&registrar, "opencode", "time", Purpose::Refresh);
        }
        let new = home.write(".config/opencode/opencode.jsonc", "{}\n");
        let change = registrar.add("opencode", &server("time"), &http()).unwrap();
        assert_eq!((change.done, &change.file), (Done::Added, &new));
        let json: serde_json::Value = serde_json::from_str(&read(&new)).unwrap();
        let entry = serde_json::json!(
            {"type": "remote", "headers": {"k": "v"}, "enabled": false, "url": URL}
        );
        assert_eq!(json, serde_json::json!({"mcp": {"time": entry}}), "away: {away}");
        assert_eq!(read(&old), "{}\n", "away: {away}");
    }
}

#[test]
fn an_entry_leaves_a_file_only_after_it_is_in_the_next() {
    let home = Home::new();
    let old = home.write(".config/opencode/opencode.json", "{}\n");
    let registrar = home.registrar();
    registrar.add("opencode", &server("time"), &http()).unwrap();
    let with_entry = read(&old);
    let new = home.write(".config/opencode/opencode.jsonc", "{ oops");
    registrar.add("opencode", &server("time"), &http()).unwrap_err();
    assert_eq!(read(&old), with_entry);
    fs::write(&new, "{}\n").unwrap();
    registrar.add("opencode", &server("time"), &http()).unwrap();
    assert!(read(&new).contains(URL));
    assert_eq!(read(&old), "{}\n");
}

#[test]
fn another_path_of_the_same_file_is_not_a_move() {
    let home = Home::new();
    let real = home.write("dotfiles/opencode.json", "{ }\n");
    fs::create_dir_all(home.path(".config/opencode")).unwrap();
    symlink(&real, home.path(".config/opencode/opencode.json")).unwrap();
    let registrar = home.registrar();
    registrar.add("opencode", &server("time"), &http()).unwrap();
    let new = home.path(".config/opencode/opencode.jsonc");
    symlink(&real, &new).unwrap();
    let change = registrar.add("opencode", &server("time"), &http()).unwrap();
    assert_eq!((change.done, change.file), (Done::AlreadyThere, new));
    assert_eq!(registrar.records().unwrap().len(), 1);
    remove(&registrar, "opencode", "time", Purpose::ForGood);
    assert_eq!(read(&real), "{ }\n");
}

#[test]
fn a_file_that_cannot_be_left_does_not_keep_an_entry_from_the_new_one() {
    let home = Home::new();
    let old = home.write(".config/zed/settings.json", "{}\n");
    home.registrar().add("zed", &server("time"), &http()).unwrap();
    fs::write(&old, "{ oops").unwrap();
    let mut machine = home.machine();
    let xdg = home.path("xdg").display().to_string();
    machine.env.insert("XDG_CONFIG_HOME".to_owned(), xdg);
    let new = home.write("xdg/zed/settings.json", "{}\n");
    let registrar = Registrar::new(home.state(), machine);
    let change = registrar.add("zed", &server("time"), &http()).unwrap();
    assert_eq!((change.done, change.file), (Done::Added, new));
    assert_eq!(registrar.records().unwrap().len(), 2);
    fs::write(&old, format!("{{\"context_servers\": {{\"time\": {{\"url\": \"{URL}\"}}}}}}"))
        .unwrap();
    registrar.add("zed", &server("time"), &http()).unwrap();
    assert_eq!(read(&old), "{}");
}

#[test]
fn a_removal_reports_each_file() {
    let home = Home::new();
    let old = home.write(".config/opencode/opencode.json", "{}\n");
    let registrar = home.registrar();
    registrar.add("opencode", &server("time"), &http()).unwrap();
    fs::write(&old, "{ oops").unwrap();
    let new = home.write(".config/opencode/opencode.jsonc", "{}\n");
    registrar.add("opencode", &server("time"), &http()).unwrap();
    let done = registrar.remove("opencode", &server("time"), Purpose::ForGood);
    let told: Vec<_> = done
        .into_iter()
        .map(|done| done.map(|change| (change.file, change.done)).map_err(|error| error.line()))
        .collect();
    assert_eq!(told.len(), 2);
    assert!(told.contains(&Ok((new.clone(), Done::Removed))), "{told:?}");
    let refused = format!("{} was left as it is: line 1, column 3", old.display());
    let is_refused = |line: &String| line.starts_with(&refused);
    assert!(told.iter().any(|told| told.as_ref().is_err_and(is_refused)), "{told:?}");
    assert_eq!(read(&new), "{}\n");
}
