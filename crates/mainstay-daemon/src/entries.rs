//! The entries that servers have in the files of AI clients.
//!
//! Which clients a server is registered with is intent, and stored: those that the server names, or
//! else those that the user chose for all. Every server has a [`reconciler`] that follows it and decides
//! when its entries leave and come back; what is done to files is done at a [`worker`], on threads for
//! blocking work. A client that holds its lock for long holds up its own entries and nothing else.

mod reconciler;
mod show;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use mainstay_api::{
    ApiError, Around, ClientDone, ClientInfo, ClientReport, ErrorKind, Registration,
};
use mainstay_clients::{Client, Target};
use mainstay_core::{ClientSettings, RefreshMode, ServerName, ServerSpec, panics};
use mainstay_proxy::CatchPanic;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::listen::ListenerState;
use crate::snapshot::Snapshot;
use crate::state::event_log::EventLog;
use crate::state::store::{Store, StoreError, StoredClient};
pub(crate) use reconciler::{Entries, EntryRequest};
use worker::{Endpoint, Leftovers, Worker};

/// How many files are edited, and how many are only read, at the same time. They are separate, so that a read
/// does not wait for a client that holds its lock. A thread that is stuck in a file is abandoned and no
/// longer counted.
const SEATS: usize = 2;
const LOOKERS: usize = 1;

/// Threads that work on files, including those that did not finish in time. When a disk that does not answer blocks
/// all of them, files are left alone until it answers.
const THREADS: usize = 8;

/// How long work on files may take, including waiting for locks of other programs.
const WORK_TIMEOUT: Duration = Duration::from_secs(120);

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
    event_log: EventLog,
    /// The clients that were chosen or named.
    known: Mutex<BTreeMap<String, StoredClient>>,
    listen: OnceLock<watch::Receiver<ListenerState>>,
    seats: Semaphore,
    lookers: Semaphore,
    threads: Arc<Semaphore>,
    keepers: Mutex<JoinSet<Option<()>>>,
    /// What the last sweep could not do, which is told once.
    unswept: Mutex<BTreeSet<String>>,
}

