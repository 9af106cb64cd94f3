//! Comparing what is believed with what an engine lists: list and inspection are the truth.
//!
//! A container that is not in the list counts as removed only if a second complete list of the same
//! engine lacks it too, and only if others are still there: when all are gone at once and nobody said so,
//! it is the engine's data that is gone, and no server is forgotten for that.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::Cause;
use tokio::time::sleep;

use super::Shared;
use super::api::{Failure, Listed};
use super::host::{Host, Up};
use super::server::Server;
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
        let listed = up.api.list(&self.instance).await?;
        let ours = self.servers_with_container(host, up);
        for server in &ours {
            let container = server.state().container.clone();
            let Some(container) = container else { continue };
            if !listed.iter().any(|listed| listed.id == container) {
                continue;
            }
            match up.api.inspect(&container).await {
                Ok(inspected) => self.see(server, up, &inspected, returned).await,
                // The next comparison tells.
                Err(Failure::Missing(_)) => {}
                Err(Failure::Silent(why)) => return Err(Failure::Silent(why)),
                Err(error) => {
                    tracing::warn!(server = %server.name, %error, "cannot look at a container");
                }
            }
        }
        if ours.iter().any(|server| is_missing(server, &listed)) {
            sleep(AGAIN).await;
            let again = up.api.list(&self.instance).await?;
            self.tell_missing(&ours, &again).await;
        }
        self.sweep(up, listed).await;
        Ok(())
    }

    async fn tell_missing(&self, ours: &[Arc<Server>], listed: &[Listed]) {
        let (missing, there): (Vec<_>, Vec<_>) =
            ours.iter().partition(|server| is_missing(server, listed));
        let all_gone = there.is_empty() && missing.len() > 1;
        for server in missing {
            // Somebody may be making a new one just now.
            let Ok(_busy) = server.busy.try_lock() else { continue };
            let last = server.state().watch.last();
            if !all_gone {
                self.tell_removal(server, last).await;
                continue;
            }
            server.state().lose_container();
            let cause = Cause::CannotStart(ALL_GONE.to_owned());
            self.send(News::Gone { key: server.key(last), cause });
        }
    }

    /// Removes the containers of this instance that belong to no server any more, and those that were
    /// to be replaced when a daemon died.
    async fn sweep(&self, up: &Up, listed: Vec<Listed>) {
        let is_wanted = |found: &Listed| {
            found.server.parse().ok().is_some_and(|name| match self.server(&name) {
                Some(server) => server.needs(&found.id),
                None => self.wanted().contains(&name),
            })
        };
        for found in listed.into_iter().filter(|found| !is_wanted(found)) {
            tracing::info!(server = found.server, container = found.id, "sweeping a container");
            if let Err(error) = up.api.remove(&found.id).await {
                tracing::warn!(container = found.id, %error, "cannot remove a container");
            }
        }
    }

    /// The servers whose containers this very engine has.
    fn servers_with_container(&self, host: &Arc<Host>, up: &Up) -> Vec<Arc<Server>> {
        let mut servers = self.servers_at(host);
        servers.retain(|server| {
            let state = server.state();
            state.container.is_some() && !state.is_elsewhere(&up.who.id)
        });
        servers
    }
}

fn is_missing(server: &Server, listed: &[Listed]) -> bool {
    let state = server.state();
    let container = state.container.as_ref();
    container.is_some_and(|container| !listed.iter().any(|listed| listed.id == *container))
}
