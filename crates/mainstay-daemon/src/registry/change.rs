//! Changes of intent: start, stop, restart, rm.

use mainstay_api::{ApiError, ClientReport, ErrorKind, Outcome, Which};
use mainstay_core::supervisor::Event;
use mainstay_core::{ServerName, Status, Wanted};
use mainstay_hold::limits::{ACKNOWLEDGE, STOP_SERVER};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Registry, entries, refused};
use crate::driver::Handle;
use crate::snapshot::Snapshot;

/// A change of intent.
#[derive(Debug, Clone, Copy)]
enum Change {
    Start,
    Restart,
    Stop,
    Remove,
}

impl Change {
    fn wanted(self) -> Wanted {
        match self {
            Self::Start | Self::Restart => Wanted::On,
            Self::Stop => Wanted::Off,
            Self::Remove => Wanted::Gone,
        }
    }

    fn event(self) -> Event {
        match self {
            Self::Restart => Event::Restart,
            Self::Start | Self::Stop | Self::Remove => Event::Want(self.wanted()),
        }
    }

    fn takes_effect(self, on: Status) -> bool {
        match self {
            Self::Start => matches!(on, Status::Stopped | Status::Stopping | Status::Error),
            Self::Stop => on != Status::Stopped,
            Self::Restart | Self::Remove => true,
        }
    }
}

/// A server whose intent was changed.
struct Changed {
    outcome: Outcome,
    handle: Handle,
    /// The changes of its entries in clients' files, if it is removed.
    leaving: Option<oneshot::Receiver<Vec<ClientReport>>>,
}

impl Registry {
    /// Turns servers on.
    pub(crate) async fn start(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        Ok(outcomes(self.change(which, Change::Start).await?))
    }

    /// Restarts servers.
    pub(crate) async fn restart(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        Ok(outcomes(self.change(which, Change::Restart).await?))
    }

    /// Turns servers off and waits until they have stopped.
    pub(crate) async fn stop(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        let changed = self.change(which, Change::Stop).await?;
        // Another command may start them meanwhile.
        let is_done = |shown: &Snapshot| {
            shown.info().status == Status::Stopped || shown.wanted != Wanted::Off
        };
        Ok(wait_until(changed, is_done).await)
    }

    /// Stops and removes servers.
    pub(crate) async fn remove(&self, which: Which) -> Result<Vec<Outcome>, ApiError> {
        let mut changed = self.change(which, Change::Remove).await?;
        let leaving = changed
            .iter_mut()
            .filter_map(|changed| Some((changed.outcome.name.clone(), changed.leaving.take()?)));
        let mut reports = entries::collect(leaving.collect()).await;
        let mut outcomes = wait_until(changed, |_| false).await;
        for outcome in &mut outcomes {
            let own = reports.extract_if(.., |report| report.server == outcome.name);
            outcome.clients = own.collect();
        }
        Ok(outcomes)
    }

    /// Stores an intent and sends it to the drivers.
    async fn change(&self, which: Which, change: Change) -> Result<Vec<Changed>, ApiError> {
        let _guard = self.begin_change().await?;
        let chosen = self.choose(which, change)?;
        let names = chosen.iter().map(|(name, _)| name.clone()).collect();
        let stored = self.shared.context.store.want(names, change.wanted()).await;
        stored.map_err(|error| refused(&error))?;
        let mut done = Vec::new();
        for (name, handle) in chosen {
            let (changed, before) = {
                let shown = handle.view.borrow();
                (change.takes_effect(shown.info().status), shown.revision)
            };
            let leaving = match (change, &handle.entries) {
                (Change::Remove, Some(entries)) => Some(entries.leave().await),
                (Change::Remove | Change::Start | Change::Restart | Change::Stop, _) => None,
            };
            handle.send(change.event()).await;
            let mut view = handle.view.clone();
            // A driver that has ended publishes nothing more.
            timeout(ACKNOWLEDGE, view.wait_for(|shown| shown.revision > before)).await.ok();
            // After the driver, whose state a run that is started meanwhile begins with.
            for (_, own) in self.session_drivers_of(&name) {
                own.send(change.event()).await;
            }
            let status = Some(handle.view.borrow().info().status);
            let outcome = Outcome { name, changed, status, clients: Vec::new() };
            done.push(Changed { outcome, handle, leaving });
        }
        Ok(done)
    }

    /// A server that is being removed is not started again: its entries in clients' files are removed already.
    fn choose(&self, which: Which, change: Change) -> Result<Vec<(ServerName, Handle)>, ApiError> {
        let is_refused = |handle: &Handle| {
            change.wanted() == Wanted::On && handle.view.borrow().wanted == Wanted::Gone
        };
        match which {
            Which::All => {
                let servers = self.state().servers.clone();
                Ok(servers.into_iter().filter(|(_, handle)| !is_refused(handle)).collect())
            }
            Which::Names(names) => {
                let chosen = names.into_iter().map(|name| match self.get(&name)? {
                    handle if is_refused(&handle) => Err(ApiError::new(
                        ErrorKind::NoSuchServer,
                        format!("`{name}` is being removed"),
                    )
                    .with_help(format!("see `mainstay events {name}`"))),
                    handle => Ok((name, handle)),
                });
                chosen.collect()
            }
        }
    }
}

fn outcomes(changed: Vec<Changed>) -> Vec<Outcome> {
    changed.into_iter().map(|changed| changed.outcome).collect()
}

/// Waits, with a limit, until servers are as wanted, and returns their status then; none if they are removed.
async fn wait_until(changed: Vec<Changed>, done: impl Fn(&Snapshot) -> bool) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for Changed { mut outcome, mut handle, .. } in changed {
        let limit = handle.view.borrow().spec.restart.stop_timeout.saturating_add(STOP_SERVER);
        let waiting = timeout(limit, handle.view.wait_for(|shown| done(shown))).await;
        let gone = matches!(waiting, Ok(Err(_)));
        drop(waiting);
        outcome.status = (!gone).then(|| handle.view.borrow().info().status);
        outcomes.push(outcome);
    }
    outcomes
}
