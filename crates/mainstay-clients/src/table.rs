//! The AI clients as data: where each keeps its servers, what an entry looks like, and how to tell that
//! the client is there.
//!
//! A row says everything that differs between clients; no code knows a client by name. Rows are read
//! against [`Environment`], which are passed in, so every system's rows can be tried on any system.

mod entry;
mod locate;
mod rows;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::edit::Format;

pub use entry::{Entry, OnlyStdio, Target};
pub use locate::{Environment, Located, Machine, Presence};

/// Every client we know.
pub fn clients() -> &'static [Client] {
    rows::CLIENTS
}

/// The names of all variables that the places of files depend on, each once.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let paths = clients().iter().flat_map(Client::paths);
    let names: BTreeSet<_> =
        paths.flat_map(|template| template.root.variables()).flatten().collect();
    names.into_iter()
}

/// One AI client.
#[derive(Debug)]
pub struct Client {
    /// What it is called on our command line.
    pub id: &'static str,
    /// What its makers call it.
    pub product: &'static str,
    /// The file it reads when a variable says so. The first whose variable is set is the one.
    pub overrides: &'static [PathTemplate],
    /// The files it reads otherwise. The first that [applies](Candidate::applies_if) is the one; if
    /// none does, the first for this system is the one to create.
    pub files: &'static [Candidate],
    /// How its file is written.
    pub format: Format,
    /// Where in the file its servers are.
    pub keys: Keys,
    /// What an entry for an HTTP endpoint looks like; nothing if the client speaks stdio only.
    pub http: Option<Template>,
    /// What an entry for a command looks like.
    pub stdio: Template,
    /// The fields of an entry that are ours, over all templates. The rest of an entry is the user's.
    pub owned: &'static [&'static str],
    /// What shows that the client is installed. An existing config file always does.
    pub evidence: &'static [Evidence],
    /// How the client itself keeps others from writing its file.
    pub lock: LockProtocol,
    /// What a refresh does to it.
    pub refresh: Refresh,
    /// Whether it rejects a file that begins with a byte order mark, with every server in it.
    pub rejects_bom: bool,
}

impl Client {
    /// The client of that id.
    pub fn by_id(id: &str) -> Option<&'static Self> {
        clients().iter().find(|client| client.id == id)
    }

    fn paths(&self) -> impl Iterator<Item = PathTemplate> {
        let files = self.files.iter().flat_map(|one| [one.file, one.applies_if]);
        let evidence = self.evidence.iter().filter_map(|evidence| match evidence {
            Evidence::Path(template) => Some(*template),
            Evidence::Program(_) => None,
        });
        self.overrides.iter().copied().chain(files).chain(evidence)
    }

    /// Whether the client would not read a file that says this, although we can.
    pub fn rejects(&self, text: &str) -> bool {
        self.rejects_bom && text.starts_with('\u{feff}')
    }

    /// Whether an entry can only name a command, never a URL.
    pub fn speaks_only_stdio(&self) -> bool {
        self.http.is_none()
    }
}

/// An operating system with rows of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Os {
    /// Linux, and what resembles it.
    Linux,
    /// macOS.
    MacOs,
    /// Windows.
    Windows,
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The user's home directory.
    Home,
    /// Where applications keep their settings: `$XDG_CONFIG_HOME` or `~/.config`,
    /// `~/Library/Application Support`, `%APPDATA%`.
    App,
    /// `$XDG_CONFIG_HOME` or `~/.config`, on every system.
    Xdg,
    /// What a variable says. Where it is not set, or not absolute, the template does not exist.
    Variable(&'static str),
}

impl Root {
    /// The variables that it depends on, on any system.
    fn variables(self) -> [Option<&'static str>; 2] {
        match self {
            Self::Home => [None, None],
            Self::App => [Some("XDG_CONFIG_HOME"), Some("APPDATA")],
            Self::Xdg => [Some("XDG_CONFIG_HOME"), None],
            Self::Variable(name) => [Some(name), None],
        }
    }
}

