//! Where a client's file is, and whether the client is installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{Client, Evidence, PathTemplate, Root};

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
    pub fn locate(&self, machine: &Machine) -> Located {
        let file = self.file(machine);
        let exists = file.exists();
        let found = if exists { Some(exists_text(&file)) } else { self.evidence_found(machine) };
        let presence = found.map_or(Presence::NotInstalled, |why| Presence::Installed { why });
        Located { file, exists, presence }
    }

    fn file(&self, machine: &Machine) -> PathBuf {
        let resolve = |template| machine.resolve(template);
        let set = self.overrides.iter().copied().find_map(resolve);
        let present = || {
            self.files.iter().find_map(|candidate| {
                resolve(candidate.applies_if)?.exists().then(|| resolve(candidate.file))?
            })
        };
        let first = || self.files.iter().find_map(|candidate| resolve(candidate.file));
        set.or_else(present).or_else(first).expect("every client has a file")
    }

    fn evidence_found(&self, machine: &Machine) -> Option<String> {
        self.evidence.iter().find_map(|evidence| match evidence {
            Evidence::Path(template) => {
                let path = machine.resolve(*template)?;
                path.exists().then(|| exists_text(&path))
            }
            Evidence::Program(name) => {
                machine.finds(name).then(|| format!("`{name}` is on the search path"))
            }
        })
    }
}

fn exists_text(path: &Path) -> String {
    format!("{} exists", path.display())
}

/// A user on this machine. The caller reads the environment once.
#[derive(Debug, Clone)]
pub struct Machine {
    pub home: PathBuf,
    pub env: BTreeMap<String, String>,
}

impl Machine {
    /// The path, if its root exists.
    fn resolve(&self, template: PathTemplate) -> Option<PathBuf> {
        let root = match template.root {
            Root::Home => self.home.clone(),
            Root::Config => {
                self.variable("XDG_CONFIG_HOME").unwrap_or_else(|| self.home.join(".config"))
            }
            Root::Variable(name) => self.variable(name)?,
        };
        Some(if template.path.is_empty() { root } else { root.join(template.path) })
    }

    /// A path from the environment. A relative one depends on the client's working directory, which is unknown.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        self.env.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
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

    use tempfile::TempDir;

    use super::*;

    /// Checks where a client's file is, given variables and what exists. Paths are below a directory of the test, and
    /// `~` is the home there; a name without a slash is a program on the search path.
    #[track_caller]
    fn check(id: &str, env: &[(&str, &str)], present: &[&str], file: &str, installed: bool) {
        let (root, located) = locate(id, env, present);
        assert_eq!(located.file, at(root.path(), file), "{id}");
        assert_eq!(located.presence != Presence::NotInstalled, installed, "{id}: {located:?}");
        assert_eq!(located.exists, present.contains(&file), "{id}");
    }

