//! An entry through its life, and beside the hands of others.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use mainstay_clients::file::{FileError, Observer, Step};
use mainstay_clients::ledger::{Done, Left, Standing, State};
use mainstay_clients::{ClientError, Purpose, Registrar, Target};

use crate::home::{Home, URL, age, http, read, remove, server, stdio};

/// Cursor's file, with an entry of ours that the user has added to.
const WITH_USERS_FIELDS: &str = r#"{
  "mcpServers": {
    "time": {
      "disabled": false,
      "url": "http://127.0.0.1:7433/time/mcp",
      "headers": {"X-Team": "core"}
    },
    "other": {"command": "other"}
  }
}
"#;

fn cursor(text: &str) -> (Home, PathBuf) {
    let home = Home::new();
    let file = home.write(".cursor/mcp.json", text);
    (home, file)
}

/// A home in which our entry has been added, and the file was then changed to `text`.
fn edited_by_hand(text: &str) -> (Home, PathBuf) {
    let (home, file) = cursor("{}");
    home.registrar().add("cursor", &server("time"), &http()).unwrap();
    fs::write(&file, text).unwrap();
    (home, file)
}

fn standing(home: &Home, name: &str) -> Standing {
    let entries = home.registrar().status("cursor").unwrap().entries;
    entries.into_iter().find(|entry| entry.name == name).unwrap().standing
}

/// The state of the only record.
fn state(registrar: &Registrar) -> Option<State> {
    registrar.records().unwrap().into_iter().next().map(|record| record.state)
}

#[test]
fn a_refresh_restores_the_file_exactly() {
    let (home, file) = edited_by_hand(WITH_USERS_FIELDS);
    let registrar = home.registrar();
    let removed = remove(&registrar, "cursor", "time", Purpose::Refresh);
    assert_eq!(removed[0].done, Done::Removed);
    assert!(!read(&file).contains("time"), "{}", read(&file));
    assert_eq!(standing(&home, "time"), Standing::Away);
    let back = registrar.add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(back.done, Done::PutBack);
    assert_eq!(read(&file), WITH_USERS_FIELDS);
    assert_eq!(standing(&home, "time"), Standing::Ours);
    assert_eq!(state(&registrar), Some(State::Present));
}

#[test]
fn the_users_fields_are_restored_into_a_changed_file() {
    let (home, file) = edited_by_hand(WITH_USERS_FIELDS);
    let registrar = home.registrar();
    remove(&registrar, "cursor", "time", Purpose::Refresh);
    fs::write(&file, "{\"mcpServers\": {\"new\": {\"command\": \"new\"}}}\n").unwrap();
    registrar.add("cursor", &server("time"), &http()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read(&file)).unwrap();
    let expected = serde_json::json!({"mcpServers": {
        "new": {"command": "new"},
        "time": {"disabled": false, "url": URL, "headers": {"X-Team": "core"}},
    }});
    assert_eq!(json, expected);
}

#[test]
fn an_update_sets_our_fields_and_keeps_the_users() {
    let (home, file) = edited_by_hand(WITH_USERS_FIELDS);
    let elsewhere = Target::Http { url: "http://127.0.0.1:9000/time/mcp".to_owned() };
    let change = home.registrar().add("cursor", &server("time"), &elsewhere).unwrap();
    assert_eq!(change.done, Done::Updated);
    assert_eq!(read(&file), WITH_USERS_FIELDS.replace("7433", "9000"));
}

#[test]
fn a_foreign_entry_of_the_same_name_is_left_alone() {
    let text = "{\"mcpServers\": {\"time\": {\"command\": \"mine\"}}}";
    let (home, file) = cursor(text);
    let registrar = home.registrar();
    let foreign = Done::Left(Left::Foreign);
    for add in [
        registrar.add("cursor", &server("time"), &http()).unwrap(),
        registrar.force_add("cursor", &server("time"), &http()).unwrap(),
    ] {
        assert_eq!(add.done, foreign);
        let said = format!(
            "left `time` in Cursor ({}) alone: Mainstay did not write this entry",
            file.display()
        );
        assert_eq!(add.to_string(), said);
    }
    for purpose in [Purpose::Refresh, Purpose::ForGood] {
        assert_eq!(remove(&registrar, "cursor", "time", purpose)[0].done, foreign);
    }
    assert_eq!(read(&file), text);
    assert_eq!(standing(&home, "time"), Standing::Foreign);
}

