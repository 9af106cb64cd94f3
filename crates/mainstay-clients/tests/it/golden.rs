//! Every client's file before, after an addition and after the removal.
//!
//! `golden/<case>/` holds `before`, `added`, `removed`, and what is made from no file at all: `fresh` for
//! a URL and `stdio` for a command. `MAINSTAY_BLESS=1` rewrites all but `before`; review the result.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use mainstay_clients::ledger::Done;
use mainstay_clients::{Client, Purpose, Target, clients};

use crate::home::{Home, http, read, remove, server, stdio, switch};

/// A client, its golden files, and where in the home directory its file is.
struct Case {
    id: &'static str,
    dir: &'static str,
    file: &'static str,
}

const CASES: &[Case] = &[
    case("cursor", ".cursor/mcp.json"),
    case("vscode", ".config/Code/User/mcp.json"),
    case("vscode-insiders", ".config/Code - Insiders/User/mcp.json"),
    case("vscode-server", ".vscode-server/data/User/mcp.json"),
    case("cline", ".cline/data/settings/cline_mcp_settings.json"),
    Case {
        id: "cline",
        dir: "cline-legacy",
        file: ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
    },
    case(
        "roo-code",
        ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
    ),
    case("claude-code", ".claude.json"),
    case("claude-desktop", ".config/Claude/claude_desktop_config.json"),
    case("codex", ".codex/config.toml"),
    case("gemini-cli", ".gemini/settings.json"),
    case("qwen-code", ".qwen/settings.json"),
    case("opencode", ".config/opencode/opencode.jsonc"),
    Case { id: "opencode", dir: "opencode-v2", file: ".config/opencode/opencode.json" },
    case("zed", ".config/zed/settings.json"),
    case("windsurf", ".codeium/windsurf/mcp_config.json"),
    case("devin", ".config/devin/mcp_config.json"),
    case("copilot-cli", ".copilot/mcp-config.json"),
    case("kiro", ".kiro/settings/mcp.json"),
    case("lm-studio", ".lmstudio/mcp.json"),
    case("factory", ".factory/mcp.json"),
];

const fn case(id: &'static str, file: &'static str) -> Case {
    Case { id, dir: id, file }
}

#[test]
fn every_client_has_a_case() {
    let cased: HashSet<_> = CASES.iter().map(|case| case.id).collect();
    let known: HashSet<_> = clients().iter().map(|client| client.id).collect();
    assert_eq!(cased, known);
}

#[test]
fn an_entry_is_added_and_removed_without_a_trace() {
    for case in CASES {
        let home = case.home();
        let before = read(&case.golden("before"));
        let file = home.write(case.file, &before);
        let registrar = home.registrar();
        let target = case.target();
        let change = registrar.add(case.id, &server("time"), &target).unwrap();
        assert_eq!((change.done, &change.file), (Done::Added, &file), "{}", case.dir);
        case.check("added", &read(&file));
        let again = registrar.add(case.id, &server("time"), &target).unwrap();
        assert_eq!(again.done, Done::AlreadyThere, "{}", case.dir);
        case.check("added", &read(&file));
        let changes = remove(&registrar, case.id, "time", Purpose::ForGood);
        assert_eq!(changes[0].done, Done::Removed, "{}", case.dir);
        case.check("removed", &read(&file));
        assert_eq!(read(&file), before, "{}", case.dir);
    }
}

#[test]
fn a_missing_file_is_created_and_removed_again() {
    // Which version a file is of is seen in a file only.
    for case in CASES.iter().filter(|case| case.dir != "opencode-v2") {
        for (golden, target) in [("fresh", case.target()), ("stdio", stdio())] {
            let home = case.home();
            let file = home.path(case.file);
            let registrar = home.registrar();
            let change = registrar.add(case.id, &server("time"), &target).unwrap();
            assert_eq!(change.file, file, "{}", case.dir);
            case.check(golden, &read(&file));
            remove(&registrar, case.id, "time", Purpose::ForGood);
            assert!(!file.exists(), "{}", case.dir);
        }
    }
}

impl Case {
    /// A home directory in which the client is installed and has no file yet.
    fn home(&self) -> Home {
        let home = Home::new();
        fs::create_dir_all(home.path(self.file).parent().unwrap()).unwrap();
        home.install("gemini");
        home.install("claude");
        home
    }

    fn target(&self) -> Target {
        let client = Client::by_id(self.id).unwrap();
        if client.speaks_only_stdio() { stdio() } else { http() }
    }

    fn golden(&self, name: &str) -> PathBuf {
        let ending = Path::new(self.file).extension().unwrap();
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(self.dir);
        dir.join(name).with_extension(ending)
    }

    #[track_caller]
    fn check(&self, name: &str, text: &str) {
        let golden = self.golden(name);
        if switch("MAINSTAY_BLESS").is_some() {
            fs::write(&golden, text).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        assert!(expected == text, "{}:\n{text}", golden.display());
    }
}
