//! The entries of servers in the files of AI clients.
//!
//! The clients of a server are intent, and stored: those that its spec names, or else those that the user chose for all
//! servers. Every server has a [`reconciler`] that follows it and decides when its entries are removed and added again.
//! A [`worker`] edits files, on blocking threads. A client that holds its lock for long delays only its own entries.

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
use mainstay_core::refresh::RefreshHistory;
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
use worker::{Endpoint, Worker};

/// How many files are edited, and how many are only read, at the same time. The limits are separate, so that a read does
/// not wait for a client that holds its lock. They do not count threads that are stuck.
const EDITORS: usize = 2;
const READERS: usize = 1;

/// Threads that work on files, including those that did not finish in time. If a disk that does not respond blocks all
/// of them, no file is read or edited until it responds.
const THREADS: usize = 8;

/// How long work on files may take, including waiting for locks of other programs.
const WORK_TIMEOUT: Duration = Duration::from_secs(120);

/// The clients of this user. Clones share them.
#[derive(Clone)]
pub(crate) struct Clients {
    shared: Arc<Shared>,
}

pub(crate) struct ClientsConfig {
    /// Where the ledger and the backups are.
    pub(crate) state_dir: PathBuf,
    /// This program.
    pub(crate) exe: PathBuf,
    /// The directory of this instance, if it is not the default.
    pub(crate) home: Option<PathBuf>,
    /// When entries are refreshed, unless a server has its own setting.
    pub(crate) refresh: RefreshMode,
    /// Where clients are searched for that were never chosen or named.
    pub(crate) around: Around,
}

struct Shared {
    config: ClientsConfig,
    store: Store,
    event_log: EventLog,
    /// The clients that were chosen or named.
    known: Mutex<BTreeMap<String, StoredClient>>,
    listen: OnceLock<watch::Receiver<ListenerState>>,
    editors: Semaphore,
    readers: Semaphore,
    threads: Arc<Semaphore>,
    reconcilers: Mutex<JoinSet<Option<()>>>,
    /// Failures of the last sweep, which are reported once.
    unswept: Mutex<BTreeSet<String>>,
}