#[test]
fn an_equal_entry_of_the_user_stays_the_users() {
    let text = format!("{{\"mcpServers\": {{\"time\": {{\"url\": \"{URL}\"}}}}}}");
    let (home, file) = cursor(&text);
    let registrar = home.registrar();
    let change = registrar.add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(change.done, Done::AlreadyThere);
    remove(&registrar, "cursor", "time", Purpose::ForGood);
    assert_eq!(read(&file), text);
}

#[test]
fn drift_is_reported_and_kept_until_a_user_asks() {
    let drifted = WITH_USERS_FIELDS.replace(URL, "http://10.0.0.1/mine");
    let (home, file) = edited_by_hand(&drifted);
    let registrar = home.registrar();
    let fields = vec!["url".to_owned()];
    assert_eq!(standing(&home, "time"), Standing::Drifted { fields: fields.clone() });
    let kept = registrar.add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(kept.done, Done::Left(Left::Drifted { fields }));
    assert!(kept.to_string().ends_with("alone: `url` was changed by hand"), "{kept}");
    assert_eq!(read(&file), drifted);
    let asked = registrar.force_add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(asked.done, Done::Updated);
    assert_eq!(read(&file), WITH_USERS_FIELDS);
}

#[test]
fn a_drifted_entry_survives_the_removal_of_its_server() {
    let drifted = WITH_USERS_FIELDS.replace(URL, "http://10.0.0.1/mine");
    let (home, file) = edited_by_hand(&drifted);
    let changes = remove(&home.registrar(), "cursor", "time", Purpose::ForGood);
    assert!(matches!(changes[0].done, Done::Left(Left::Drifted { .. })));
    assert_eq!(read(&file), drifted);
    assert_eq!(standing(&home, "time"), Standing::Foreign);
}

#[test]
fn an_entry_overwritten_right_after_a_write_is_written_again() {
    let (home, file) = edited_by_hand("{\"mcpServers\": {}}");
    assert_eq!(standing(&home, "time"), Standing::Overwritten);
    let change = home.registrar().add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(change.done, Done::Added);
    assert!(read(&file).contains(URL));
}

#[test]
fn an_entry_removed_by_a_user_stays_removed_until_a_user_asks() {
    let (home, file) = edited_by_hand("{\"mcpServers\": {}}");
    age(&home);
    let registrar = home.registrar();
    assert_eq!(standing(&home, "time"), Standing::Withdrawn);
    let refreshed = remove(&registrar, "cursor", "time", Purpose::Refresh);
    assert_eq!(refreshed[0].done, Done::NotThere);
    let withdrawn = Done::Left(Left::Withdrawn);
    let kept = registrar.add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(kept.done, withdrawn);
    assert!(kept.to_string().ends_with("it was removed by hand"), "{kept}");
    assert_eq!(read(&file), "{\"mcpServers\": {}}");
    let asked = registrar.force_add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(asked.done, Done::Added);
    assert_eq!(standing(&home, "time"), Standing::Ours);
}

#[test]
fn a_client_that_is_not_installed_gets_no_directory() {
    let home = Home::new();
    let error = home.registrar().add("kiro", &server("time"), &http()).unwrap_err();
    assert!(matches!(error, ClientError::NotInstalled { product: "Kiro", .. }), "{error}");
    assert!(!home.path(".kiro").exists());
    let changes = remove(&home.registrar(), "kiro", "time", Purpose::ForGood);
    assert_eq!(changes[0].done, Done::NotThere);
    assert!(!home.path(".kiro").exists());
}

