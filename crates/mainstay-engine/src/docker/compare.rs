//! Comparing what is believed with what an engine lists: list and inspection are the truth.
//!
//! A container that is not in the list counts as removed only if a second complete list of the same
//! engine lacks it too, and only if others are still there: when all are gone at once and nobody said so,
//! it is the engine's data that is gone, and no server is forgotten for that.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{Cause, RunId};
use tokio::time::sleep;

use super::api::{Failure, Listed};
use super::host::{Host, Up};
use super::server::Server;
use super::shared::Shared;
use crate::News;

/// How long after one list the next one is made, when something is missing.
const AGAIN: Duration = Duration::from_millis(100);

/// What is said when the containers of several servers are gone at once.
const ALL_GONE: &str = "its container is gone, and so are all others of this engine, but nobody is \
                        known to have removed them; a restart makes a new one";

impl Shared {
    /// Compares everything that is at one engine. With `returned`, it was away until now.
    pub(super) async fn compare(
        self: &Arc<Self>,
        host: &Arc<Host>,
        up: &Up,
        returned: bool,
    ) -> Result<(), Failure> {
        let listed = match up.api.list(&self.instance).await {
            Ok(listed) => listed,
            Err(failure @ Failure::Silent(_)) => return Err(failure),
            Err(error) => {
                tracing::warn!(address = %host.address, %error, "cannot list containers");
                return Ok(());
            }
        };
        let ours = self.servers_with_container(host, up);
        for (server, container) in &ours {
            if !listed.iter().any(|listed| listed.id == *container) {
                continue;
            }
            match up.api.inspect(container).await {
                Ok(inspected) => self.see(server, up, &inspected, returned).await,
                // The next comparison tells.
                Err(Failure::Missing(_)) => {}
                Err(failure @ Failure::Silent(_)) => return Err(failure),
                Err(error) => {
                    tracing::warn!(server = %server.name, %error, "cannot look at a container");
                }
            }
        }
        let (there, missing): (Vec<_>, Vec<_>) = ours
            .into_iter()
            .partition(|(_, container)| listed.iter().any(|listed| listed.id == *container));
        if !missing.is_empty() {
            let alone = missing.len() == 1 && !returned;
            self.look_again(up, missing, there.is_empty() && !alone).await?;
        }
        self.sweep(host, up, listed);
        Ok(())
    }

    /// Tells what a second list lacks too. With `all`, nothing else is left of what was there.
    async fn look_again(
        &self,
        up: &Up,
        missing: Vec<(Arc<Server>, String)>,
        all: bool,
    ) -> Result<(), Failure> {
        sleep(AGAIN).await;
        let again = up.api.list(&self.instance).await?;
        for (server, container) in missing {
            if again.iter().any(|listed| listed.id == container) {
                continue;
            }
            // Somebody may have made a new one, or be making it just now.
            let Ok(_busy) = server.busy.try_lock() else { continue };
            if server.state().container.as_deref() != Some(&container) {
                continue;
            }
            let last = server.state().watch.last();
            if all {
                self.tell_loss(&server, last);
            } else {
                self.tell_removal(&server, last).await;
            }
        }
        Ok(())
    }

    /// The container of a server is gone, together with all others, and nobody said so yet. If somebody
    /// does, it was removed after all.
    fn tell_loss(&self, server: &Server, last: RunId) {
        {
            let mut state = server.state();
            let container = state.container.take();
            state.lose_container();
            state.lost = container;
        }
        let cause = Cause::CannotStart(ALL_GONE.to_owned());
        self.send(News::Gone { key: server.key(last), cause });
    }

    /// Removes, meanwhile, the containers of this instance that belong to no server any more, and those
    /// that were to be replaced when a daemon died.
    fn sweep(self: &Arc<Self>, host: &Arc<Host>, up: &Up, listed: Vec<Listed>) {
        let left = self.left_at(host, up);
        let unwanted: Vec<String> = listed
            .into_iter()
            .filter(|found| !self.is_wanted(found))
            .map(|found| found.id)
            .collect();
        if left.is_empty() && unwanted.is_empty() {
            return;
        }
        // One at a time: what this one leaves is found by the next comparison.
        let Ok(sweeping) = Arc::clone(&host.sweeping).try_lock_owned() else { return };
        let (weak, api) = (Arc::downgrade(self), up.api.clone());
        self.tasks.spawn(async move {
            for container in unwanted {
                let Some(shared) = weak.upgrade() else { return };
                if shared.knows(&container) {
                    continue;
                }
                drop(shared);
                tracing::info!(container, "sweeping a container");
                if let Err(error) = api.remove(&container).await {
                    tracing::warn!(container, %error, "cannot remove a container");
                }
            }
            for (server, container) in left {
                let removed = api.remove(&container).await;
                let Some(shared) = weak.upgrade() else { return };
                match removed {
                    Ok(()) => shared.forget_what_was_left(&server),
                    Err(error) => tracing::warn!(%server, %error, "cannot remove a container"),
                }
            }
            drop(sweeping);
        });
    }

    /// Whether a container that bears our label is a server's, or may be in a moment. One that somebody
    /// made from a server's container (`docker commit`) bears its labels too, but not a name that we give.
    fn is_wanted(&self, found: &Listed) -> bool {
        let Ok(name) = found.server.parse() else { return true };
        match self.server(&name) {
            Some(server) => server.needs(&found.id) || !self.names(&name).contains(&found.name),
            None => self.wanted().contains(&name),
        }
    }

    /// The servers whose containers this very engine has, with those.
    fn servers_with_container(&self, host: &Arc<Host>, up: &Up) -> Vec<(Arc<Server>, String)> {
        let here = |server: Arc<Server>| {
            let container = {
                let state = server.state();
                state.container.clone().filter(|_| !state.is_elsewhere(&up.who.id))
            };
            Some((server, container?))
        };
        self.servers_at(host).into_iter().filter_map(here).collect()
    }
}
