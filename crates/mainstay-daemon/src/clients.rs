//! The entries that servers have in the files of AI clients.
//!
//! Which clients a server is registered with is intent, and stored: those that the server names, or
//! else those that the user chose for all. Every server has a [`keeper`] that follows it and decides
//! when its entries leave and come back; what is done to files is done at a [`desk`], on threads for
//! blocking work. A client that holds its lock for long holds up its own entries and nothing else.

mod desk;
mod keeper;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use mainstay_api::{
    ApiError, Around, ClientDone, ClientInfo, ClientReport, ErrorKind, Registration,
};
use mainstay_clients::table::Presence;
use mainstay_clients::{Client, Target};
use mainstay_core::{ClientSettings, RefreshMode, ServerName, ServerSpec};
use tokio::sync::{Semaphore, watch};

use crate::journal::Journal;
use crate::snapshot::Snapshot;
use crate::store::{Store, StoreError, StoredClient};
use desk::Desk;
pub(crate) use keeper::{Entries, Wish};

/// Files that are worked on at the same time. There are more threads, so the store never waits.
const SEATS: usize = 2;

/// What is known about clients. Clones share it.
#[derive(Clone)]
pub(crate) struct Clients {
    shared: Arc<Shared>,
}

/// What [`Clients`] are made of.
pub(crate) struct Surroundings {
    /// Where the ledger and the backups are.
    pub(crate) state_dir: PathBuf,
    /// This program.
    pub(crate) exe: PathBuf,
    /// Where this instance is, if it is not the user's usual one.
    pub(crate) home: Option<PathBuf>,
    /// When entries are refreshed, if a server does not say.
    pub(crate) refresh: RefreshMode,
    /// Where clients are looked for that were never chosen or named.
    pub(crate) around: Around,
}

struct Shared {
    surroundings: Surroundings,
    store: Store,
    journal: Journal,
    /// The clients that were chosen or named.
    known: Mutex<BTreeMap<String, StoredClient>>,
    listen: OnceLock<watch::Receiver<Option<SocketAddr>>>,
    seats: Semaphore,
    /// What the last sweep could not do, which is told once.
    unswept: Mutex<BTreeSet<String>>,
}

