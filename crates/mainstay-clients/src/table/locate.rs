//! Where a client's file is, and whether the client is installed: pure functions of the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{Client, Evidence, Os, PathTemplate, Root};

/// What locating a client depends on.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    pub os: Os,
    pub home: &'a Path,
    /// Returns the value of an environment variable of the user.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Whether a file or directory exists.
    pub exists: &'a dyn Fn(&Path) -> bool,
    /// Whether a program is on the search path.
    pub on_path: &'a dyn Fn(&str) -> bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The file that the client reads, or would read.
    pub file: PathBuf,
    pub exists: bool,
    pub presence: Presence,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    Installed {
        /// The evidence, for users.
        why: String,
    },
    NotInstalled,
}

impl Client {
    pub fn locate(&self, host: &Environment<'_>) -> Located {
        let file = self.file(host);
        let exists = (host.exists)(&file);
        let presence = match self.evidence_found(host, &file, exists) {
            Some(why) => Presence::Installed { why },
            None => Presence::NotInstalled,
        };
        Located { file, exists, presence }
    }

    fn file(&self, host: &Environment<'_>) -> PathBuf {
        let said = self.overrides.iter().find_map(|template| host.resolve(*template));
        let there = || {
            self.files.iter().find_map(|candidate| {
                let applies_if = host.resolve(candidate.applies_if)?;
                (host.exists)(&applies_if).then(|| host.resolve(candidate.file))?
            })
        };
        let first = || self.files.iter().find_map(|candidate| host.resolve(candidate.file));
        said.or_else(there).or_else(first).expect("every client has a file on every system")
    }

    fn evidence_found(&self, host: &Environment<'_>, file: &Path, exists: bool) -> Option<String> {
        if exists {
            return Some(format!("{} exists", file.display()));
        }
        self.evidence.iter().find_map(|evidence| match evidence {
            Evidence::Path(template) => {
                let path = host.resolve(*template).filter(|path| (host.exists)(path))?;
                Some(format!("{} exists", path.display()))
            }
            Evidence::Program(name) => {
                (host.on_path)(name).then(|| format!("`{name}` is on the search path"))
            }
        })
    }
}

impl Environment<'_> {
    /// The path, if it is for this system and its root exists.
    fn resolve(&self, template: PathTemplate) -> Option<PathBuf> {
        if !template.systems.contains(&self.os) {
            return None;
        }
        let mut path = self.root(template.root)?;
        path.extend(template.path.split('/').filter(|part| !part.is_empty()));
        Some(path)
    }

    fn root(&self, root: Root) -> Option<PathBuf> {
        match (root, self.os) {
            (Root::Home, _) => Some(self.home.to_owned()),
            (Root::App, Os::MacOs) => Some(self.home.join("Library").join("Application Support")),
            (Root::App, Os::Windows) => {
                let usual = || self.home.join("AppData").join("Roaming");
                Some(self.variable("APPDATA").unwrap_or_else(usual))
            }
            (Root::App, Os::Linux) | (Root::Xdg, _) => {
                let usual = || self.home.join(".config");
                Some(self.variable("XDG_CONFIG_HOME").unwrap_or_else(usual))
            }
            (Root::Variable(name), _) => self.variable(name),
        }
    }

    /// A path from the environment. A relative one depends on the client's working directory, which is unknown.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let value = (self.env)(name)?;
        is_absolute(self.os, &value).then(|| PathBuf::from(value))
    }
}

/// Whether a path is absolute on a system, which may differ from the current one.
fn is_absolute(os: Os, path: &str) -> bool {
    match os {
        Os::Linux | Os::MacOs => path.starts_with('/'),
        Os::Windows => {
            path.starts_with(r"\\")
                || matches!(path.as_bytes(), [drive, b':', b'\\' | b'/', ..] if drive.is_ascii_alphabetic())
        }
    }
}

/// A user on this machine. The caller reads the environment once.
#[derive(Debug, Clone)]
pub struct Machine {
    pub home: PathBuf,
    pub env: BTreeMap<String, String>,
}