    fn locate(id: &str, env: &[(&str, &str)], present: &[&str]) -> (TempDir, Located) {
        let root = tempfile::tempdir().unwrap();
        for path in present {
            let path = at(root.path(), path);
            let is_file = path.extension().is_some_and(|extension| extension != "claude-dev");
            if is_file || path.starts_with(at(root.path(), "/bin")) {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, "").unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            } else {
                fs::create_dir_all(path).unwrap();
            }
        }
        let set = env.iter().map(|(name, value)| {
            let value = if value.starts_with('/') { at(root.path(), value) } else { value.into() };
            ((*name).to_owned(), value.to_str().unwrap().to_owned())
        });
        let bin = at(root.path(), "/bin").to_str().unwrap().to_owned();
        let env = set.chain([("PATH".to_owned(), bin)]).collect();
        let machine = Machine { home: at(root.path(), "~"), env };
        let located = Client::by_id(id).expect("a known client").locate(&machine);
        (root, located)
    }

    fn at(root: &Path, path: &str) -> PathBuf {
        match path.split_once('/') {
            Some(("~", rest)) => root.join("home/ann").join(rest),
            Some(("", rest)) => root.join(rest),
            _ if path == "~" => root.join("home/ann"),
            _ => root.join("bin").join(path),
        }
    }

    #[test]
    fn every_client_has_its_file() {
        for (id, file) in [
            ("cursor", "~/.cursor/mcp.json"),
            ("vscode", "~/.config/Code/User/mcp.json"),
            ("vscode-insiders", "~/.config/Code - Insiders/User/mcp.json"),
            ("vscode-server", "~/.vscode-server/data/User/mcp.json"),
            ("cline", "~/.cline/data/settings/cline_mcp_settings.json"),
            ("claude-code", "~/.claude.json"),
            ("claude-desktop", "~/.config/Claude/claude_desktop_config.json"),
            ("codex", "~/.codex/config.toml"),
            ("opencode", "~/.config/opencode/opencode.jsonc"),
            ("zed", "~/.config/zed/settings.json"),
            ("devin", "~/.config/devin/mcp_config.json"),
        ] {
            check(id, &[], &[], file, false);
        }
    }

    #[test]
    fn variables_move_files_if_they_name_an_absolute_path() {
        check("codex", &[("CODEX_HOME", "/x")], &[], "/x/config.toml", false);
        check("codex", &[("CODEX_HOME", "x")], &[], "~/.codex/config.toml", false);
        check("codex", &[("CODEX_HOME", "")], &[], "~/.codex/config.toml", false);
        check("copilot-cli", &[("COPILOT_HOME", "/x")], &[], "/x/mcp-config.json", false);
        check("claude-code", &[("CLAUDE_CONFIG_DIR", "/x")], &[], "/x/.claude.json", false);
        check("vscode", &[("XDG_CONFIG_HOME", "/x")], &[], "/x/Code/User/mcp.json", false);
        let both = [("CLINE_DIR", "/d"), ("CLINE_MCP_SETTINGS_PATH", "/f.json")];
        check("cline", &both, &["/f.json"], "/f.json", true);
        let flatpak = [("FLATPAK_XDG_CONFIG_HOME", "/flat")];
        check("zed", &flatpak, &[], "/flat/zed/settings.json", false);
    }

    #[test]
    fn cline_uses_the_file_that_it_reads() {
        let new = "~/.cline/data/settings/cline_mcp_settings.json";
        let dir = "~/.config/Code/User/globalStorage/saoudrizwan.claude-dev";
        let legacy = format!("{dir}/settings/cline_mcp_settings.json");
        check("cline", &[], &["~/.cline/data", dir, &legacy], new, true);
        check("cline", &[], &[dir, &legacy], &legacy, true);
        check("cline", &[], &[dir], &legacy, true);
        check("cline", &[], &["~/.cline"], new, false);
    }

    #[test]
    fn opencode_uses_the_first_file_that_exists() {
        let [jsonc, json, old] = ["opencode.jsonc", "opencode.json", "config.json"]
            .map(|name| format!("~/.config/opencode/{name}"));
        check("opencode", &[], &[&old], &old, true);
        check("opencode", &[], &[&old, &json], &json, true);
        check("opencode", &[], &[&old, &json, &jsonc], &jsonc, true);
        check("opencode", &[], &["opencode"], &jsonc, true);
    }

    #[test]
    fn the_directory_that_gemini_shares_is_not_evidence() {
        let file = "~/.gemini/settings.json";
        check("gemini-cli", &[], &["~/.gemini"], file, false);
        check("gemini-cli", &[], &["~/.gemini", file], file, true);
        check("gemini-cli", &[], &["gemini"], file, true);
    }

    #[test]
    fn the_evidence_is_reported() {
        let (root, by_directory) = locate("cursor", &[], &["~/.cursor"]);
        let why = format!("{} exists", at(root.path(), "~/.cursor").display());
        assert_eq!(by_directory.presence, Presence::Installed { why });
        let (_root, by_program) = locate("cursor", &[], &["cursor"]);
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
        let found = || machine.finds("cursor");
        assert!(!found());
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(!found());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(found());
    }
}
