//! Starting a run: in the container that the server has, or in a new one.
//!
//! A container is made once and started again and again; only a changed spec needs a new one. A record is
//! written when the container exists, and its labels and its name say whose it is, so one that was made
//! when a daemon died is swept.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{ContainerSpec, EngineKind, RunId, ServerSpec};
use tokio::time::{Instant, sleep};

use super::api::Failure;
use super::body::{self, Labels};
use super::host::{Errand, Up};
use super::server::Server;
use super::shared::{Shared, address_of};
use crate::{RunKey, StartError, Started};

/// How long a container that is being removed is waited for, and how often it is looked at.
const REMOVAL: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// How long an engine may take to clean up after a run.
const CLEAN_UP: Duration = Duration::from_secs(5);

impl Shared {
    /// Starts a run of a server at the engine that was chosen for it.
    pub(super) async fn start(
        self: &Arc<Self>,
        key: &RunKey,
        spec: &ServerSpec,
        container: &ContainerSpec,
    ) -> Result<Started, StartError> {
        let server = self.enter(&key.server, &address_of(container)?);
        let _busy = server.busy.lock().await;
        let host = {
            let mut state = server.state();
            state.describe(spec, container);
            Arc::clone(&state.host)
        };
        let up = match host.up().await {
            Ok(up) => up,
            Err(why) => return Err(away(&server, why)),
        };
        pin(&server, &up)?;
        let attempt = Attempt { shared: self, server: &server, up: &up, key, spec, container };
        attempt.make().await
    }

    /// Whether the engine would make such a container: one is made and removed again. What it says only
    /// when one is started is a matter of the start.
    pub(super) async fn try_out(
        &self,
        up: &Up,
        spec: &ServerSpec,
        container: &ContainerSpec,
    ) -> Result<(), StartError> {
        let built_in = |name: &str| matches!(name, "bridge" | "default" | "host" | "none");
        if let Some(network) = &container.network
            && !built_in(network)
            && !network.starts_with("container:")
            && let Err(Failure::Missing(_)) = up.api.has_network(network).await
        {
            return Err(StartError::Refused(format!("there is no network `{network}`")));
        }
        let run = RunId::default();
        let labels = Labels { instance: &self.instance, server: &spec.name, run };
        let body = body::create_body(spec, container, &labels);
        let [_, name] = self.names(&spec.name);
        match up.api.create_as(&name, &body).await {
            Ok(id) => up.api.remove(&id).await,
            // The server has a container of that name already.
            Err(Failure::Conflict(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| StartError::Refused(failure.to_string()))
    }
}

/// A start, at an engine that answers.
struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    server: &'a Arc<Server>,
    up: &'a Up,
    key: &'a RunKey,
    spec: &'a ServerSpec,
    container: &'a ContainerSpec,
}

impl Attempt<'_> {
    async fn make(&self) -> Result<Started, StartError> {
        let id = self.ready_container().await?;
        let outcome = self.start_in(&id).await;
        self.shared.keep_record(self.server);
        match outcome {
            Ok(()) => Ok(Started { pid: None, container: Some(id) }),
            Err(failure) => Err(self.explain(&id, failure).await),
        }
    }

    async fn start_in(&self, id: &str) -> Result<(), Failure> {
        let Self { shared, server, up, key, .. } = *self;
        let speech = server.state().speech;
        // Before the start, so that no word is missed.
        let streams = patiently(up, id, || up.api.attach(id, speech)).await?;
        let pump = shared.pump(server, key.run, id);
        pump.connect(streams, None).await;
        {
            let mut state = server.state();
            state.pump = Some(pump);
            state.started_at.clear();
            state.watch.starting(key.run);
        }
        if let Err(failure) = patiently(up, id, || up.api.start(id)).await {
            let mut state = server.state();
            state.watch.not_started();
            state.pump = None;
            return Err(failure);
        }
        match up.api.inspect(id).await {
            Ok(inspected) => {
                let facts = {
                    let mut state = server.state();
                    state.begin(&inspected);
                    state.watch.started(&inspected.seen);
                    state.watch.see(&inspected.seen, false)
                };
                shared.tell(server, up, facts).await;
            }
            Err(error) => {
                tracing::warn!(server = %server.name, %error, "cannot look at a container");
                let host = Arc::clone(&server.state().host);
                host.leave(Errand::Look(server.name.clone(), Instant::now() + LOOK));
            }
        }
        Ok(())
    }

