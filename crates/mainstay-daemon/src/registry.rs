//! All servers of this instance, and what can be done to them.
//!
//! A change of intent is stored first and acted on second, so what was acknowledged survives
//! everything. Changes are made one at a time.

mod change;
mod entries;
mod session_drivers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use mainstay_api::{ApiError, Around, ErrorKind};
use mainstay_core::supervisor::Event;
use mainstay_core::{
    RunId, RunKey, ServerName, ServerSpec, SessionRuns, Status, Wanted, WorkloadKind, session_runs,
};
use mainstay_engine::{Found, News, StartError};
use mainstay_hold::limits::{ACKNOWLEDGE, STOP_SERVER};
use mainstay_proxy::{CallTimeouts, ServerHandle, Settings};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::driver::{self, Context, Driver, DriverEnd, Handle, Message, Scope};
use crate::listen;
use crate::run_requests::{RunRequest, RunRequestReceiver};
use crate::snapshot::Snapshot;
use crate::startup::inherited::Inherited;
use crate::state::store::{StoreError, Stored};

/// How many drivers that have ended wait to be removed.
const ENDED: usize = 16;

/// The servers. Clones share them.
#[derive(Clone)]
pub(crate) struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    context: Context,
    open_server: OpenServer,
    state: Mutex<State>,
    /// The tasks of drivers, and tasks that end with them.
    drivers: Mutex<JoinSet<()>>,
    ended: mpsc::Sender<EndedDriver>,
    /// Locked while intent is changed.
    intent_lock: tokio::sync::Mutex<Ended>,
}

#[derive(Default)]
struct State {
    servers: BTreeMap<ServerName, Handle>,
    session_runs: SessionRuns,
    /// The drivers of runs of single sessions, by the names of these runs.
    session_drivers: BTreeMap<ServerName, Handle>,
    /// The last runs of removed servers, so that no run number is used twice.
    last_runs: HashMap<ServerName, RunId>,
    /// What an earlier daemon left of runs that may belong to single sessions, until these resume them.
    inherited: HashMap<ServerName, Inherited>,
}

/// Creates a server as clients see it, which the driver with this inbox supervises.
pub(crate) type OpenServer =
    Arc<dyn Fn(&ServerName, Settings, mpsc::Sender<Message>) -> ServerHandle + Send + Sync>;

/// A driver that has ended. It is dropped when the registry has forgotten it.
pub(crate) struct EndedDriver {
    name: ServerName,
    end: DriverEnd,
    driver: Driver,
}

pub(crate) type EndedDrivers = mpsc::Receiver<EndedDriver>;

/// Whether the daemon is stopping, so that nothing may be changed any more.
#[derive(Debug, Default)]
struct Ended(bool);

impl Registry {
    /// A registry without servers; of removed ones only the last runs are known.
    pub(crate) fn new(
        context: Context,
        open_server: OpenServer,
        last_runs: HashMap<ServerName, RunId>,
    ) -> (Self, EndedDrivers) {
        let session_runs = SessionRuns::new(last_runs.clone());
        let state = Mutex::new(State { session_runs, last_runs, ..State::default() });
        let (drivers, intent_lock) = (Mutex::default(), tokio::sync::Mutex::default());
        let (ended, receiver) = mpsc::channel(ENDED);
        let shared = Shared { context, open_server, state, drivers, ended, intent_lock };
        (Self { shared: Arc::new(shared) }, receiver)
    }

    /// Starts the driver of a server.
    pub(crate) fn add(&self, stored: Stored, inherited: &Inherited) {
        let name = stored.spec.name.clone();
        let (sender, inbox) = driver::inbox();
        let server = (self.shared.open_server)(&name, settings(&stored.spec), sender.clone());
        if let Some((_, found)) = &inherited.alive {
            let Context { session_files, is_successor, .. } = &self.shared.context;
            let saved = session_files.load(&RunKey::new(name.clone(), found.run));
            if !is_successor || saved.is_some_and(|saved| saved.has_unrecorded) {
                server.expect_unrecorded_requests(found.run.generation());
            }
        }
        let scope = Scope::AllSessions(server);
        let context = self.shared.context.clone();
        let (driver, handle) = Driver::new(context, scope, (sender, inbox), stored, inherited);
        self.state().servers.insert(name.clone(), handle);
        self.drive(name, driver);
    }

    /// Keeps what an earlier daemon left of runs that may belong to single sessions.
    pub(crate) fn keep_inherited(&self, inherited: HashMap<ServerName, Inherited>) {
        self.state().inherited = inherited;
    }

