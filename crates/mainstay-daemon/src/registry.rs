//! All servers of this instance, and what can be done to them.
//!
//! A change of intent is stored first and acted on second, so what was acknowledged survives
//! everything. Changes are made one at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mainstay_api::{ApiError, ErrorKind, Outcome, ServerInfo, Which};
use mainstay_core::{ServerName, ServerSpec, Status, Wanted};
use mainstay_engine::{Found, FoundState, News};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::driver::{Context, Driver, Ending, Handle, Message};
use crate::legacy::Legacy;
use crate::store::{StoreError, Stored};

/// Beyond a server's own stop timeout, how long a stop may take until we say so and go on.
const STOP_SLACK: Duration = Duration::from_secs(10);

/// How long a driver may take to act on a message.
const ACKNOWLEDGE: Duration = Duration::from_secs(1);

/// The servers. Clones share them.
#[derive(Clone)]
pub(crate) struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    context: Context,
    servers: Mutex<BTreeMap<ServerName, Handle>>,
    drivers: Mutex<JoinSet<(ServerName, Ending)>>,
    /// Held while intent is changed.
    changing: tokio::sync::Mutex<()>,
}

impl Registry {
    /// An empty registry.
    pub(crate) fn new(context: Context) -> Self {
        let shared = Shared {
            context,
            servers: Mutex::default(),
            drivers: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts to drive a server.
    pub(crate) fn adopt(&self, stored: Stored, legacy: &Legacy) {
        let name = stored.spec.name.clone();
        let (driver, handle) = Driver::new(self.shared.context.clone(), stored, legacy);
        self.servers().insert(name.clone(), handle);
        self.drivers().spawn(async move { (name, driver.run().await) });
        self.reap();
    }

    /// Everything about every server, by name.
    pub(crate) fn all(&self) -> Vec<Handle> {
        self.reap();
        self.servers().values().cloned().collect()
    }

    /// One server.
    pub(crate) fn get(&self, name: &ServerName) -> Result<Handle, ApiError> {
        self.reap();
        self.servers().get(name).cloned().ok_or_else(|| {
            ApiError::new(ErrorKind::NoSuchServer, format!("there is no server `{name}`"))
                .with_help("`mainstay ls -a` shows all servers")
        })
    }

    /// Describes a server, or several, and turns them on: all or none.
    pub(crate) async fn describe(
        &self,
        specs: Vec<ServerSpec>,
        replace: bool,
    ) -> Result<Vec<ServerName>, ApiError> {
        for spec in &specs {
            spec.validate().map_err(|e| ApiError::new(ErrorKind::Invalid, e.to_string()))?;
            self.shared.context.engine.check(spec).await.map_err(|error| {
                ApiError::new(ErrorKind::Unavailable, format!("`{}`: {error}", spec.name))
                    .with_help("nothing was changed; correct the command and try again")
            })?;
        }
        let _guard = self.shared.changing.lock().await;
        for spec in &specs {
            if let Ok(present) = self.get(&spec.name) {
                may_replace(&spec.name, &present, replace)?;
            }
        }
        let created_at = clock::wall();
        let stored: Vec<Stored> =
            specs.into_iter().map(|spec| Stored { spec, wanted: Wanted::On, created_at }).collect();
        self.shared.context.store.put(stored.clone()).await.map_err(|error| refused(&error))?;
        let mut names = Vec::new();
        for server in stored {
            let name = server.spec.name.clone();
            match self.get(&name) {
                Ok(handle) => send(&handle, Message::Replace(Box::new(server))).await,
                Err(_) => self.adopt(server, &Legacy::default()),
            }
            names.push(name);
        }
        Ok(names)
    }

    /// Turns servers on.
    pub(crate) async fn start(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        let down = |info: &ServerInfo| matches!(info.status, Status::Stopped | Status::Error);
        self.change(which, Wanted::On, || Message::Want(Wanted::On), down).await
    }

    /// Starts servers anew.
    pub(crate) async fn restart(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        self.change(which, Wanted::On, || Message::Restart, |_| true).await
    }

    /// Turns servers off and waits until they are.
    pub(crate) async fn stop(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        let up = |info: &ServerInfo| info.status != Status::Stopped;
        let handles = self.choose(which.clone())?;
        let mut outcomes =
            self.change(which, Wanted::Off, || Message::Want(Wanted::Off), up).await?;
        for (outcome, (_, mut handle)) in outcomes.iter_mut().zip(handles) {
            outcome.status = settled(&mut handle, |info| info.status == Status::Stopped).await;
        }
        Ok(outcomes)
    }

    /// Ends servers and forgets them.
    pub(crate) async fn remove(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        let handles = self.choose(which.clone())?;
        let mut outcomes =
            self.change(which, Wanted::Gone, || Message::Want(Wanted::Gone), |_| true).await?;
        for (outcome, (_, mut handle)) in outcomes.iter_mut().zip(handles) {
            outcome.status = settled(&mut handle, |_| false).await;
        }
        self.reap();
        Ok(outcomes)
    }

    /// Stores an intent and tells the drivers.
    async fn change(
        &self,
        which: Which,
        wanted: Wanted,
        message: impl Fn() -> Message,
        takes_effect: impl Fn(&ServerInfo) -> bool,
    ) -> Result<Vec<Outcome>, ApiError> {
        let _guard = self.shared.changing.lock().await;
        let chosen = self.choose(which)?;
        let names = chosen.iter().map(|(name, _)| name.clone()).collect();
        self.shared.context.store.want(names, wanted).await.map_err(|error| refused(&error))?;
        let mut outcomes = Vec::new();
        for (name, handle) in chosen {
            let (changed, before) = {
                let shown = handle.view.borrow();
                (takes_effect(&shown.info()), shown.revision)
            };
            send(&handle, message()).await;
            let mut view = handle.view.clone();
            // A driver answers at once; one that ends has nothing more to show.
            timeout(ACKNOWLEDGE, view.wait_for(|shown| shown.revision > before)).await.ok();
            let status = Some(handle.view.borrow().info().status);
            outcomes.push(Outcome { name, changed, status });
        }
        Ok(outcomes)
    }

    fn choose(&self, which: Which) -> Result<Vec<(ServerName, Handle)>, ApiError> {
        match which {
            Which::All => {
                self.reap();
                Ok(self.servers().iter().map(|(n, h)| (n.clone(), h.clone())).collect())
            }
            Which::Names(names) => {
                names.into_iter().map(|name| Ok((name.clone(), self.get(&name)?))).collect()
            }
        }
    }

    /// Passes on what an engine reports.
    pub(crate) async fn news(&self, news: News) {
        let handle = self.servers().get(&news.key().server).cloned();
        if let Some(handle) = handle {
            send(&handle, Message::News(news)).await;
        }
    }

    /// Tells every driver which of its runs a complete list has.
    pub(crate) async fn listed(&self, begun: Instant, found: &[Found]) {
        for handle in self.all() {
            let name = handle.view.borrow().spec.name.clone();
            let runs = found
                .iter()
                .filter(|found| found.key.server == name)
                .filter(|found| matches!(found.state, FoundState::Alive { .. }))
                .map(|found| found.key.run)
                .collect();
            send(&handle, Message::Listed { begun, runs }).await;
        }
    }

    /// Tells every driver that the host slept.
    pub(crate) async fn host_resumed(&self) {
        for handle in self.all() {
            send(&handle, Message::HostResumed).await;
        }
    }

    /// Ends every server, without changing any intent, and waits until they are down.
    pub(crate) async fn retire(&self) {
        let handles = self.all();
        let longest = handles.iter().map(|handle| handle.view.borrow().spec.restart.stop_timeout);
        let limit = longest.max().unwrap_or_default() + STOP_SLACK;
        for handle in &handles {
            send(handle, Message::Retire).await;
        }
        let mut drivers = std::mem::take(&mut *self.drivers());
        let all = async { while drivers.join_next().await.is_some() {} };
        if timeout(limit, all).await.is_err() {
            tracing::error!("some servers did not end in time");
        }
    }

    /// Lets go of the servers that are forgotten.
    fn reap(&self) {
        while let Some(ended) = self.drivers().try_join_next() {
            match ended {
                Ok((name, Ending::Forgotten | Ending::Retired)) => {
                    self.servers().remove(&name);
                }
                Err(error) => tracing::error!(%error, "a driver ended badly"),
            }
        }
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<ServerName, Handle>> {
        self.shared.servers.lock().expect("no code panics with this lock")
    }

    fn drivers(&self) -> MutexGuard<'_, JoinSet<(ServerName, Ending)>> {
        self.shared.drivers.lock().expect("no code panics with this lock")
    }
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

/// A driver that has ended needs no message.
async fn send(handle: &Handle, message: Message) {
    handle.inbox.send(message).await.ok();
}

/// Waits, not for ever, until a server is as wanted, and tells its status then; none if it is gone.
async fn settled(handle: &mut Handle, done: impl Fn(&ServerInfo) -> bool) -> Option<Status> {
    let limit = handle.view.borrow().spec.restart.stop_timeout + STOP_SLACK;
    let waiting = handle.view.wait_for(|shown| done(&shown.info()));
    if let Ok(Err(_)) = timeout(limit, waiting).await {
        return None;
    }
    Some(handle.view.borrow().info().status)
}

fn refused(error: &StoreError) -> ApiError {
    let refused = ApiError::new(ErrorKind::Internal, error.to_string());
    match error.help() {
        Some(help) => refused.with_help(help),
        None => refused,
    }
}
