//! All servers of this instance, and what can be done to them.
//!
//! A change of intent is stored first and acted on second, so what was acknowledged survives
//! everything. Changes are made one at a time.

mod change;
mod entries;
mod session_runs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use mainstay_api::{ApiError, Around, ErrorKind};
use mainstay_core::supervisor::Event;
use mainstay_core::{RunId, ServerName, ServerSpec, Status, Wanted, WorkloadKind};
use mainstay_engine::{Found, News, StartError};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::driver::{self, Context, Driver, Ending, Handle, Message, Scope};
use crate::gateway::{self, Gateway, SessionRunRequest, SessionRunRequests};
use crate::listen;
use crate::snapshot::Snapshot;
use crate::startup::inherited::Inherited;
use crate::state::store::{StoreError, Stored};

/// Beyond a server's own stop timeout, how long a stop may take until we say so and go on.
const STOP_SLACK: Duration = Duration::from_secs(10);

/// The servers. Clones share them.
#[derive(Clone)]
pub(crate) struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    context: Context,
    gateway: Gateway,
    servers: Mutex<BTreeMap<ServerName, Handle>>,
    /// Runs that belong to single sessions, by names of their own.
    isolated: Mutex<BTreeMap<ServerName, Isolated>>,
    /// The names of session runs that start when the previous run of the session has ended.
    next_runs: Mutex<BTreeSet<ServerName>>,
    drivers: Mutex<JoinSet<()>>,
    /// The last runs of servers that were forgotten, so that no run number is used twice.
    forgotten: Mutex<HashMap<ServerName, RunId>>,
    /// What an earlier daemon left of runs that belong to single sessions, until those are taken up.
    orphans: Mutex<HashMap<ServerName, Inherited>>,
    /// Locked while intent is changed.
    changing: tokio::sync::Mutex<Ended>,
}

/// A server's run that belongs to one session.
#[derive(Debug, Clone)]
struct Isolated {
    of: ServerName,
    handle: Handle,
    /// Whether the session continues and may start another run.
    session_continues: bool,
    /// Whether it is being stopped.
    is_ending: bool,
}

/// A handle that does not keep the registry.
struct WeakRegistry(Weak<Shared>);

impl WeakRegistry {
    fn upgrade(&self) -> Option<Registry> {
        self.0.upgrade().map(|shared| Registry { shared })
    }
}

/// Whether the daemon is ending, so that nothing may be changed any more.
#[derive(Debug, Default)]
struct Ended(bool);

