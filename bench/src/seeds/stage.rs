//! Where the rows are played: one Mainstay, its servers, and one client for each of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::client::Client;
use super::screen::Seen;
use crate::restarts::Death;
use crate::rig::{BenchError, Event, Instance, Server, kill};

/// The row that looks back on all others.
pub(super) const SESSIONS: &str = "all of the above";
/// How long to wait for anything.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// How often `ls` is asked.
pub(super) const POLL: Duration = Duration::from_millis(20);
/// How often a file is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// What the user of Cursor has in its file, in a form of their own.
const CURSOR: &str = r#"{
   "mcpServers" : {
     "mine": { "command": "npx", "args": ["-y", "my-server"] },  "other":{"url":"https://example.org/mcp"}
   },
   "theirs": [1,2 , 3]
}"#;

/// The stage.
pub(super) struct Stage<'a> {
    pub(super) instance: &'a Instance,
    /// Where the program is installed.
    pub(super) bin: &'a Path,
    clients: BTreeMap<&'static str, Client>,
}

impl<'a> Stage<'a> {
    /// A home with Cursor in it, and a Mainstay without servers.
    pub(super) fn new(instance: &'a Instance, bin: &'a Path) -> Result<Self, BenchError> {
        let stage = Self { instance, bin, clients: BTreeMap::new() };
        let file = stage.cursor();
        let folder = file.parent().expect("the file is in a folder");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, CURSOR))
            .map_err(BenchError::SetUp)?;
        Ok(stage)
    }

    /// Runs a server until it is ready, and has its client connect.
    pub(super) async fn run(
        &mut self,
        name: &'static str,
        options: &[&str],
        command: &[&str],
    ) -> Result<(), BenchError> {
        let words = [&["run", name, "--wait"], options, &["--"], command].concat();
        self.instance.mainstay(&words).await?;
        self.clients.insert(name, Client::open(&self.instance.url(name)).await?);
        Ok(())
    }

    /// The client of a server.
    pub(super) fn client(&mut self, name: &str) -> Result<&mut Client, BenchError> {
        let none = || BenchError::Wrong(format!("`{name}` has no client, an earlier row failed"));
        self.clients.get_mut(name).ok_or_else(none)
    }

    /// Takes the client of a server that is to be removed.
    pub(super) fn take_client(&mut self, name: &str) -> Option<Client> {
        self.clients.remove(name)
    }

    /// A server as `ls` shows it.
    pub(super) async fn server(&self, name: &str) -> Result<Server, BenchError> {
        let listed = self.find(name).await?;
        listed.ok_or_else(|| BenchError::Untold { server: name.to_owned(), what: "entry" })
    }

    /// The same, if there is such a server.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Server>, BenchError> {
        let servers = self.instance.all_servers().await?;
        Ok(servers.into_iter().find(|server| server.name == name))
    }

    /// The process of a server.
    pub(super) async fn pid(&self, name: &str) -> Result<u32, BenchError> {
        let pid = self.server(name).await?.pid;
        pid.ok_or_else(|| BenchError::Untold { server: name.to_owned(), what: "pid" })
    }

    /// Waits until something is true of a server.
    pub(super) async fn until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&Server) -> bool,
    ) -> Result<Server, BenchError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let server = self.server(name).await?;
            if holds(&server) {
                return Ok(server);
            }
            if Instant::now() >= deadline {
                return Err(BenchError::Wrong(format!("{what} never came; at last: {server:?}")));
            }
            sleep(POLL).await;
        }
    }

    /// What happened to a server, oldest first.
    pub(super) async fn events(&self, name: &str) -> Result<Vec<Event>, BenchError> {
        let command = ["events", name, "--json"];
        let printed = self.instance.mainstay(&command).await?;
        let lines = serde_json::Deserializer::from_slice(&printed).into_iter();
        lines
            .collect::<Result<_, _>>()
            .map_err(|source| BenchError::Unreadable { command: command.join(" "), source })
    }

    /// What Cursor reads.
    pub(super) fn entries(&self) -> Result<String, BenchError> {
        fs::read_to_string(self.cursor()).map_err(BenchError::SetUp)
    }

    /// Waits until Cursor reads exactly this.
    pub(super) async fn until_entries(&self, expected: &str) -> Result<(), BenchError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let text = self.entries()?;
            if text == expected {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let told = format!("the file of Cursor is not `{expected}` but `{text}`");
                return Err(BenchError::Wrong(told));
            }
            sleep(LOOK).await;
        }
    }

    /// Looks back: every client has the one session it opened at first.
    pub(super) async fn sessions(&mut self) -> Result<Seen, BenchError> {
        let mut ids = Vec::new();
        for (name, client) in &mut self.clients {
            client.echo().await?;
            let sent = client.initializes();
            check(sent == 1, || format!("the client of `{name}` sent {sent} `initialize`"))?;
            let id = client.session().map(str::to_owned);
            ids.push(id.ok_or_else(|| BenchError::Wrong(format!("`{name}` gave no session")))?);
        }
        for name in self.clients.keys() {
            let count = self.server(name).await?.sessions;
            check(count == 1, || format!("`{name}` has {count} sessions"))?;
        }
        ids.sort();
        ids.dedup();
        let (sessions, servers) = (ids.len(), self.clients.len());
        check(sessions == servers && servers > 0, || {
            format!("{sessions} ids of {servers} servers")
        })?;
        let figure = format!("{sessions} of {servers} the same");
        Ok(Seen::new("1 initialize each, still that session", figure))
    }

    fn cursor(&self) -> PathBuf {
        self.instance.home().join(".cursor/mcp.json")
    }
}

/// Asserts what a row says.
pub(super) fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), BenchError> {
    if holds { Ok(()) } else { Err(BenchError::Wrong(otherwise())) }
}

/// Kills a process, and returns when that began once it is dead.
pub(super) async fn end(pid: u32) -> Result<Instant, BenchError> {
    let death = Death::of(pid).map_err(BenchError::SetUp)?;
    let begun = Instant::now();
    kill(pid);
    let late = |_| BenchError::Late { what: format!("the end of process {pid}"), limit: LIMIT };
    timeout(LIMIT, death.happens()).await.map_err(late)?.map_err(BenchError::SetUp)?;
    Ok(begun)
}

/// Waits until a call has had its effect.
pub(super) async fn until_exists(file: &Path) -> Result<(), BenchError> {
    let appears = async {
        while !file.exists() {
            sleep(LOOK).await;
        }
    };
    let what = || format!("the effect of a call on `{}`", file.display());
    timeout(LIMIT, appears).await.map_err(|_| BenchError::Late { what: what(), limit: LIMIT })
}