    /// Takes what no session has resumed.
    pub(crate) fn take_inherited(&self) -> HashMap<ServerName, Inherited> {
        std::mem::take(&mut self.state().inherited)
    }

    /// All servers, by name.
    pub(crate) fn all(&self) -> Vec<Handle> {
        self.state().servers.values().cloned().collect()
    }

    pub(crate) fn get(&self, name: &ServerName) -> Result<Handle, ApiError> {
        let servers = &self.state().servers;
        servers.get(name).cloned().ok_or_else(|| {
            let similar = similar(name.as_str(), servers.keys().map(ServerName::as_str));
            let meant = similar.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
            ApiError::new(ErrorKind::NoSuchServer, format!("there is no server `{name}`"))
                .with_help(format!("{meant}`mainstay ls -a` shows all servers"))
        })
    }

    /// Stores the specs of servers and turns them on: all or none. Returns of each whether that changed anything; a
    /// server that is on and has this spec already is left alone.
    pub(crate) async fn apply(
        &self,
        mut specs: Vec<ServerSpec>,
        replace: bool,
        around: &Around,
    ) -> Result<Vec<(ServerName, bool)>, ApiError> {
        for spec in &mut specs {
            spec.validate().map_err(|e| ApiError::new(ErrorKind::Invalid, e.to_string()))?;
            let engine = self.shared.context.engines.of(&spec.workload);
            let prepared = engine.prepare(spec).await;
            *spec = prepared.map_err(|error| unprepared(&spec.name, &error))?;
        }
        let _guard = self.begin_change().await?;
        for spec in &specs {
            let present = self.get(&spec.name).ok();
            if let Some(present) = &present {
                may_replace(&spec.name, present, replace)?;
            }
            let has = present.and_then(|present| present.view.borrow().spec.proxy.port);
            if let Some(port) = spec.proxy.port.filter(|port| Some(*port) != has) {
                listen::check(port).map_err(|error| {
                    let message = format!("`{}` cannot listen on port {port}: {error}", spec.name);
                    ApiError::new(ErrorKind::Unavailable, message)
                        .with_help("nothing was changed; choose another `--port`, or none")
                })?;
            }
        }
        self.shared.context.clients.meet(&specs, around).await?;
        let created_at = clock::wall();
        let (same, specs): (Vec<ServerSpec>, Vec<ServerSpec>) =
            specs.into_iter().partition(|spec| self.is_on_like_this(spec));
        let stored: Vec<Stored> =
            specs.into_iter().map(|spec| Stored { spec, wanted: Wanted::On, created_at }).collect();
        self.shared.context.store.put(stored.clone()).await.map_err(|error| refused(&error))?;
        let mut names = Vec::new();
        names.extend(same.into_iter().map(|spec| (spec.name, false)));
        for server in stored {
            let name = server.spec.name.clone();
            if let Ok(handle) = self.get(&name) {
                if let Some(server_handle) = self.shared.context.servers.get(name.as_str()) {
                    server_handle.set(settings(&server.spec));
                }
                let is_off = handle.view.borrow().wanted == Wanted::Off;
                handle.send(Message::Replace(Box::new(server.clone()))).await;
                if is_off {
                    handle.send(Event::Want(Wanted::On)).await;
                }
                let is_done = |shown: &Snapshot| {
                    shown.created_at == created_at && shown.info().status != Status::Stopped
                };
                // A driver that has ended publishes nothing more.
                timeout(ACKNOWLEDGE, handle.view.clone().wait_for(is_done)).await.ok();
                // Without isolation these runs are being stopped.
                let own_runs = self.session_drivers_of(&name).into_iter();
                for (own, handle) in own_runs.filter(|_| server.spec.proxy.isolate) {
                    let spec = ServerSpec { name: own, ..server.spec.clone() };
                    let own = Stored { spec, ..server.clone() };
                    handle.send(Message::Replace(Box::new(own))).await;
                }
            } else {
                let last = self.state().last_runs.remove(&name).unwrap_or_default();
                self.add(server, &Inherited { last, ..Inherited::default() });
            }
            names.push((name, true));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether there is a server with this spec that runs or is about to.
    fn is_on_like_this(&self, spec: &ServerSpec) -> bool {
        self.get(&spec.name).is_ok_and(|handle| {
            let shown = handle.view.borrow();
            let is_on = shown.wanted == Wanted::On && shown.info().status != Status::Error;
            is_on && *shown.spec == *spec
        })
    }

    /// Changes are made one at a time, and not when the daemon is stopping.
    async fn begin_change(&self) -> Result<tokio::sync::MutexGuard<'_, Ended>, ApiError> {
        let guard = self.shared.intent_lock.lock().await;
        if guard.0 {
            return Err(ApiError::new(ErrorKind::Unavailable, "the daemon is stopping").with_help(
                "nothing was changed; the same command starts a new daemon in a moment",
            ));
        }
        Ok(guard)
    }

    /// Executes what sessions request, and removes servers whose drivers have ended, until it is dropped.
    pub(crate) async fn run(self, mut requests: RunRequestReceiver, mut ended: EndedDrivers) {
        loop {
            tokio::select! {
                biased;
                request = requests.next() => match request {
                    RunRequest::SessionRun(event) => self.handle_session_run(event),
                    RunRequest::Message(key, message) => self.send_to_session_run(&key, message),
                },
                Some(ended) = ended.recv() => self.driver_ended(ended),
            }
        }
    }

    /// Passes on what an engine reports.
    pub(crate) async fn news(&self, news: News) {
        let server = news.server();
        let handle = {
            let state = self.state();
            let of_session = || state.session_drivers.get(server);
            state.servers.get(server).or_else(of_session).cloned()
        };
        if let Some(handle) = handle {
            handle.send(Event::News(news)).await;
        }
    }

    /// Sends every driver what a complete list has of its server.
    pub(crate) async fn listed(&self, begun: Instant, mut found: Vec<(WorkloadKind, Found)>) {
        for handle in self.everything() {
            let name = handle.view.borrow().spec.name.clone();
            let own = found.extract_if(.., |(_, found)| found.key.server == name);
            let found = own.map(|(kind, found)| (kind, found.key.run, found.state)).collect();
            handle.send(Event::Listed { begun, found }).await;
        }
    }

    /// Reports to every driver that the host was suspended.
    pub(crate) async fn host_resumed(&self) {
        for handle in self.everything() {
            handle.send(Event::HostResumed).await;
        }
    }

    /// Refuses changes from now on, after the one that is being made.
    pub(crate) async fn close(&self) {
        self.shared.intent_lock.lock().await.0 = true;
    }

    /// Stops supervising, because another daemon has taken over. The servers keep running.
    pub(crate) fn abandon(&self) {
        self.drivers().abort_all();
    }

    /// Stops all servers without changing the intent, and waits for that.
    pub(crate) async fn retire(&self) {
        let handles = self.everything();
        let longest = handles.iter().map(|handle| handle.view.borrow().spec.restart.stop_timeout);
        let limit = longest.max().unwrap_or_default().saturating_add(STOP_SERVER);
        for handle in &handles {
            handle.send(Event::Retire).await;
        }
        let mut drivers = std::mem::take(&mut *self.drivers());
        let all = async { while drivers.join_next().await.is_some() {} };
        if timeout(limit, all).await.is_err() {
            tracing::error!("some servers did not stop in time");
        }
    }

    /// Runs a driver to its end, and then reports that.
    fn drive(&self, name: ServerName, mut driver: Driver) {
        let ended = self.shared.ended.clone();
        self.drivers().spawn(async move {
            let end = driver.run().await;
            // Without a receiver, the daemon has ended.
            ended.send(EndedDriver { name, end, driver }).await.ok();
        });
    }

    /// Collects the tasks that have ended.
    fn reap(&self) {
        while let Some(ended) = self.drivers().try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a driver panicked");
            }
        }
    }

    fn driver_ended(&self, EndedDriver { name, end, driver }: EndedDriver) {
        self.reap();
        let last = match end {
            DriverEnd::ServerRemoved(last) => Some(last),
            DriverEnd::DaemonStops => None,
        };
        let is_session_run = self.state().session_drivers.remove(&name).is_some();
        if is_session_run {
            self.handle_session_run(session_runs::Event::Ended { name, last });
        } else {
            self.state().servers.remove(&name);
            self.shared.context.servers.remove(name.as_str());
            if let Some(last) = last {
                self.state().last_runs.insert(name.clone(), last);
                self.handle_session_run(session_runs::Event::ServerRemoved(name));
            }
        }
        // Only now, because commands see its end: the name is free then.
        drop(driver);
    }

    /// The drivers of servers and of runs of single sessions.
    fn everything(&self) -> Vec<Handle> {
        let state = self.state();
        state.servers.values().chain(state.session_drivers.values()).cloned().collect()
    }

    /// The drivers of the runs of single sessions of a server, which are not being ended: a change of intent must not
    /// bring back one that is.
    fn session_drivers_of(&self, server: &ServerName) -> Vec<(ServerName, Handle)> {
        let state = self.state();
        let names = state.session_runs.of(server);
        let driver =
            |name: &ServerName| Some((name.clone(), state.session_drivers.get(name)?.clone()));
        names.filter_map(driver).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        mainstay_core::lock(&self.shared.state)
    }

    fn drivers(&self) -> MutexGuard<'_, JoinSet<()>> {
        mainstay_core::lock(&self.shared.drivers)
    }
}

