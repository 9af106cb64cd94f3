//! Nothing of ours stays behind when an entry goes, and nothing of the user's goes unsaid.

use std::fs;
use std::io;
use std::sync::Arc;

use mainstay_clients::file::{Observer, Step};
use mainstay_clients::table::Presence;
use mainstay_clients::{Client, Purpose, Registrar};

use crate::home::{Home, URL, age, http, read, remove, server};

fn is_installed(registrar: &Registrar, client: &str) -> bool {
    registrar.locate(Client::by_id(client).unwrap()).presence != Presence::NotInstalled
}

#[test]
fn created_directories_are_removed_with_the_file() {
    for (client, program, top) in [
        ("codex", "codex", ".codex"),
        ("opencode", "opencode", ".config"),
        ("kiro", "kiro", ".kiro"),
    ] {
        let home = Home::new();
        home.install(program);
        let registrar = home.registrar();
        for name in ["time", "git"] {
            registrar.add(client, &server(name), &http()).unwrap();
        }
        fs::remove_file(home.path("bin").join(program)).unwrap();
        remove(&registrar, client, "time", Purpose::ForGood);
        assert!(is_installed(&registrar, client), "{client}");
        remove(&registrar, client, "git", Purpose::ForGood);
        assert!(!home.path(top).exists(), "{client}");
        assert!(!is_installed(&registrar, client), "{client}");
    }
}

#[test]
fn an_existing_or_used_directory_stays() {
    let home = Home::new();
    home.install("opencode");
    fs::create_dir(home.path(".config")).unwrap();
    let registrar = home.registrar();
    registrar.add("opencode", &server("time"), &http()).unwrap();
    remove(&registrar, "opencode", "time", Purpose::ForGood);
    assert_eq!(fs::read_dir(home.path(".config")).unwrap().count(), 0);
    registrar.add("opencode", &server("time"), &http()).unwrap();
    let theirs = home.write(".config/opencode/log", "");
    remove(&registrar, "opencode", "time", Purpose::ForGood);
    assert!(theirs.exists());
}

#[test]
fn a_directory_left_by_a_dead_writer_is_removed_with_the_record() {
    let home = Home::new();
    home.install("codex");
    let registrar = home.registrar();
    registrar.add("codex", &server("time"), &http()).unwrap();
    remove(&registrar, "codex", "time", Purpose::ForGood);
    // It died right before it removed the directory.
    fs::create_dir(home.path(".codex")).unwrap();
    age(&home);
    remove(&registrar, "codex", "time", Purpose::ForGood);
    assert!(!home.path(".codex").exists());
}

/// Fails before the file is in place.
struct Broken;

impl Observer for Broken {
    fn before(&self, step: Step) -> io::Result<()> {
        if step == Step::Rename { Err(io::Error::other("broken")) } else { Ok(()) }
    }
}

#[test]
fn an_edit_that_fails_leaves_no_directory() {
    let home = Home::new();
    home.install("codex");
    let registrar = Registrar::observed(home.state(), home.machine(), Arc::new(Broken));
    registrar.add("codex", &server("time"), &http()).unwrap_err();
    assert!(!home.path(".codex").exists());
}

#[test]
fn removed_fields_of_the_user_are_reported() {
    for (more, told) in [
        ("", ""),
        ("\"autoApprove\": [], ", ", with your field `autoApprove`"),
        (
            "\"autoApprove\": [], \"headers\": {}, ",
            ", with your fields `autoApprove` and `headers`",
        ),
        ("\"a\": 1, \"b\": 2, \"c\": 3, ", ", with your fields `a`, `b` and `c`"),
    ] {
        let home = Home::new();
        let file = home.write(".cursor/mcp.json", "{}");
        let registrar = home.registrar();
        registrar.add("cursor", &server("time"), &http()).unwrap();
        fs::write(&file, read(&file).replace("\"url\"", &format!("{more}\"url\""))).unwrap();
        let away = remove(&registrar, "cursor", "time", Purpose::Refresh);
        assert!(away[0].own_fields.is_empty(), "they come back");
        registrar.add("cursor", &server("time"), &http()).unwrap();
        let gone = remove(&registrar, "cursor", "time", Purpose::ForGood);
        let expected = format!("removed `time` from Cursor ({}){told}", file.display());
        assert_eq!(gone[0].to_string(), expected);
    }
}

#[test]
fn refreshes_of_a_file_that_others_edit_leave_nothing_in_it() {
    for (client, file, before) in [
        ("codex", ".codex/config.toml", "model = \"m0\"\n\n[tui]\ntheme = \"dark\"\n"),
        ("codex", ".codex/config.toml", "model = \"m0\"\n[mcp_servers.a]\nurl = \"a\"\n[tui]\n"),
        ("cursor", ".cursor/mcp.json", "{\"model\": \"m0\", \"mcpServers\": { }}\n"),
        ("zed", ".config/zed/settings.json", "{\n  // mine\n  \"model\": \"m0\",\n}\n"),
    ] {
        // It goes for good while it is there, and while it is away.
        for away in [false, true] {
            let home = Home::new();
            let file = home.write(file, before);
            let registrar = home.registrar();
            registrar.add(client, &server("time"), &http()).unwrap();
            for round in 0..3 {
                remove(&registrar, client, "time", Purpose::Refresh);
                let (old, new) = (format!("\"m{round}\""), format!("\"m{}\"", round + 1));
                fs::write(&file, read(&file).replace(&old, &new)).unwrap();
                if !(away && round == 2) {
                    registrar.add(client, &server("time"), &http()).unwrap();
                    assert!(read(&file).contains(URL), "{client}");
                }
            }
            remove(&registrar, client, "time", Purpose::ForGood);
            assert_eq!(read(&file), before.replace("m0", "m3"), "{client}, away: {away}");
        }
    }
}