#[test]
fn an_invalid_file_is_rejected_with_its_position() {
    for text in ["{\"mcpServers\": {},\n  oops\n}", "{\"mcpServers\": []}"] {
        let (home, file) = cursor(text);
        let error = home.registrar().add("cursor", &server("time"), &http()).unwrap_err();
        let ClientError::Edit { source, .. } = &error else { panic!("{error}") };
        let line = format!("{} was left as it is: {source}", file.display());
        assert_eq!(error.line(), line);
        assert!(source.to_string().starts_with("line "), "{source}");
        assert_eq!(read(&file), text);
        assert!(home.registrar().records().unwrap().is_empty());
    }
}

#[test]
fn unsupported_transports_are_rejected() {
    let home = Home::new();
    home.write(".config/Claude/claude_desktop_config.json", "{}");
    let registrar = home.registrar();
    let error = registrar.add("claude-desktop", &server("time"), &http()).unwrap_err();
    assert_eq!(error.to_string(), "Claude Desktop speaks only stdio");
    let error = registrar.add("emacs", &server("time"), &http()).unwrap_err();
    assert!(error.to_string().starts_with("no client is called `emacs`"), "{error}");
}

#[test]
fn an_entry_that_is_away_is_removed_without_a_trace() {
    for (before, meanwhile, left) in [
        (Some("{ }\n"), None, Some("{ }\n")),
        (None, None, None),
        (Some("{}"), Some("{\"a\": 1, \"mcpServers\": {}}"), Some("{\"a\": 1}")),
        (Some("{}"), Some("{\"mcpServers\": {\"x\": 1}}"), Some("{\"mcpServers\": {\"x\": 1}}")),
    ] {
        let home = Home::new();
        home.install("cursor");
        let file = home.path(".cursor/mcp.json");
        if let Some(before) = before {
            home.write(".cursor/mcp.json", before);
        }
        let registrar = home.registrar();
        registrar.add("cursor", &server("time"), &http()).unwrap();
        remove(&registrar, "cursor", "time", Purpose::Refresh);
        assert!(matches!(state(&registrar), Some(State::Away { .. })));
        if let Some(text) = meanwhile {
            fs::write(&file, text).unwrap();
        }
        remove(&registrar, "cursor", "time", Purpose::ForGood);
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), left);
        assert_eq!(state(&registrar), Some(State::Leaving));
    }
}

#[test]
fn a_file_deleted_while_the_entry_is_away_stays_deleted_until_a_user_asks() {
    let (home, file) = edited_by_hand(WITH_USERS_FIELDS);
    let registrar = home.registrar();
    remove(&registrar, "cursor", "time", Purpose::Refresh);
    fs::remove_file(&file).unwrap();
    let kept = registrar.add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(kept.done, Done::Left(Left::Withdrawn));
    assert!(!file.exists());
    let asked = registrar.force_add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(asked.done, Done::Added);
    assert!(read(&file).contains(URL));
}

#[test]
fn changes_while_the_entry_was_away_are_kept_until_a_user_asks() {
    let (home, file) = edited_by_hand(WITH_USERS_FIELDS);
    let registrar = home.registrar();
    remove(&registrar, "cursor", "time", Purpose::Refresh);
    let mine = WITH_USERS_FIELDS.replace(URL, "http://10.0.0.1/mine");
    fs::write(&file, &mine).unwrap();
    for _ in 0..2 {
        let kept = registrar.add("cursor", &server("time"), &http()).unwrap();
        assert_eq!(kept.done, Done::Left(Left::Foreign));
        assert_eq!((read(&file), state(&registrar)), (mine.clone(), Some(State::Withdrawn)));
    }
}

#[test]
fn an_entry_overwritten_before_a_refresh_is_restored_after_it() {
    let (home, file) = edited_by_hand("{\"mcpServers\": {}}");
    let registrar = home.registrar();
    remove(&registrar, "cursor", "time", Purpose::Refresh);
    assert_eq!(standing(&home, "time"), Standing::Away);
    let back = registrar.add("cursor", &server("time"), &http()).unwrap();
    assert_eq!(back.done, Done::PutBack);
    assert!(read(&file).contains(URL));
}

