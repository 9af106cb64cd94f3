//! Compares the known state with an engine's list, which is authoritative.
//!
//! A container that is not in the list counts as removed only if a second complete list of the same
//! engine lacks it too, and only if others are still there: if all are gone at once without a removal event,
//! the engine has lost its data, and no server is forgotten for that.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{Cause, RunId};
use tokio::time::{Instant, sleep};

use super::api::{Failure, Listed};
use super::host::{Host, LiveEngine};
use super::ownership::{Plan, plan};
use super::server::Server;
use super::shared::Shared;
use crate::News;

/// The delay before the second list, if a container is missing in the first.
const AGAIN: Duration = Duration::from_millis(100);

/// The message if the containers of several servers are gone at once.
const ALL_GONE: &str = "its container is gone, and so are all others of this engine, although no \
                        removal was reported; a restart creates a new one";

impl Shared {
    /// Compares the servers of one engine with its list. With `returned`, it was away until now.
    pub(super) async fn compare(
        self: &Arc<Self>,
        host: &Arc<Host>,
        engine: &LiveEngine,
        returned: bool,
    ) -> Result<(), Failure> {
        let listed = match engine.api.list(&self.instance).await {
            Ok(listed) => listed,
            Err(failure @ Failure::NoAnswer(_)) => return Err(failure),
            Err(error) => {
                tracing::warn!(address = %host.address, %error, "cannot list containers");
                return Ok(());
            }
        };
        let ours = self.servers_with_container(host, engine);
        for (server, container) in &ours {
            if !listed.iter().any(|listed| listed.id == *container) {
                continue;
            }
            match engine.api.inspect(container).await {
                Ok(inspected) => self.handle_inspection(server, engine, &inspected, returned).await,
                // The next comparison decides.
                Err(Failure::Missing(_)) => {}
                Err(failure @ Failure::NoAnswer(_)) => return Err(failure),
                Err(error) => {
                    tracing::warn!(server = %server.name, %error, "cannot inspect a container");
                }
            }
        }
        let (there, missing): (Vec<_>, Vec<_>) = ours
            .into_iter()
            .partition(|(_, container)| listed.iter().any(|listed| listed.id == *container));
        if !missing.is_empty() {
            let alone = missing.len() == 1 && !returned;
            self.confirm_missing(engine, missing, there.is_empty() && !alone).await?;
        }
        self.sweep(host, engine, &listed).await;
        Ok(())
    }

    /// Reports containers that are missing in a second list too. With `all`, no container is left.
    async fn confirm_missing(
        &self,
        engine: &LiveEngine,
        missing: Vec<(Arc<Server>, String)>,
        all: bool,
    ) -> Result<(), Failure> {
        sleep(AGAIN).await;
        let again = engine.api.list(&self.instance).await?;
        for (server, container) in missing {
            if again.iter().any(|listed| listed.id == container) {
                continue;
            }
            // A new one may have been created, or is being created.
            let Ok(_busy) = server.busy.try_lock() else { continue };
            if server.state().container.as_deref() != Some(&container) {
                continue;
            }
            let last = server.state().watch.last();
            if all {
                self.report_all_gone(&server, last);
            } else {
                self.report_removal(&server, last).await;
            }
        }
        Ok(())
    }

    /// All containers are gone without a removal event. If an event arrives later, the container was removed.
    fn report_all_gone(&self, server: &Server, last: RunId) {
        {
            let mut state = server.state();
            let container = state.container.take();
            state.drop_container();
            state.missing_container = container;
        }
        let cause = Cause::CannotStart(ALL_GONE.to_owned());
        self.send(News::Gone { key: server.key(last), cause });
    }

    /// Removes, in the background, the containers that this instance created and that no server needs: those
    /// of servers that were forgotten, and those that were to be replaced when a daemon died.
    async fn sweep(self: &Arc<Self>, host: &Arc<Host>, engine: &LiveEngine, listed: &[Listed]) {
        let (entries, now) = (self.creations.all(), Instant::now());
        let address = host.address.to_string();
        let source = (engine.identity.id.as_str(), address.as_str());
        let plan = plan(source, listed, &entries, |server| self.need(server), now);
        host.report_foreign(listed, &plan.foreign);
        for (nonce, missing) in &plan.unbound {
            self.creations.note_missing(nonce, *missing, now);
        }
        for nonce in &plan.expired {
            self.creations.forget(nonce).await;
        }
        if plan.claim.is_empty() && plan.remove.is_empty() {
            return;
        }
        // One at a time: what this one leaves is found by the next comparison.
        let Ok(sweeping) = Arc::clone(&host.sweeping).try_lock_owned() else { return };
        let unneeded = self.claim(plan).await;
        for Listed { id, name, .. } in listed.iter().filter(|found| unneeded.contains(&found.id)) {
            tracing::info!(id, name, "removing a container that no server needs");
        }
        let (weak, api) = (Arc::downgrade(self), engine.api.clone());
        self.tasks.spawn(async move {
            for container in unneeded {
                if weak.upgrade().is_none_or(|shared| shared.is_used(&container)) {
                    continue;
                }
                let removed = api.remove(&container).await;
                let Some(shared) = weak.upgrade() else { return };
                if let Err(error) = shared.note_removal(&container, removed).await {
                    tracing::warn!(container, %error, "cannot remove a container");
                }
            }
            drop(sweeping);
        });
    }

    /// Records the ids of containers that were found by their nonces, and returns all ids to be removed.
    pub(super) async fn claim(&self, plan: Plan) -> Vec<String> {
        let mut unneeded = plan.remove;
        for (nonce, container) in plan.claim {
            match self.creations.bind(&nonce, &container).await {
                Ok(true) => unneeded.push(container),
                Ok(false) => {}
                // Only a recorded id is removed. The next comparison tries again.
                Err(error) => {
                    tracing::warn!(container, %error, "the id of a container cannot be recorded");
                }
            }
        }
        unneeded.retain(|container| !self.is_used(container));
        unneeded
    }

    /// The servers whose containers this very engine has, with those.
    fn servers_with_container(
        &self,
        host: &Arc<Host>,
        engine: &LiveEngine,
    ) -> Vec<(Arc<Server>, String)> {
        let here = |server: Arc<Server>| {
            let container = {
                let state = server.state();
                state.container.clone().filter(|_| !state.is_at_other_engine(&engine.identity.id))
            };
            Some((server, container?))
        };
        self.servers_at(host).into_iter().filter_map(here).collect()
    }
}
