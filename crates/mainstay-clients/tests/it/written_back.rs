//! Clients that write their settings back from memory, over what we have just written.

use std::fs;
use std::path::PathBuf;

use mainstay_clients::ledger::{Done, Left, State};
use mainstay_clients::{Purpose, Registrar, Target};

use crate::home::{Home, age, read, remove, server};

const BEFORE: &str = "{\n  \"theme\": \"dark\"\n}\n";

fn target(port: u16) -> Target {
    Target::Http { url: format!("http://127.0.0.1:{port}/time/mcp") }
}

/// A home whose Cursor has our entry, and the text with it.
fn scene() -> (Home, PathBuf, String) {
    let home = Home::new();
    let file = home.write(".cursor/mcp.json", BEFORE);
    home.registrar().add("cursor", &server("time"), &target(1)).unwrap();
    let text = read(&file);
    (home, file, text)
}

fn add(registrar: &Registrar, port: u16) -> Done {
    registrar.add("cursor", &server("time"), &target(port)).unwrap().done
}

fn remove_for_good(registrar: &Registrar) -> Done {
    remove(registrar, "cursor", "time", Purpose::ForGood)[0].done.clone()
}

#[test]
fn an_entry_written_back_after_its_removal_is_removed_again() {
    let (home, file, with_entry) = scene();
    let registrar = home.registrar();
    for _ in 0..3 {
        assert_eq!(remove_for_good(&registrar), Done::Removed);
        assert_eq!(read(&file), BEFORE);
        assert!(registrar.status("cursor").unwrap().entries.is_empty());
        fs::write(&file, &with_entry).unwrap();
    }
    // Also if it took the client a long time.
    age(&home);
    assert_eq!(remove_for_good(&registrar), Done::Removed);
    assert_eq!(read(&file), BEFORE);
}

#[test]
fn the_record_of_a_removed_entry_expires() {
    let (home, file, _) = scene();
    let registrar = home.registrar();
    remove_for_good(&registrar);
    assert_eq!(remove_for_good(&registrar), Done::NotThere);
    assert_eq!(registrar.records().unwrap()[0].state, State::Leaving);
    age(&home);
    assert_eq!(remove_for_good(&registrar), Done::NotThere);
    assert!(registrar.records().unwrap().is_empty());
    assert_eq!(read(&file), BEFORE);
}

#[test]
fn a_server_added_again_owns_the_entry_that_was_written_back() {
    let (home, file, with_entry) = scene();
    let registrar = home.registrar();
    remove_for_good(&registrar);
    fs::write(&file, &with_entry).unwrap();
    assert_eq!(add(&registrar, 2), Done::Updated);
    assert_eq!(remove_for_good(&registrar), Done::Removed);
    assert_eq!(read(&file), BEFORE);
    // The client wrote back only what was around the entry.
    fs::write(&file, "{\n  \"theme\": \"dark\",\n  \"mcpServers\": {}\n}\n").unwrap();
    assert_eq!(add(&registrar, 2), Done::Added);
    assert_eq!(remove_for_good(&registrar), Done::Removed);
    assert_eq!(read(&file), BEFORE);
}

#[test]
fn a_file_created_by_the_user_right_after_a_removal_is_the_users() {
    for mine in ["{\"mcpServers\": {}}", "{}", "{\"mcpServers\": {\"mine\": {}}}\n"] {
        let home = Home::new();
        home.install("cursor");
        let registrar = home.registrar();
        add(&registrar, 1);
        remove_for_good(&registrar);
        let file = home.write(".cursor/mcp.json", mine);
        assert_eq!(add(&registrar, 1), Done::Added);
        assert_eq!(remove_for_good(&registrar), Done::Removed);
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), Some(mine));
    }
}

#[test]
fn an_entry_created_by_the_user_long_after_a_removal_is_the_users() {
    let home = Home::new();
    home.install("cursor");
    let file = home.path(".cursor/mcp.json");
    let registrar = home.registrar();
    add(&registrar, 1);
    remove_for_good(&registrar);
    assert!(!file.exists());
    age(&home);
    let mine = "{\"mcpServers\": {}}";
    home.write(".cursor/mcp.json", mine);
    add(&registrar, 1);
    remove_for_good(&registrar);
    assert_eq!(read(&file), mine);
}

#[test]
fn an_entry_created_by_the_user_after_a_removal_is_the_users() {
    let (home, file, with_entry) = scene();
    let registrar = home.registrar();
    remove_for_good(&registrar);
    let mine = with_entry.replace("127.0.0.1:1", "10.0.0.1");
    fs::write(&file, &mine).unwrap();
    let again = registrar.force_add("cursor", &server("time"), &target(1)).unwrap();
    assert_eq!(again.done, Done::Left(Left::Foreign));
    assert_eq!(remove_for_good(&registrar), Done::Left(Left::Foreign));
    assert_eq!(read(&file), mine);
    fs::write(&file, BEFORE).unwrap();
    assert_eq!(add(&registrar, 1), Done::Added);
}

#[test]
fn entries_that_are_written_back_together_leave_nothing_behind() {
    for order in [["time", "git"], ["git", "time"]] {
        let (home, file, _) = scene();
        let registrar = home.registrar();
        registrar.add("cursor", &server("git"), &target(1)).unwrap();
        let with_both = read(&file);
        for _ in 0..2 {
            for name in order {
                remove(&registrar, "cursor", name, Purpose::ForGood);
            }
            assert_eq!(read(&file), BEFORE, "{order:?}");
            fs::write(&file, &with_both).unwrap();
        }
    }
}

#[test]
fn an_update_that_is_written_back_is_made_again() {
    let (home, file, old) = scene();
    let registrar = home.registrar();
    assert_eq!(add(&registrar, 2), Done::Updated);
    let new = read(&file);
    for _ in 0..2 {
        fs::write(&file, &old).unwrap();
        assert_eq!(add(&registrar, 2), Done::Updated);
        assert_eq!(read(&file), new);
    }
    fs::write(&file, &old).unwrap();
    assert_eq!(remove_for_good(&registrar), Done::Removed);
    assert_eq!(read(&file), BEFORE);
}

#[test]
fn an_update_reverted_by_a_user_later_stays_reverted() {
    let (home, file, old) = scene();
    let registrar = home.registrar();
    add(&registrar, 2);
    age(&home);
    fs::write(&file, &old).unwrap();
    assert!(matches!(add(&registrar, 2), Done::Left(Left::Drifted { .. })));
    assert_eq!(read(&file), old);
}

#[test]
fn an_entry_written_back_during_a_refresh_is_updated() {
    let (home, file, old) = scene();
    let registrar = home.registrar();
    remove(&registrar, "cursor", "time", Purpose::Refresh);
    fs::write(&file, &old).unwrap();
    assert_eq!(add(&registrar, 2), Done::Updated);
    assert_eq!(read(&file), old.replace(":1/", ":2/"));
}