impl Clients {
    /// Takes up the clients that are stored.
    pub(crate) fn open(
        surroundings: Surroundings,
        store: Store,
        journal: Journal,
    ) -> Result<Self, StoreError> {
        let known = Mutex::new(store.clients()?);
        let shared = Shared {
            surroundings,
            store,
            journal,
            known,
            listen: OnceLock::new(),
            seats: Semaphore::new(SEATS),
            unswept: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Clients reach servers there from now on.
    pub(crate) fn listen_at(&self, listen: watch::Receiver<Option<SocketAddr>>) {
        // It is called once.
        self.shared.listen.set(listen).ok();
    }

    /// Follows a server and keeps its entries, until its driver ends.
    pub(crate) fn keep(&self, server: ServerName, view: watch::Receiver<Snapshot>) -> Entries {
        keeper::keep(self.clone(), server, view)
    }

    /// When the entries of a server are refreshed.
    pub(crate) fn mode(&self, settings: &ClientSettings) -> RefreshMode {
        settings.refresh.unwrap_or(self.shared.surroundings.refresh)
    }

    /// Chooses clients, if all of them are there.
    pub(crate) async fn choose(&self, ids: &[String], around: Around) -> Result<(), ApiError> {
        check(ids)?;
        let (looked_for, at) = (ids.to_vec(), around.clone());
        let missing = self.work(move |_| missing(&looked_for, &at)).await;
        if let Some(message) = missing {
            let help = "nothing was changed; if it is installed, start it once, so that it makes \
                        its directory";
            return Err(ApiError::new(ErrorKind::Unavailable, message).with_help(help));
        }
        let chosen = StoredClient { chosen: true, around };
        self.learn(ids.iter().map(|id| (id.clone(), chosen.clone())).collect()).await
    }

    /// Chooses clients no longer.
    pub(crate) async fn unchoose(&self, ids: &[String]) -> Result<(), ApiError> {
        check(ids)?;
        let known = self.known().clone();
        let dropped = ids.iter().filter_map(|id| {
            let client = known.get(id)?.clone();
            Some((id.clone(), StoredClient { chosen: false, ..client }))
        });
        self.learn(dropped.collect()).await
    }

    /// Takes in where clients are that servers name, if that is not known yet.
    pub(crate) async fn meet(&self, specs: &[ServerSpec], around: &Around) -> Result<(), ApiError> {
        let named: BTreeSet<_> =
            specs.iter().filter_map(|spec| spec.clients.only.as_ref()).flatten().collect();
        for id in &named {
            check(std::slice::from_ref(*id))?;
        }
        let new: BTreeMap<_, _> = {
            let known = self.known();
            let new = named.into_iter().filter(|id| !known.contains_key(*id));
            let client = StoredClient { chosen: false, around: around.clone() };
            new.map(|id| (id.clone(), client.clone())).collect()
        };
        self.learn(new).await
    }

    /// All clients, as `client ls` shows them.
    pub(crate) async fn list(&self, around: Around) -> Vec<ClientInfo> {
        self.work_at(around, show::all).await
    }

    /// The entries of a server, as `status` shows them.
    pub(crate) async fn of(&self, server: &ServerName) -> Vec<Registration> {
        let server = server.clone();
        self.work(move |desk| show::of_server(desk, &server)).await
    }

    /// Takes out the entries of servers that nobody knows any more, and tells what was done.
    pub(crate) async fn sweep(
        &self,
        is_known: impl Fn(&ServerName) -> bool + Send + 'static,
    ) -> Vec<ClientReport> {
        let reports = self.work(move |desk| desk.sweep(is_known)).await;
        let mut failed = self.shared.unswept.lock().expect("no code panics with this lock");
        let before = std::mem::take(&mut *failed);
        for report in &reports {
            if report.done == ClientDone::Failed {
                failed.insert(report.text.clone());
            }
            if !before.contains(&report.text) {
                self.record(report, None);
            }
        }
        drop(failed);
        reports
    }

    async fn learn(&self, clients: BTreeMap<String, StoredClient>) -> Result<(), ApiError> {
        if clients.is_empty() {
            return Ok(());
        }
        let stored = self.shared.store.put_clients(clients.clone()).await;
        stored.map_err(|error| crate::registry::refused(&error))?;
        self.known().extend(clients);
        Ok(())
    }

    /// The clients that a server is to be registered with.
    fn wanted(&self, settings: &ClientSettings) -> BTreeSet<String> {
        match &settings.only {
            None => {
                let known = self.known();
                let chosen = known.iter().filter(|(_, client)| client.chosen);
                chosen.map(|(id, _)| id.clone()).collect()
            }
            Some(only) => only.clone(),
        }
    }

    /// Where a client finds a server; nothing as long as there is no listener.
    fn target(&self, client: &Client, server: &ServerName) -> Option<Target> {
        let Surroundings { exe, home, .. } = &self.shared.surroundings;
        if client.speaks_only_stdio() {
            let mut args = vec!["connect".to_owned(), server.to_string()];
            if let Some(home) = home {
                args.extend(["--home".to_owned(), home.to_string_lossy().into_owned()]);
            }
            return Some(Target::Stdio { command: exe.to_string_lossy().into_owned(), args });
        }
        let listen = self.shared.listen.get().and_then(|listen| *listen.borrow());
        listen.map(|addr| Target::Http { url: format!("http://{addr}/{server}/mcp") })
    }

    /// Has something done at a desk, on a thread for blocking work.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce(&Desk) -> T + Send + 'static) -> T {
        self.work_at(self.shared.surroundings.around.clone(), work).await
    }

    /// The same, with clients that nobody chose or named looked for elsewhere.
    async fn work_at<T: Send + 'static>(
        &self,
        around: Around,
        work: impl FnOnce(&Desk) -> T + Send + 'static,
    ) -> T {
        let seat = self.shared.seats.acquire().await;
        let state_dir = self.shared.surroundings.state_dir.clone();
        let desk = Desk::new(state_dir, self.known().clone(), around);
        let done = tokio::task::spawn_blocking(move || work(&desk)).await;
        drop(seat);
        done.expect("no code at a desk panics")
    }

    /// Writes to the event log what was done to a file, and why.
    fn record(&self, report: &ClientReport, run: Option<u64>) {
        let (server, detail) = (&report.server, &report.text);
        if report.done == ClientDone::Failed {
            tracing::warn!(%server, client = report.client, detail, "entry left as it was");
        } else {
            tracing::info!(%server, client = report.client, detail, "entry changed");
        }
        self.shared.journal.record(desk::event(report, run));
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, StoredClient>> {
        self.shared.known.lock().expect("no code panics with this lock")
    }
}

/// Why the first of these clients that is not there is not.
fn missing(ids: &[String], around: &Around) -> Option<String> {
    ids.iter().find_map(|id| {
        let client = Client::by_id(id)?;
        let located = desk::machine(around).look(|around| client.locate(around));
        match located.presence {
            Presence::Installed { .. } => None,
            Presence::NotInstalled => {
                let file = located.file.display();
                Some(format!("{} is not installed (`{file}` would be its file)", client.product))
            }
        }
    })
}

fn check(ids: &[String]) -> Result<(), ApiError> {
    match ids.iter().find(|id| Client::by_id(id).is_none()) {
        None => Ok(()),
        Some(id) => {
            let message = format!("no client is called `{id}`");
            Err(ApiError::new(ErrorKind::Invalid, message)
                .with_help("`mainstay client ls --all` shows all clients"))
        }
    }
}

#[cfg(test)]
impl Clients {
    /// The clients of a user who has none, with a home in this directory.
    pub(crate) fn of_nobody(dir: &std::path::Path, store: &Store, journal: &Journal) -> Self {
        let surroundings = Surroundings {
            state_dir: dir.join("clients"),
            exe: "/usr/bin/mainstay".into(),
            home: None,
            refresh: RefreshMode::Auto,
            around: Around { home: dir.join("home"), env: BTreeMap::new() },
        };
        let clients = Self::open(surroundings, store.clone(), journal.clone()).unwrap();
        let (_, listen) = watch::channel(Some(SocketAddr::from(([127, 0, 0, 1], 7433))));
        clients.listen_at(listen);
        clients
    }
}