/// What a spec says about sessions.
pub(crate) fn settings(spec: &ServerSpec) -> Settings {
    let proxy = &spec.proxy;
    Settings {
        hold: proxy.hold,
        replay: proxy.replay.clone(),
        quiet_restart: proxy.quiet_restart,
        isolate: proxy.isolate,
        isolate_idle: proxy.isolate_idle,
        call_timeouts: CallTimeouts {
            all: proxy.call_timeout,
            tools: proxy.tool_timeouts.iter().map(|(tool, it)| (tool.clone(), it.0)).collect(),
        },
        late_results: proxy.late_results,
        block_limit: spec.restart.watch_limits().block_limit,
    }
}

/// Why a server cannot be run.
fn unprepared(name: &ServerName, error: &StartError) -> ApiError {
    let (kind, help) = match error {
        StartError::NoImage { .. } => {
            (ErrorKind::NoImage, "nothing was changed; pull the image first")
        }
        StartError::EngineDenied { .. } => (
            ErrorKind::Unavailable,
            "nothing was changed; become a member of the group that owns the engine's socket (often `docker`), \
             and log in again",
        ),
        StartError::NoEngine { .. } | StartError::Away { .. } => (
            ErrorKind::Unavailable,
            "nothing was changed; start a container engine, such as Docker or Podman",
        ),
        StartError::NamesTaken { .. } => {
            (ErrorKind::Unavailable, "nothing was changed; rename one with `docker rename OLD NEW`")
        }
        StartError::Unrecorded { .. } => (
            ErrorKind::Unavailable,
            "nothing was changed; make that directory writable or free disk space, then try again",
        ),
        StartError::NotFound { .. }
        | StartError::NotExecutable { .. }
        | StartError::BadDirectory { .. }
        | StartError::PortTaken { .. }
        | StartError::PortReserved { .. }
        | StartError::OtherEngine { .. }
        | StartError::Removed
        | StartError::Shim { .. }
        | StartError::Shortage { .. }
        | StartError::EngineBusy { .. }
        | StartError::Refused(_) => {
            (ErrorKind::Unavailable, "nothing was changed; fix the command and try again")
        }
    };
    ApiError::new(kind, format!("`{name}`: {error}")).with_help(help)
}