/// A file or directory, below a root.
#[derive(Debug, Clone, Copy)]
pub struct PathTemplate {
    /// Where it begins.
    pub root: Root,
    /// The rest, with `/` between its parts; empty for the root itself.
    pub path: &'static str,
    /// The systems it is for.
    pub systems: &'static [Os],
}

/// A file that a client may read its servers from.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The file.
    pub file: PathTemplate,
    /// It is the one if this exists: the file itself, or a directory that only this version of the
    /// client has.
    pub applies_if: PathTemplate,
}

/// Something that shows that a client is installed.
#[derive(Debug, Clone, Copy)]
pub enum Evidence {
    /// A file or directory of the client's own.
    Path(PathTemplate),
    /// A program on the search path.
    Program(&'static str),
}

/// Where in a file the servers are, as literal keys.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// Always there.
    At(&'static [&'static str]),
    /// One level deeper in files of the newer kind.
    Either {
        /// Where they are in files of the older kind, and in new files.
        flat: &'static [&'static str],
        /// Where they are in files of the newer kind.
        nested: &'static [&'static str],
        /// What stands beside servers in the flat place of a newer file; a map that is no entry.
        markers: &'static [&'static str],
    },
}

/// The fields of a new entry, in order.
pub type Template = &'static [(&'static str, Slot)];

/// What a field of a new entry holds.
#[derive(Debug, Clone, Copy)]
pub enum Slot {
    /// The endpoint's URL.
    Url,
    /// The program.
    Command,
    /// Its arguments, a list.
    Args,
    /// The program and its arguments, one list.
    CommandLine,
    /// This text.
    Text(&'static str),
}

/// What happens in a client when its entry is taken out and added again, with the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refresh {
    /// It connects again, which it may not do by itself.
    Helps(&'static str),
    /// It ends up worse than without.
    Harms(&'static str),
    /// It does not see the change while it runs, and sessions that begin meanwhile lack the server.
    Useless(&'static str),
}

impl Refresh {
    /// Whether the client gets one.
    pub fn helps(self) -> bool {
        match self {
            Self::Helps(_) => true,
            Self::Harms(_) | Self::Useless(_) => false,
        }
    }

    /// The word for it, and the evidence.
    pub fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Helps(evidence) => ("helps", evidence),
            Self::Harms(evidence) => ("harms", evidence),
            Self::Useless(evidence) => ("useless", evidence),
        }
    }
}

/// How a client keeps others from writing its file while it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockProtocol {
    /// It does not.
    None,
    /// An empty directory `<file>.lock`, as proper-lockfile makes it.
    EmptyDirectory {
        /// The age from which on a lock has been left behind.
        stale: Duration,
    },
    /// A directory `<file>.lock` with its owner's marker in it, moved into place whole.
    OwnedDirectory {
        /// The age from which on a lock has been left behind.
        stale: Duration,
    },
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_every_written_field_is_owned() {
        let mut ids = HashSet::new();
        for client in clients() {
            assert!(ids.insert(client.id), "{} twice", client.id);
            let written = client.http.unwrap_or_default().iter().chain(client.stdio);
            for (field, _) in written {
                assert!(
                    client.owned.contains(field),
                    "{}: {field} is written, not owned",
                    client.id
                );
            }
        }
    }

    #[test]
    fn every_client_has_a_file_on_every_system() {
        for client in clients() {
            for os in [Os::Linux, Os::MacOs, Os::Windows] {
                let for_os = |candidate: &Candidate| candidate.file.systems.contains(&os);
                assert!(client.files.iter().any(for_os), "{}: no file on {os:?}", client.id);
            }
        }
    }

    #[test]
    fn every_variable_is_named_once() {
        let names: Vec<_> = variables().collect();
        for name in ["APPDATA", "CLINE_MCP_SETTINGS_PATH", "CODEX_HOME", "XDG_CONFIG_HOME"] {
            assert_eq!(names.iter().filter(|one| **one == name).count(), 1, "{names:?}");
        }
        assert!(!names.contains(&"PATH"));
    }

    #[test]
    fn a_client_is_found_by_its_id() {
        assert_eq!(Client::by_id("zed").map(|client| client.product), Some("Zed"));
        assert!(Client::by_id("ZED").is_none());
    }
}