    /// The container of the server, as its spec describes it now: the one that it has, or a new one.
    async fn ready_container(&self) -> Result<String, StartError> {
        let digest = body::digest(self.container);
        let (known, same, removed) = {
            let state = self.server.state();
            (state.container.clone(), state.digest == digest, state.removed)
        };
        match known {
            _ if removed => return Err(StartError::Removed),
            Some(id) if same => return Ok(id),
            Some(id) => {
                // What happens to it from here on is our doing.
                self.server.state().lose_container();
                self.ask(self.up.api.remove(&id)).await?;
            }
            None => {}
        }
        let names = self.shared.names(&self.key.server);
        let listed = self.ask(self.up.api.list(&self.shared.instance)).await?;
        for left in listed.iter().filter(|left| names.contains(&left.name)) {
            // A daemon died, or the engine was away, before it was written down or removed.
            self.ask(self.up.api.remove(&left.id)).await?;
        }
        let id = self.create(&names).await?;
        {
            let mut state = self.server.state();
            state.lose_container();
            state.container = Some(id.clone());
            state.digest = digest;
        }
        self.shared.keep_record(self.server);
        Ok(id)
    }

    async fn create(&self, names: &[String; 2]) -> Result<String, StartError> {
        let Self { shared, key, spec, container, .. } = *self;
        let labels = Labels { instance: &shared.instance, server: &key.server, run: key.run };
        let body = body::create_body(spec, container, &labels);
        match self.up.api.create(names, &body).await {
            Ok(id) => Ok(id),
            Err(Failure::Missing(_)) => {
                Err(StartError::NoImage { image: container.image.to_string() })
            }
            Err(failure) => Err(self.blame(failure).await),
        }
    }

    /// What a start that failed means. Whatever the engine answers while it answers is no outage.
    async fn explain(&self, id: &str, failure: Failure) -> StartError {
        // Podman has no word of its own for a container that went meanwhile.
        if let Failure::Missing(_) | Failure::Conflict(_) | Failure::Refused(_) = failure
            && self.is_removed(id).await
        {
            self.server.state().removed = true;
            return StartError::Removed;
        }
        self.blame(failure).await
    }

    /// Whether a container is gone, or just being removed.
    async fn is_removed(&self, id: &str) -> bool {
        let until = Instant::now() + REMOVAL;
        loop {
            match self.up.api.inspect(id).await {
                Err(Failure::Missing(_)) => return true,
                Ok(found) if found.seen.removing && Instant::now() < until => sleep(LOOK).await,
                Ok(found) => return found.seen.removing,
                Err(_) => return false,
            }
        }
    }

    /// Asks something of the engine.
    async fn ask<T>(
        &self,
        asked: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StartError> {
        match asked.await {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(self.blame(failure).await),
        }
    }

    /// Whose fault a failure is: an engine that does not answer any more is away.
    async fn blame(&self, failure: Failure) -> StartError {
        if let Err(gone) = self.up.api.ping().await {
            let host = Arc::clone(&self.server.state().host);
            host.leave(Errand::Doubt);
            return away(self.server, format!("{} does not answer: {gone}", host.address));
        }
        match failure {
            Failure::Missing(why) | Failure::Conflict(why) | Failure::Refused(why) => {
                StartError::Refused(why)
            }
            Failure::Silent(why) => StartError::Short {
                what: format!("the engine did not answer ({why})"),
                source: std::io::ErrorKind::TimedOut.into(),
            },
        }
    }
}

/// Asks something about a container. Podman refuses for a moment after a death, until it has cleaned up;
/// what is still refused after a while, or is about a container that is gone, is refused for good.
async fn patiently<T, F>(up: &Up, id: &str, ask: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let until = Instant::now() + CLEAN_UP;
    loop {
        let refused = match ask().await {
            Err(failure @ (Failure::Refused(_) | Failure::Conflict(_))) => failure,
            other => return other,
        };
        let podman = up.who.kind == EngineKind::Podman;
        if !podman || Instant::now() >= until {
            return Err(refused);
        }
        if let Err(Failure::Missing(_)) = up.api.inspect(id).await {
            return Err(refused);
        }
        sleep(LOOK).await;
    }
}

/// A start fails because the engine is away. Its return will be told.
fn away(server: &Server, why: String) -> StartError {
    server.state().away = true;
    StartError::Away { why }
}

/// Remembers which engine has a server's container.
fn pin(server: &Server, up: &Up) -> Result<(), StartError> {
    let stranger = {
        let mut state = server.state();
        let stranger = state.container.is_some() && state.is_elsewhere(&up.who.id);
        if !stranger {
            state.engine = Some(up.who.id.clone());
        }
        stranger.then(|| state.host.stranger())
    };
    stranger.map_or(Ok(()), |why| Err(away(server, why)))
}