#[test]
fn status_reports_the_owner_of_every_entry() {
    let (home, file) = cursor("{\"mcpServers\": {\"mine\": {\"command\": \"x\"}}}\n");
    let registrar = home.registrar();
    registrar.add("cursor", &server("time"), &http()).unwrap();
    registrar.add("cursor", &server("git"), &http()).unwrap();
    remove(&registrar, "cursor", "git", Purpose::Refresh);
    let status = registrar.status("cursor").unwrap();
    assert_eq!((status.located.file, status.located.exists), (file, true));
    let told: Vec<_> =
        status.entries.iter().map(|entry| (entry.name.as_str(), &entry.standing)).collect();
    let expected =
        [("mine", &Standing::Foreign), ("time", &Standing::Ours), ("git", &Standing::Away)];
    assert_eq!(told, expected);
}

#[test]
fn status_changes_nothing() {
    let (home, file) = cursor("{}\n");
    let left_behind = home.write(".cursor/.mcp.json.mainstay-1-0123456789abcdef.tmp", "{");
    let status = home.registrar().status("cursor").unwrap();
    assert!(status.entries.is_empty() && status.problem.is_none());
    assert!(left_behind.exists());
    assert!(!home.state().exists());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    let unwritable = || home.registrar().status("cursor").unwrap().problem.unwrap();
    assert!(unwritable().contains("is read-only"), "{}", unwritable());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(unwritable().contains("chmod o-w"), "{}", unwritable());
}

#[test]
fn a_rejected_byte_order_mark_is_reported() {
    let desktop = (".config/Claude/claude_desktop_config.json", "claude-desktop", true);
    let cursor = (".cursor/mcp.json", "cursor", false);
    for (path, client, is_rejected) in [desktop, cursor] {
        let home = Home::new();
        let file = home.write(path, "\u{feff}{}");
        let registrar = home.registrar();
        let change = registrar.add(client, &server("time"), &stdio()).unwrap();
        assert_eq!(change.to_string().contains("byte order mark"), is_rejected, "{change}");
        let problem = registrar.status(client).unwrap().problem;
        assert_eq!(problem.is_some_and(|it| it.contains("byte order mark")), is_rejected);
        assert!(read(&file).starts_with("\u{feff}{"), "foreign text stays");
    }
}

#[test]
fn the_last_entry_removes_what_was_created_for_the_first() {
    let file = ".kiro/settings/mcp.json";
    for before in [None, Some("{ }\n"), Some("{\"mcpServers\": {}}")] {
        for order in [["time", "git"], ["git", "time"]] {
            let home = Home::new();
            home.install("kiro");
            let file = match before {
                Some(text) => home.write(file, text),
                None => home.path(file),
            };
            let registrar = home.registrar();
            for name in ["time", "git"] {
                registrar.add("kiro", &server(name), &http()).unwrap();
            }
            for name in order {
                remove(&registrar, "kiro", name, Purpose::ForGood);
            }
            assert_eq!(fs::read_to_string(&file).ok().as_deref(), before, "{order:?}");
        }
    }
}

/// Fails a step as a disk does that breaks.
struct Broken(Step);

impl Observer for Broken {
    fn before(&self, step: Step) -> io::Result<()> {
        if step == self.0 { Err(io::Error::other("broken")) } else { Ok(()) }
    }
}

#[test]
fn after_a_failure_the_ledger_matches_the_file() {
    for (step, expected) in [
        (Step::Sync, None),
        (Step::Rename, None),
        (Step::SyncDirectory, Some(Standing::Ours)),
        (Step::Release, Some(Standing::Ours)),
    ] {
        let (home, _) = cursor("{}\n");
        let broken = Registrar::observed(home.state(), home.machine(), Arc::new(Broken(step)));
        let error = broken.add("cursor", &server("time"), &http()).unwrap_err();
        assert!(matches!(error, ClientError::File(FileError::Write { .. })), "{error}");
        let entries = home.registrar().status("cursor").unwrap().entries;
        let standing = entries.into_iter().next().map(|entry| entry.standing);
        assert_eq!(standing, expected, "{step:?}");
        let expected = expected.map(|_| State::Present);
        assert_eq!(state(&home.registrar()), expected, "{step:?}");
    }
}