impl Clients {
    /// Takes up the clients that are stored.
    pub(crate) fn open(
        surroundings: Surroundings,
        store: Store,
        event_log: EventLog,
    ) -> Result<Self, StoreError> {
        let known = Mutex::new(store.clients()?);
        let shared = Shared {
            surroundings,
            store,
            event_log,
            known,
            listen: OnceLock::new(),
            seats: Semaphore::new(SEATS),
            lookers: Semaphore::new(LOOKERS),
            threads: Arc::new(Semaphore::new(THREADS)),
            keepers: Mutex::default(),
            unswept: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Clients reach servers there from now on.
    pub(crate) fn listen_at(&self, listen: watch::Receiver<ListenerState>) {
        // It is called once.
        self.shared.listen.set(listen).ok();
    }

    /// Follows a server and keeps its entries, until its driver ends.
    pub(crate) fn keep(&self, server: ServerName, view: watch::Receiver<Snapshot>) -> Entries {
        let (entries, keeping) = reconciler::keep(self.clone(), server, view);
        let mut keepers = self.keepers();
        keepers.spawn(CatchPanic::new(keeping));
        while keepers.try_join_next().is_some() {}
        entries
    }

    /// Ends all keepers. What one is about to do to a file is done, and the rest is the next daemon's.
    pub(crate) async fn end(&self) {
        let mut keepers = std::mem::take(&mut *self.keepers());
        keepers.shutdown().await;
    }

    /// When the entries of a server are refreshed.
    pub(crate) fn mode(&self, settings: &ClientSettings) -> RefreshMode {
        settings.refresh.unwrap_or(self.shared.surroundings.refresh)
    }

    /// Chooses clients, if all of them are there.
    pub(crate) async fn choose(&self, ids: &[String], around: Around) -> Result<(), ApiError> {
        self.need(ids, &around).await?;
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

    /// Whether all of these clients are there.
    pub(crate) async fn need(&self, ids: &[String], around: &Around) -> Result<(), ApiError> {
        check(ids)?;
        let (ids, around) = (ids.to_vec(), around.clone());
        let missing = self.look(around, move |worker| worker::missing(worker, &ids)).await;
        match missing {
            None => Ok(()),
            Some(message) => Err(ApiError::new(ErrorKind::Unavailable, message).with_help(
                "nothing was changed; if it is installed, start it once, so that it makes its \
                 directory",
            )),
        }
    }

    /// Takes in where clients are that servers name. Where those are that were chosen was said then.
    pub(crate) async fn meet(&self, specs: &[ServerSpec], around: &Around) -> Result<(), ApiError> {
        let named: BTreeSet<_> =
            specs.iter().filter_map(|spec| spec.clients.only.clone()).flatten().collect();
        let named = Vec::from_iter(named);
        check(&named)?;
        let found = self.look(around.clone(), move |worker| worker::present(worker, named)).await;
        let met: BTreeMap<_, _> = {
            let known = self.known();
            let new =
                found.into_iter().filter(|id| !known.get(id).is_some_and(|known| known.chosen));
            let client = StoredClient { chosen: false, around: around.clone() };
            new.map(|id| (id, client.clone())).collect()
        };
        self.learn(met).await
    }

    /// All clients, as `client ls` shows them.
    /// `servers` are those there are, each with its settings.
    pub(crate) async fn list(
        &self,
        around: Around,
        servers: Vec<(ServerName, ClientSettings)>,
    ) -> Vec<ClientInfo> {
        let mut wanted: BTreeMap<String, show::Wanted> = BTreeMap::new();
        for (server, settings) in servers {
            for id in self.wanted(&settings) {
                let target =
                    Client::by_id(&id).and_then(|client| self.target(client, &server).at());
                wanted.entry(id).or_default().insert(server.to_string(), target);
            }
        }
        self.look(around, move |worker| show::all(worker, &wanted)).await
    }

    /// The entries of a server, as `status` shows them.
    pub(crate) async fn of(&self, server: &ServerName) -> Vec<Registration> {
        let server = server.clone();
        let around = self.shared.surroundings.around.clone();
        self.look(around, move |worker| show::of_server(worker, &server)).await
    }

    /// What is left of the entries of a server.
    async fn leftovers(&self, server: ServerName) -> Leftovers {
        let around = self.shared.surroundings.around.clone();
        self.look(around, move |worker| worker.leftovers(&server)).await
    }

    /// Takes out the entries of servers that nobody knows any more, and tells what was done.
    pub(crate) async fn sweep(
        &self,
        is_known: impl Fn(&ServerName) -> bool + Send + 'static,
    ) -> Vec<ClientReport> {
        let reports = self.work(move |worker| worker.sweep(is_known)).await;
        let mut failed = mainstay_core::lock(&self.shared.unswept);
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
    pub(crate) fn wanted(&self, settings: &ClientSettings) -> BTreeSet<String> {
        match &settings.only {
            None => {
                let known = self.known();
                let chosen = known.iter().filter(|(_, client)| client.chosen);
                chosen.map(|(id, _)| id.clone()).collect()
            }
            Some(only) => only.clone(),
        }
    }

    /// Where a client finds a server.
    fn target(&self, client: &Client, server: &ServerName) -> Endpoint {
        let Surroundings { exe, home, .. } = &self.shared.surroundings;
        if client.speaks_only_stdio() {
            let mut args = vec!["connect".to_owned(), server.to_string()];
            if let Some(home) = home {
                args.extend(["--home".to_owned(), home.to_string_lossy().into_owned()]);
            }
            let command = exe.to_string_lossy().into_owned();
            return Endpoint::At(Target::Stdio { command, args });
        }
        let listening =
            self.shared.listen.get().map_or(ListenerState::No, |listen| *listen.borrow());
        match listening {
            ListenerState::No | ListenerState::Failed { .. } => Endpoint::NotYet,
            ListenerState::At(addr) => {
                Endpoint::At(Target::Http { url: format!("http://{addr}/{server}/mcp") })
            }
            ListenerState::Taken { addr, uid } => Endpoint::Taken { addr, uid },
        }
    }

    /// Has something done to files.
    async fn work<T: Default + Send + 'static>(
        &self,
        work: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> T {
        let _seat = self.shared.seats.acquire().await;
        self.at_desk(self.shared.surroundings.around.clone(), work).await
    }

    /// Has a look at files. Clients that nobody chose or named are looked for `around` there.
    async fn look<T: Default + Send + 'static>(
        &self,
        around: Around,
        look: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> T {
        let _seat = self.shared.lookers.acquire().await;
        self.at_desk(around, look).await
    }

    /// Runs work on a blocking thread. A file that causes a panic is quarantined (see [`mainstay_clients`]),
    /// and a disk that does not answer blocks nothing else.
    async fn at_desk<T: Default + Send + 'static>(
        &self,
        around: Around,
        work: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> T {
        let state_dir = self.shared.surroundings.state_dir.clone();
        let worker = Worker::new(state_dir, self.known().clone(), around);
        let Ok(place) = Arc::clone(&self.shared.threads).try_acquire_owned() else {
            tracing::error!(
                "clients' files are left alone: a disk with some of them does not answer"
            );
            return T::default();
        };
        let done = tokio::task::spawn_blocking(move || {
            let done = panics::catch(|| work(&worker));
            drop(place);
            done
        });
        match timeout(WORK_TIMEOUT, done).await {
            Ok(Ok(Ok(done))) => return done,
            // The panic is in the log.
            Ok(Ok(Err(_)) | Err(_)) => {}
            Err(_) => tracing::error!("work on a client's file timed out"),
        }
        T::default()
    }

    /// Writes to the event log what was done to a file, and why.
    fn record(&self, report: &ClientReport, run: Option<u64>) {
        let (server, detail) = (&report.server, &report.text);
        if report.done == ClientDone::Failed {
            tracing::warn!(%server, client = report.client, detail, "entry left as it was");
        } else {
            tracing::info!(%server, client = report.client, detail, "entry changed");
        }
        self.shared.event_log.record(worker::event(report, run));
    }

    fn keepers(&self) -> MutexGuard<'_, JoinSet<Option<()>>> {
        mainstay_core::lock(&self.shared.keepers)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, StoredClient>> {
        mainstay_core::lock(&self.shared.known)
    }
}

/// Refuses ids that are no client's.
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
    /// Whether a file is being worked on.
    pub(crate) fn is_at_work(&self) -> bool {
        self.shared.seats.available_permits() < SEATS
    }

    /// The clients of a user who has none, with a home in this directory.
    pub(crate) fn of_nobody(dir: &std::path::Path, store: &Store, event_log: &EventLog) -> Self {
        let surroundings = Surroundings {
            state_dir: dir.join("clients"),
            exe: "/usr/bin/mainstay".into(),
            home: None,
            refresh: RefreshMode::Auto,
            around: Around { home: dir.join("home"), env: BTreeMap::new() },
        };
        let clients = Self::open(surroundings, store.clone(), event_log.clone()).unwrap();
        let (_, listen) = watch::channel(ListenerState::At(mainstay_api::Listen::DEFAULT));
        clients.listen_at(listen);
        clients
    }
}