fn may_replace(name: &ServerName, present: &Handle, replace: bool) -> Result<(), ApiError> {
    let taken = |message: String| ApiError::new(ErrorKind::NameTaken, message);
    if present.view.borrow().wanted == Wanted::Gone {
        return Err(taken(format!("the old `{name}` is still being removed"))
            .with_help("try again in a moment"));
    }
    if replace {
        return Ok(());
    }
    Err(taken(format!("a server `{name}` exists already"))
        .with_help("replace it with `--replace`, or choose another name"))
}

pub(crate) fn refused(error: &StoreError) -> ApiError {
    let kind = match error {
        StoreError::Fenced { .. } => ErrorKind::Unavailable,
        StoreError::Newer { .. }
        | StoreError::Damaged { .. }
        | StoreError::Lost { .. }
        | StoreError::Full { .. }
        | StoreError::Backup { .. }
        | StoreError::Sqlite { .. } => ErrorKind::Internal,
    };
    let refused = ApiError::new(kind, error.to_string());
    match error.help() {
        Some(help) => refused.with_help(help),
        None => refused,
    }
}

/// The most similar name, if there is one: every third letter may differ.
fn similar<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.len().div_ceil(3);
    let distance = |other: &str| {
        if name.len() > 1 && other.starts_with(name) {
            1
        } else {
            strsim::osa_distance(name, other)
        }
    };
    let near = names.map(|other| (distance(other), other)).filter(|(far, _)| *far <= most);
    near.min().map(|(_, other)| other)
}