impl Registry {
    /// A registry without servers; of `forgotten` ones only the last runs are known.
    pub(crate) fn new(
        context: Context,
        gateway: Gateway,
        forgotten: HashMap<ServerName, RunId>,
    ) -> Self {
        let shared = Shared {
            context,
            gateway,
            servers: Mutex::default(),
            isolated: Mutex::default(),
            next_runs: Mutex::default(),
            drivers: Mutex::default(),
            forgotten: Mutex::new(forgotten),
            orphans: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts to drive a server.
    pub(crate) fn adopt(&self, stored: Stored, inherited: &Inherited) {
        let name = stored.spec.name.clone();
        let (sender, inbox) = driver::inbox();
        let scope = Scope::AllSessions(self.shared.gateway.add(&stored.spec, sender.clone()));
        let context = self.shared.context.clone();
        let (driver, handle) = Driver::new(context, scope, (sender, inbox), stored, inherited);
        self.servers().insert(name.clone(), handle);
        self.drive(name, driver);
    }

    /// Keeps what an earlier daemon left of runs that may belong to single sessions, for those to find.
    pub(crate) fn keep_orphans(&self, orphans: HashMap<ServerName, Inherited>) {
        *self.orphans() = orphans;
    }

    /// What no session has claimed.
    pub(crate) fn take_orphans(&self) -> HashMap<ServerName, Inherited> {
        std::mem::take(&mut *self.orphans())
    }

    fn downgrade(&self) -> WeakRegistry {
        WeakRegistry(Arc::downgrade(&self.shared))
    }

    /// Everything about every server, by name.
    pub(crate) fn all(&self) -> Vec<Handle> {
        self.servers().values().cloned().collect()
    }

    /// One server.
    pub(crate) fn get(&self, name: &ServerName) -> Result<Handle, ApiError> {
        let servers = self.servers();
        servers.get(name).cloned().ok_or_else(|| {
            let similar = similar(name.as_str(), servers.keys().map(ServerName::as_str));
            let meant = similar.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
            ApiError::new(ErrorKind::NoSuchServer, format!("there is no server `{name}`"))
                .with_help(format!("{meant}`mainstay ls -a` shows all servers"))
        })
    }

    /// Describes a server, or several, and turns them on: all or none. Tells of each whether that changed anything; a
    /// server that is on and described like this already is left alone.
    pub(crate) async fn apply(
        &self,
        mut specs: Vec<ServerSpec>,
        replace: bool,
        around: &Around,
    ) -> Result<Vec<(ServerName, bool)>, ApiError> {
        for spec in &mut specs {
            spec.validate().map_err(|e| ApiError::new(ErrorKind::Invalid, e.to_string()))?;
            let engine = self.shared.context.engines.of(&spec.workload);
            let record_decision = engine.prepare(spec).await;
            *spec = record_decision.map_err(|error| unprepared(&spec.name, &error))?;
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
                    let message = format!("port {port} for `{}` cannot be had: {error}", spec.name);
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
                if let Some(shown) = self.shared.gateway.servers.get(name.as_str()) {
                    shown.set(gateway::settings(&server.spec));
                }
                for (own, handle) in self.isolated_of(&name) {
                    let spec = ServerSpec { name: own, ..server.spec.clone() };
                    let own = Stored { spec, ..server.clone() };
                    handle.send(Message::Replace(Box::new(own))).await;
                }
                let is_off = handle.view.borrow().wanted == Wanted::Off;
                handle.send(Message::Replace(Box::new(server))).await;
                if is_off {
                    handle.send(Event::Want(Wanted::On)).await;
                }
                let is_done = |shown: &Snapshot| {
                    shown.created_at == created_at && shown.info().status != Status::Stopped
                };
                // A driver does it at once; one that has ended shows nothing more.
                timeout(change::ACKNOWLEDGE, handle.view.clone().wait_for(is_done)).await.ok();
            } else {
                let last = self.forgotten().remove(&name).unwrap_or_default();
                self.adopt(server, &Inherited { last, ..Inherited::default() });
            }
            names.push((name, true));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether there is a server with this very description that runs or is about to.
    fn is_on_like_this(&self, spec: &ServerSpec) -> bool {
        self.get(&spec.name).is_ok_and(|handle| {
            let shown = handle.view.borrow();
            let is_on = shown.wanted == Wanted::On && shown.info().status != Status::Error;
            is_on && *shown.spec == *spec
        })
    }

    /// Changes are made one at a time, and not when the daemon is ending.
    async fn begin_change(&self) -> Result<tokio::sync::MutexGuard<'_, Ended>, ApiError> {
        let guard = self.shared.changing.lock().await;
        if guard.0 {
            return Err(ApiError::new(ErrorKind::Unavailable, "the daemon is ending").with_help(
                "nothing was changed; the same command starts a new daemon in a moment",
            ));
        }
        Ok(guard)
    }

    /// Starts and stops the runs of single sessions, until the gateway is dropped.
    pub(crate) fn handle_requests(&self, mut requests: SessionRunRequests) {
        let registry = self.downgrade();
        drop(tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let Some(registry) = registry.upgrade() else { return };
                match request {
                    SessionRunRequest::Start { server, session } => {
                        registry.isolate(&server, &session);
                    }
                    SessionRunRequest::Stop { server, session } => {
                        registry.stop_session_run(&server, &session);
                    }
                    SessionRunRequest::Release { server, session } => {
                        registry.release(&server, &session);
                    }
                }
            }
        }));
    }

    /// Passes on what an engine reports.
    pub(crate) async fn news(&self, news: News) {
        let server = news.server();
        let handle = self.servers().get(server).cloned();
        let own = || self.isolated().get(server).map(|isolated| isolated.handle.clone());
        if let Some(handle) = handle.or_else(own) {
            handle.send(Event::News(news)).await;
        }
    }

    /// Tells every driver what a complete list has of its server.
    pub(crate) async fn listed(&self, begun: Instant, mut found: Vec<(WorkloadKind, Found)>) {
        for handle in self.everything() {
            let name = handle.view.borrow().spec.name.clone();
            let ours = found.extract_if(.., |(_, found)| found.key.server == name);
            let found = ours.map(|(home, found)| (home, found.key.run, found.state)).collect();
            handle.send(Event::Listed { begun, found }).await;
        }
    }

    /// Tells every driver that the host slept.
    pub(crate) async fn host_resumed(&self) {
        for handle in self.everything() {
            handle.send(Event::HostResumed).await;
        }
    }

    /// Refuses changes from now on, once the one that is being made is done.
    pub(crate) async fn close(&self) {
        self.shared.changing.lock().await.0 = true;
    }

    /// Stops supervising, because another daemon has taken over. The servers stay as they are.
    pub(crate) fn abandon(&self) {
        self.drivers().abort_all();
    }

    /// Ends every server, without changing any intent, and waits until they are down.
    pub(crate) async fn retire(&self) {
        let handles = self.everything();
        let longest = handles.iter().map(|handle| handle.view.borrow().spec.restart.stop_timeout);
        let limit = longest.max().unwrap_or_default().saturating_add(STOP_SLACK);
        for handle in &handles {
            handle.send(Event::Retire).await;
        }
        let mut drivers = std::mem::take(&mut *self.drivers());
        let all = async { while drivers.join_next().await.is_some() {} };
        if timeout(limit, all).await.is_err() {
            tracing::error!("some servers did not end in time");
        }
    }

    /// Drives a server until its end, and lets go of it then.
    fn drive(&self, name: ServerName, driver: Driver) {
        let registry = self.downgrade();
        self.drivers().spawn(async move {
            let ending = driver.run().await;
            if let Some(registry) = registry.upgrade() {
                registry.let_go(name, ending);
            }
        });
    }

    /// Collects the drivers that have ended.
    fn reap(&self) {
        while let Some(ended) = self.drivers().try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a driver ended badly");
            }
        }
    }

    /// Lets go of a server whose driver has ended, and of its runs that belong to single sessions.
    fn let_go(&self, name: ServerName, ending: Ending) {
        let isolated = self.isolated().remove(&name);
        if let Some(isolated) = isolated {
            // No other session will ever have its name.
            if let (Ending::Forgotten(last), true) = (ending, isolated.session_continues) {
                self.forgotten().insert(name, last);
            }
            return;
        }
        self.servers().remove(&name);
        self.shared.gateway.servers.remove(name.as_str());
        if let Ending::Forgotten(last) = ending {
            for (_, own) in self.isolated_of(&name) {
                own.try_send(Event::Want(Wanted::Gone));
            }
            self.forgotten().insert(name, last);
        }
    }

    /// The servers, and the runs of theirs that belong to single sessions.
    fn everything(&self) -> Vec<Handle> {
        self.reap();
        let mut handles = self.all();
        handles.extend(self.isolated().values().map(|isolated| isolated.handle.clone()));
        handles
    }

    /// The runs of a server that belong to single sessions and are not being stopped. A change of intent must
    /// not bring back a run that is.
    fn isolated_of(&self, server: &ServerName) -> Vec<(ServerName, Handle)> {
        let isolated = self.isolated();
        let is_ours = |isolated: &Isolated| isolated.of == *server && !isolated.is_ending;
        let ours = isolated.iter().filter(|(_, isolated)| is_ours(isolated));
        ours.map(|(name, isolated)| (name.clone(), isolated.handle.clone())).collect()
    }

    fn isolated(&self) -> MutexGuard<'_, BTreeMap<ServerName, Isolated>> {
        mainstay_core::lock(&self.shared.isolated)
    }

    fn next_runs(&self) -> MutexGuard<'_, BTreeSet<ServerName>> {
        mainstay_core::lock(&self.shared.next_runs)
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<ServerName, Handle>> {
        mainstay_core::lock(&self.shared.servers)
    }

    fn orphans(&self) -> MutexGuard<'_, HashMap<ServerName, Inherited>> {
        mainstay_core::lock(&self.shared.orphans)
    }

    fn forgotten(&self) -> MutexGuard<'_, HashMap<ServerName, RunId>> {
        mainstay_core::lock(&self.shared.forgotten)
    }

    fn drivers(&self) -> MutexGuard<'_, JoinSet<()>> {
        mainstay_core::lock(&self.shared.drivers)
    }
}

/// Why a server that is described cannot be run.
fn unprepared(name: &ServerName, error: &StartError) -> ApiError {
    let (kind, help) = match error {
        StartError::NoImage { .. } => {
            (ErrorKind::NoImage, "nothing was changed; pull the image first")
        }
        StartError::NoEngine { .. } | StartError::Away { .. } => {
            let help = if error.to_string().contains("permission denied") {
                "nothing was changed; become a member of the group that owns the engine's socket (often `docker`), \
                 and log in again"
            } else {
                "nothing was changed; start a container engine, such as Docker or Podman"
            };
            (ErrorKind::Unavailable, help)
        }
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
            (ErrorKind::Unavailable, "nothing was changed; correct the command and try again")
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
    Err(taken(format!("there is a server `{name}` already"))
        .with_help("`--replace` puts the new one in its place; or choose another name"))
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

/// The name that is most like `name`, if one is like it: every third letter may differ.
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