impl Machine {
    /// Calls `look` with the environment of this machine.
    pub fn look<T>(&self, look: impl FnOnce(&Environment<'_>) -> T) -> T {
        look(&Environment {
            os: if cfg!(target_os = "macos") { Os::MacOs } else { Os::Linux },
            home: &self.home,
            env: &|name| self.env.get(name).cloned(),
            exists: &Path::exists,
            on_path: &|program| self.finds(program),
        })
    }

    fn finds(&self, program: &str) -> bool {
        let path = self.env.get("PATH").map(String::as_str).unwrap_or_default();
        std::env::split_paths(path).any(|dir| {
            let file = dir.join(program);
            dir.is_absolute() && file.is_file() && access(&file, Access::EXEC_OK).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Checks where a client's file is, given variables and what exists.
    #[track_caller]
    fn check(os: Os, id: &str, env: &[(&str, &str)], there: &[&str], file: &str, installed: bool) {
        let located = locate(os, id, env, there);
        assert_eq!(located.file, Path::new(file), "{id}");
        assert_eq!(located.presence != Presence::NotInstalled, installed, "{id}: {located:?}");
        assert_eq!(located.exists, there.contains(&file), "{id}");
    }

    fn locate(os: Os, id: &str, env: &[(&str, &str)], there: &[&str]) -> Located {
        let home = match os {
            Os::Linux => "/home/ann",
            Os::MacOs => "/Users/ann",
            Os::Windows => r"C:\Users\ann",
        };
        let host = Environment {
            os,
            home: Path::new(home),
            env: &|name| {
                env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            },
            exists: &|path| there.iter().any(|there| Path::new(there) == path),
            on_path: &|program| there.contains(&program),
        };
        Client::by_id(id).expect("a known client").locate(&host)
    }

    #[test]
    fn every_row_has_its_place_on_each_system() {
        let rows = [
            ("cursor", "~/.cursor/mcp.json", "~/.cursor/mcp.json", "~/.cursor/mcp.json"),
            (
                "vscode",
                "{c}/Code/User/mcp.json",
                "{a}/Code/User/mcp.json",
                "{w}/Code/User/mcp.json",
            ),
            (
                "vscode-insiders",
                "{c}/Code - Insiders/User/mcp.json",
                "{a}/Code - Insiders/User/mcp.json",
                "{w}/Code - Insiders/User/mcp.json",
            ),
            (
                "vscode-server",
                "~/.vscode-server/data/User/mcp.json",
                "~/.vscode-server/data/User/mcp.json",
                "~/.vscode-server/data/User/mcp.json",
            ),
            (
                "cline",
                "~/.cline/data/settings/cline_mcp_settings.json",
                "~/.cline/data/settings/cline_mcp_settings.json",
                "~/.cline/data/settings/cline_mcp_settings.json",
            ),
            ("claude-code", "~/.claude.json", "~/.claude.json", "~/.claude.json"),
            (
                "claude-desktop",
                "{c}/Claude/claude_desktop_config.json",
                "{a}/Claude/claude_desktop_config.json",
                "{w}/Claude/claude_desktop_config.json",
            ),
            ("codex", "~/.codex/config.toml", "~/.codex/config.toml", "~/.codex/config.toml"),
            (
                "opencode",
                "{c}/opencode/opencode.jsonc",
                "{c}/opencode/opencode.jsonc",
                "{c}/opencode/opencode.jsonc",
            ),
            ("zed", "{c}/zed/settings.json", "{c}/zed/settings.json", "{w}/Zed/settings.json"),
            (
                "devin",
                "{c}/devin/mcp_config.json",
                "{c}/devin/mcp_config.json",
                "{w}/devin/mcp_config.json",
            ),
        ];
        for (id, linux, mac, windows) in rows {
            for (os, home, row) in [
                (Os::Linux, "/home/ann", linux),
                (Os::MacOs, "/Users/ann", mac),
                (Os::Windows, r"C:\Users\ann", windows),
            ] {
                let file = row
                    .replace("{c}", "~/.config")
                    .replace("{a}", "~/Library/Application Support")
                    .replace("{w}", "~/AppData/Roaming")
                    .replace('~', home);
                check(os, id, &[], &[], &file, false);
            }
        }
    }

    #[test]
    fn variables_move_files_if_they_name_an_absolute_path() {
        check(Os::Linux, "codex", &[("CODEX_HOME", "/x")], &[], "/x/config.toml", false);
        check(
            Os::Linux,
            "codex",
            &[("CODEX_HOME", "x")],
            &[],
            "/home/ann/.codex/config.toml",
            false,
        );
        check(
            Os::Linux,
            "codex",
            &[("CODEX_HOME", "")],
            &[],
            "/home/ann/.codex/config.toml",
            false,
        );
        check(
            Os::Linux,
            "copilot-cli",
            &[("COPILOT_HOME", "/x")],
            &[],
            "/x/mcp-config.json",
            false,
        );
        check(
            Os::Linux,
            "claude-code",
            &[("CLAUDE_CONFIG_DIR", "/x")],
            &[],
            "/x/.claude.json",
            false,
        );
        check(
            Os::Linux,
            "vscode",
            &[("XDG_CONFIG_HOME", "/x")],
            &[],
            "/x/Code/User/mcp.json",
            false,
        );
        let roaming = [("APPDATA", r"D:\roam")];
        check(Os::Windows, "vscode", &roaming, &[], r"D:\roam/Code/User/mcp.json", false);
        let both = [("CLINE_DIR", "/d"), ("CLINE_MCP_SETTINGS_PATH", "/f.json")];
        check(Os::Linux, "cline", &both, &["/f.json"], "/f.json", true);
        let flatpak = [("FLATPAK_XDG_CONFIG_HOME", "/flat")];
        check(Os::Linux, "zed", &flatpak, &[], "/flat/zed/settings.json", false);
        check(Os::MacOs, "zed", &flatpak, &[], "/Users/ann/.config/zed/settings.json", false);
    }

    #[test]
    fn cline_is_met_in_the_file_it_reads() {
        let new = "/home/ann/.cline/data/settings/cline_mcp_settings.json";
        let dir = "/home/ann/.config/Code/User/globalStorage/saoudrizwan.claude-dev";
        let legacy = format!("{dir}/settings/cline_mcp_settings.json");
        check(Os::Linux, "cline", &[], &["/home/ann/.cline/data", dir, &legacy], new, true);
        check(Os::Linux, "cline", &[], &[dir, &legacy], &legacy, true);
        check(Os::Linux, "cline", &[], &[dir], &legacy, true);
        check(Os::Linux, "cline", &[], &["/home/ann/.cline"], new, false);
    }

    #[test]
    fn of_opencodes_files_the_first_that_exists_is_the_one() {
        let [jsonc, json, old] = ["opencode.jsonc", "opencode.json", "config.json"]
            .map(|name| format!("/home/ann/.config/opencode/{name}"));
        check(Os::Linux, "opencode", &[], &[&old], &old, true);
        check(Os::Linux, "opencode", &[], &[&old, &json], &json, true);
        check(Os::Linux, "opencode", &[], &[&old, &json, &jsonc], &jsonc, true);
        check(Os::Linux, "opencode", &[], &["opencode"], &jsonc, true);
    }

    #[test]
    fn the_directory_that_gemini_shares_does_not_show_it() {
        let file = "/home/ann/.gemini/settings.json";
        check(Os::Linux, "gemini-cli", &[], &["/home/ann/.gemini"], file, false);
        check(Os::Linux, "gemini-cli", &[], &["/home/ann/.gemini", file], file, true);
        check(Os::Linux, "gemini-cli", &[], &["gemini"], file, true);
    }

    #[test]
    fn people_are_told_what_shows_a_client() {
        let by_directory = locate(Os::Linux, "cursor", &[], &["/home/ann/.cursor"]);
        let why = "/home/ann/.cursor exists".to_owned();
        assert_eq!(by_directory.presence, Presence::Installed { why });
        let by_program = locate(Os::Linux, "cursor", &[], &["cursor"]);
        let why = "`cursor` is on the search path".to_owned();
        assert_eq!(by_program.presence, Presence::Installed { why });
    }

    #[test]
    fn a_program_is_on_the_search_path_if_it_can_be_run() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("cursor");
        let path = format!("relative:{}", dir.path().display());
        let machine = Machine {
            home: dir.path().to_owned(),
            env: BTreeMap::from([("PATH".to_owned(), path)]),
        };
        let found = || machine.look(|host| (host.on_path)("cursor"));
        assert!(!found());
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(!found());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(found());
    }
}
