//! A home directory with clients in it, and a state directory of ours.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mainstay_clients::{Change, Machine, Purpose, Registrar, Target};
use mainstay_core::ServerName;
use tempfile::TempDir;

/// What most tests add.
pub(crate) const URL: &str = "http://127.0.0.1:7433/time/mcp";

pub(crate) struct Home {
    dir: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let home = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(home.path("bin")).unwrap();
        home
    }

    /// A path below the home directory.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("home").join(path)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("state")
    }

    /// Puts a program on the search path.
    pub(crate) fn install(&self, program: &str) {
        let path = self.path("bin").join(program);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Writes a file, with the directories it is in.
    pub(crate) fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn registrar(&self) -> Registrar {
        Registrar::new(self.state(), self.machine())
    }

    pub(crate) fn machine(&self) -> Machine {
        let path = self.path("bin").display().to_string();
        Machine { home: self.path(""), env: BTreeMap::from([("PATH".to_owned(), path)]) }
    }
}

/// A switch of the tests themselves.
#[expect(clippy::disallowed_methods, reason = "what is tested reads no environment")]
pub(crate) fn switch(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub(crate) fn server(name: &str) -> ServerName {
    name.parse().unwrap()
}

/// Takes an entry out of all files of a client.
pub(crate) fn remove(
    registrar: &Registrar,
    client: &str,
    name: &str,
    purpose: Purpose,
) -> Vec<Change> {
    let done = registrar.remove(client, &server(name), purpose).into_iter();
    done.collect::<Result<_, _>>().unwrap()
}

/// Makes everything in the ledger look as if it had been written long ago.
pub(crate) fn age(home: &Home) {
    age_ledger(&home.state());
}

/// The same, for the ledger in a state directory.
pub(crate) fn age_ledger(state: &Path) {
    let ledger = state.join("clients.json");
    let mut json: serde_json::Value = serde_json::from_str(&read(&ledger)).unwrap();
    for record in json["records"].as_array_mut().unwrap() {
        record["at"] = "2020-01-01T00:00:00Z".into();
    }
    fs::write(&ledger, json.to_string()).unwrap();
}

pub(crate) fn http() -> Target {
    Target::Http { url: URL.to_owned() }
}

pub(crate) fn stdio() -> Target {
    let args = vec!["connect".to_owned(), "time".to_owned()];
    Target::Stdio { command: "mainstay".to_owned(), args }
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
