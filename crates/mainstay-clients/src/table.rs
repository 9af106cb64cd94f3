//! The AI clients as data: where each keeps its servers, what an entry looks like, and how to detect that it is
//! installed.
//!
//! Everything that differs between clients is in its row; no code depends on a client's name.

mod entry;
mod locate;
mod rows;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::edit::Format;

pub use entry::{OnlyStdio, Target};
pub use locate::{Located, Machine, Presence};

pub fn clients() -> &'static [Client] {
    rows::CLIENTS
}

/// The environment variables on which paths of files depend, each once.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let paths = clients().iter().flat_map(Client::paths);
    let names: BTreeSet<_> = paths.filter_map(|template| template.root.variable()).collect();
    names.into_iter()
}

#[derive(Debug)]
pub struct Client {
    /// The name on our command line.
    pub id: &'static str,
    /// The vendor's name for it.
    pub product: &'static str,
    /// The file it reads if a variable is set. The first one whose variable is set applies.
    pub overrides: &'static [PathTemplate],
    /// The files it reads otherwise. The first one that [applies](Candidate::applies_if) is used; if none does, the
    /// first one is created.
    pub files: &'static [Candidate],
    pub format: Format,
    /// Where in the file its servers are.
    pub keys: Keys,
    /// An entry for an HTTP endpoint; nothing if the client supports only stdio.
    pub http: Option<Template>,
    /// An entry for a command.
    pub stdio: Template,
    /// The fields that Mainstay owns, of all templates. The other fields of an entry are the user's.
    pub owned: &'static [&'static str],
    /// What proves that the client is installed. An existing config file always does.
    pub evidence: &'static [Evidence],
    /// How the client locks its file, if it does.
    pub lock: Option<LockProtocol>,
    /// The effect of a refresh.
    pub refresh: Refresh,
    /// Whether it rejects a file with a byte order mark, and so every server in it.
    pub rejects_bom: bool,
}

impl Client {
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

    /// Whether the client rejects a file that we can read.
    pub fn rejects(&self, text: &str) -> bool {
        self.rejects_bom && text.starts_with('\u{feff}')
    }

    /// Whether an entry must have a command and cannot have a URL.
    pub fn speaks_only_stdio(&self) -> bool {
        self.http.is_none()
    }
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    Home,
    /// `$XDG_CONFIG_HOME` or `~/.config`.
    Config,
    /// The value of a variable. If it is not set, or not absolute, the path does not exist.
    Variable(&'static str),
}

impl Root {
    /// The variable that it depends on.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Home => None,
            Self::Config => Some("XDG_CONFIG_HOME"),
            Self::Variable(name) => Some(name),
        }
    }
}

/// A file or directory below a root.
#[derive(Debug, Clone, Copy)]
pub struct PathTemplate {
    pub root: Root,
    /// The rest; empty for the root itself.
    pub path: &'static str,
}

/// A file from which a client may read its servers.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub file: PathTemplate,
    /// The file is used if this exists: the file itself, or a directory that only this version of the client has.
    pub applies_if: PathTemplate,
}

/// What proves that a client is installed.
#[derive(Debug, Clone, Copy)]
pub enum Evidence {
    /// A file or directory of the client.
    Path(PathTemplate),
    /// A program on the search path.
    Program(&'static str),
}

/// Where in a file the servers are, as literal keys.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// Always there.
    At(&'static [&'static str]),
    /// One level deeper in files of a newer format.
    Either {
        /// Where they are in files of the older format, and in new files.
        flat: &'static [&'static str],
        /// Where they are in files of the newer format.
        nested: &'static [&'static str],
        /// Maps beside the servers that only files of the newer format have.
        markers: &'static [&'static str],
    },
}

pub type Template = &'static [(&'static str, Slot)];

/// The value of a field of a new entry.
#[derive(Debug, Clone, Copy)]
pub enum Slot {
    Url,
    Command,
    Args,
    /// Program and arguments as one list.
    CommandLine,
    Text(&'static str),
}

/// What a client does when its entry is removed and added again, with the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refresh {
    /// It reconnects, which it may not do otherwise.
    Helps(&'static str),
    /// It is worse off.
    Harms(&'static str),
    /// It does not notice, and sessions that start meanwhile lack the server.
    Useless(&'static str),
}

impl Refresh {
    /// Whether the client is refreshed.
    pub fn helps(self) -> bool {
        match self {
            Self::Helps(_) => true,
            Self::Harms(_) | Self::Useless(_) => false,
        }
    }

    /// The name and the evidence.
    pub fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Helps(evidence) => ("helps", evidence),
            Self::Harms(evidence) => ("harms", evidence),
            Self::Useless(evidence) => ("useless", evidence),
        }
    }
}

/// How a client locks its file while it writes: with a directory `<file>.lock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockProtocol {
    /// Whether the directory contains a marker of its owner and is renamed into place. Otherwise it is empty, as
    /// `proper-lockfile` creates it.
    pub has_marker: bool,
    /// The age at which a lock is stale.
    pub stale: Duration,
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
    fn every_client_has_a_file() {
        for client in clients() {
            let is_fixed =
                |candidate: &Candidate| !matches!(candidate.file.root, Root::Variable(_));
            assert!(client.files.iter().any(is_fixed), "{}: no file", client.id);
        }
    }

    #[test]
    fn every_variable_is_named_once() {
        let names: Vec<_> = variables().collect();
        for name in ["CLINE_MCP_SETTINGS_PATH", "CODEX_HOME", "XDG_CONFIG_HOME"] {
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