impl Clients {
    /// Loads the stored clients.
    pub(crate) fn open(
        config: ClientsConfig,
        store: Store,
        event_log: EventLog,
    ) -> Result<Self, StoreError> {
        let known = Mutex::new(store.clients()?);
        let shared = Shared {
            config,
            store,
            event_log,
            known,
            listen: OnceLock::new(),
            editors: Semaphore::new(EDITORS),
            readers: Semaphore::new(READERS),
            threads: Arc::new(Semaphore::new(THREADS)),
            reconcilers: Mutex::default(),
            unswept: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Sets the address at which clients reach servers.
    pub(crate) fn listen_at(&self, listen: watch::Receiver<ListenerState>) {
        // It is called once.
        self.shared.listen.set(listen).ok();
    }

    /// Starts a reconciler for a server, which ends with its driver.
    pub(crate) fn keep(&self, server: ServerName, view: watch::Receiver<Snapshot>) -> Entries {
        let (entries, task) = reconciler::start(self.clone(), server, view);
        let mut reconcilers = self.reconcilers();
        reconcilers.spawn(CatchPanic::new(task));
        while reconcilers.try_join_next().is_some() {}
        entries
    }

    /// Ends all reconcilers. A change that has begun is completed; the next daemon makes the others.
    pub(crate) async fn end(&self) {
        let mut reconcilers = std::mem::take(&mut *self.reconcilers());
        reconcilers.shutdown().await;
    }

    /// When the entries of a server are refreshed.
    pub(crate) fn mode(&self, settings: &ClientSettings) -> RefreshMode {
        settings.refresh.unwrap_or(self.shared.config.refresh)
    }

    /// Chooses clients, if all of them are installed.
    pub(crate) async fn choose(&self, ids: &[String], around: Around) -> Result<(), ApiError> {
        self.need(ids, &around).await?;
        let chosen = StoredClient { chosen: true, around };
        self.store(ids.iter().map(|id| (id.clone(), chosen.clone())).collect()).await
    }

    /// Undoes the choice of clients.
    pub(crate) async fn unchoose(&self, ids: &[String]) -> Result<(), ApiError> {
        check(ids)?;
        let known = self.known().clone();
        let dropped = ids.iter().filter_map(|id| {
            let client = known.get(id)?.clone();
            Some((id.clone(), StoredClient { chosen: false, ..client }))
        });
        self.store(dropped.collect()).await
    }

    /// Fails if one of these clients is not installed.
    pub(crate) async fn need(&self, ids: &[String], around: &Around) -> Result<(), ApiError> {
        check(ids)?;
        let (ids, around) = (ids.to_vec(), around.clone());
        let missing = self.read(around, move |worker| worker::missing(worker, &ids)).await;
        match missing {
            None => Ok(()),
            Some(message) => Err(ApiError::new(ErrorKind::Unavailable, message).with_help(
                "nothing was changed; if it is installed, start it once, so that it creates its \
                 directory",
            )),
        }
    }

    /// Stores the location of clients that specs name. Chosen clients have been stored before.
    pub(crate) async fn meet(&self, specs: &[ServerSpec], around: &Around) -> Result<(), ApiError> {
        let named: BTreeSet<_> =
            specs.iter().filter_map(|spec| spec.clients.only.clone()).flatten().collect();
        let named = Vec::from_iter(named);
        check(&named)?;
        let found = self.read(around.clone(), move |worker| worker::present(worker, named)).await;
        let met: BTreeMap<_, _> = {
            let known = self.known();
            let new =
                found.into_iter().filter(|id| !known.get(id).is_some_and(|known| known.chosen));
            let client = StoredClient { chosen: false, around: around.clone() };
            new.map(|id| (id, client.clone())).collect()
        };
        self.store(met).await
    }

    /// All clients, as `client ls` shows them.
    /// `servers` are all servers, each with its settings.
    pub(crate) async fn list(
        &self,
        around: Around,
        servers: Vec<(ServerName, ClientSettings)>,
    ) -> Vec<ClientInfo> {
        let mut wanted: BTreeMap<String, show::Wanted> = BTreeMap::new();
        for (server, settings) in servers {
            for id in self.wanted(&settings) {
                let target =
                    Client::by_id(&id).and_then(|client| self.endpoint(client, &server).target());
                wanted.entry(id).or_default().insert(server.to_string(), target);
            }
        }
        self.read(around, move |worker| show::all(worker, &wanted)).await
    }

    /// The entries of a server, as `status` shows them.
    pub(crate) async fn of(&self, server: &ServerName) -> Vec<Registration> {
        let server = server.clone();
        let around = self.shared.config.around.clone();
        self.read(around, move |worker| show::of_server(worker, &server)).await
    }

    async fn leftovers(&self, server: ServerName) -> Option<RefreshHistory> {
        let around = self.shared.config.around.clone();
        self.read(around, move |worker| worker.leftovers(&server)).await
    }

    /// Removes the entries of servers that do not exist any more.
    pub(crate) async fn sweep(
        &self,
        is_known: impl Fn(&ServerName) -> bool + Send + 'static,
    ) -> Vec<ClientReport> {
        let reports = self.edit(move |worker| worker.sweep(is_known)).await;
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

    async fn store(&self, clients: BTreeMap<String, StoredClient>) -> Result<(), ApiError> {
        if clients.is_empty() {
            return Ok(());
        }
        let stored = self.shared.store.put_clients(clients.clone()).await;
        stored.map_err(|error| crate::registry::refused(&error))?;
        self.known().extend(clients);
        Ok(())
    }

    /// The clients that should have an entry of a server.
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

    /// The address of a server for a client.
    fn endpoint(&self, client: &Client, server: &ServerName) -> Endpoint {
        let ClientsConfig { exe, home, .. } = &self.shared.config;
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

    /// Edits files.
    async fn edit<T: Default + Send + 'static>(
        &self,
        work: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> T {
        let _permit = self.shared.editors.acquire().await;
        self.run_blocking(self.shared.config.around.clone(), work).await
    }

    /// Reads files. Clients that were not chosen or named are searched for `around` there.
    async fn read<T: Default + Send + 'static>(
        &self,
        around: Around,
        look: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> T {
        let _permit = self.shared.readers.acquire().await;
        self.run_blocking(around, look).await
    }

    /// Runs work on a blocking thread. A file that causes a panic is quarantined (see [`mainstay_clients`]), and a disk
    /// that does not respond blocks nothing else.
    async fn run_blocking<T: Default + Send + 'static>(
        &self,
        around: Around,
        work: impl FnOnce(&Worker) -> T + Send + 'static,
    ) -> T {
        let state_dir = self.shared.config.state_dir.clone();
        let worker = Worker { state_dir, known: self.known().clone(), around };
        let Ok(permit) = Arc::clone(&self.shared.threads).try_acquire_owned() else {
            tracing::error!(
                "cannot work on clients' files: a disk with some of them does not respond"
            );
            return T::default();
        };
        let done = tokio::task::spawn_blocking(move || {
            let done = panics::catch(|| work(&worker));
            drop(permit);
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

    /// Records a change of a file in the event log.
    fn record(&self, report: &ClientReport, run: Option<u64>) {
        let (server, detail) = (&report.server, &report.text);
        if report.done == ClientDone::Failed {
            tracing::warn!(%server, client = report.client, detail, "entry not changed");
        } else {
            tracing::info!(%server, client = report.client, detail, "entry changed");
        }
        self.shared.event_log.record(worker::event(report, run));
    }

    fn reconcilers(&self) -> MutexGuard<'_, JoinSet<Option<()>>> {
        mainstay_core::lock(&self.shared.reconcilers)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, StoredClient>> {
        mainstay_core::lock(&self.shared.known)
    }
}

/// Fails if an id is unknown.
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
        self.shared.editors.available_permits() < EDITORS
    }

    /// The clients of a user who has none, with a home in this directory.
    pub(crate) fn of_nobody(dir: &std::path::Path, store: &Store, event_log: &EventLog) -> Self {
        let config = ClientsConfig {
            state_dir: dir.join("clients"),
            exe: "/usr/bin/mainstay".into(),
            home: None,
            refresh: RefreshMode::Auto,
            around: Around { home: dir.join("home"), env: BTreeMap::new() },
        };
        let clients = Self::open(config, store.clone(), event_log.clone()).unwrap();
        let (_, listen) = watch::channel(ListenerState::At(mainstay_api::Listen::DEFAULT));
        clients.listen_at(listen);
        clients
    }
}
