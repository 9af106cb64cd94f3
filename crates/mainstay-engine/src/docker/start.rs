//! Starts a run, in the server's container or in a new one.
//!
//! A container is created once and started many times; only a changed spec needs a new one. Its
//! creation is recorded before the engine is asked for it, so a container that was created when a daemon died is
//! found and removed.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{ContainerSpec, EngineKind, RunId, ServerName, ServerSpec};
use tokio::time::{Instant, sleep};

use super::api::Failure;
use super::body;
use super::host::{HostRequest, LiveEngine};
use super::ownership::{Need, plan};
use super::refusal::Refusal;
use super::server::Server;
use super::shared::{Shared, address_of};
use crate::discover::Address;
use crate::{RunKey, StartError, Started};

/// How long the removal of a container may take, and how often the container is inspected.
const REMOVAL: Duration = Duration::from_secs(5);
const INSPECT_EVERY: Duration = Duration::from_millis(50);

/// How long an engine may take to clean up after a run.
const CLEAN_UP: Duration = Duration::from_secs(5);

impl Shared {
    pub(super) async fn start(
        self: &Arc<Self>,
        key: &RunKey,
        spec: &ServerSpec,
        container: &ContainerSpec,
    ) -> Result<Started, StartError> {
        let server = self.server_at(&key.server, &address_of(container)?);
        let _busy = server.busy.lock().await;
        let host = {
            let mut state = server.state();
            state.apply_spec(spec, container);
            Arc::clone(&state.host)
        };
        let engine = match host.engine().await {
            Ok(engine) => engine,
            Err(unreachable) => return Err(away(&server, unreachable.why)),
        };
        pin_engine(&server, &engine)?;
        let attempt =
            Attempt { shared: self, server: &server, engine: &engine, key, spec, container };
        attempt.make().await
    }

    /// Checks that the engine accepts the spec by creating and removing a trial container.
    pub(super) async fn check_by_trial(
        self: &Arc<Self>,
        address: &Address,
        engine: &LiveEngine,
        spec: &ServerSpec,
        container: &ContainerSpec,
    ) -> Result<(), StartError> {
        let built_in = |name: &str| matches!(name, "bridge" | "default" | "host" | "none");
        if let Some(network) = &container.network
            && !built_in(network)
            && !network.starts_with("container:")
            && let Err(Failure::Missing(_)) = engine.api.has_network(network).await
        {
            return Err(StartError::Refused(format!("there is no network `{network}`")));
        }
        let mut names = self.names(&spec.name);
        names.reverse();
        let key = RunKey::new(spec.name.clone(), RunId::default());
        let tried = match self.create(address, engine, &names, &key, spec, container).await {
            Ok(Ok(id)) => self.remove(&engine.api, &id).await.map_err(|failure| refused(&failure)),
            Ok(Err(Failure::Conflict(_))) => self.check_names(engine, &spec.name, &names).await,
            Ok(Err(failure)) => Err(refused(&failure)),
            Err(error) => Err(error),
        };
        if self.creations.has_any_of(&spec.name) {
            // If it is still there, the host's comparison removes it.
            self.host(address);
        }
        tried
    }

    /// Asks an engine for a container, under the first of these names that is free. What cannot be
    /// recorded is not created.
    async fn create(
        &self,
        address: &Address,
        engine: &LiveEngine,
        names: &[String; 2],
        key: &RunKey,
        spec: &ServerSpec,
        container: &ContainerSpec,
    ) -> Result<Result<String, Failure>, StartError> {
        let (address, engine_id) = (address.to_string(), &engine.identity.id);
        let begun = self.creations.begin(&key.server, &address, engine_id).await;
        let creation = begun.map_err(|cause| self.unrecorded(cause))?;
        let nonce = creation.nonce();
        let body = body::create_body(spec, container, &self.instance, key, nonce);
        let created = engine.api.create(names, &body).await;
        match &created {
            Ok(id) => creation.bind(id).await.map_err(|cause| self.unrecorded(cause))?,
            // It may have been created nevertheless: it is searched for by its nonce.
            Err(Failure::NoAnswer(_) | Failure::Internal(_)) => {}
            Err(Failure::Missing(_) | Failure::Conflict(_) | Failure::Refused(_)) => {
                creation.cancel().await;
            }
        }
        Ok(created)
    }

    /// Checks that one of these names is usable. A name is usable if it is free or held by a container
    /// created for this server.
    async fn check_names(
        &self,
        engine: &LiveEngine,
        server: &ServerName,
        names: &[String; 2],
    ) -> Result<(), StartError> {
        let mut taken = Vec::new();
        for name in names {
            match engine.api.id_of(name).await.map_err(|failure| refused(&failure))? {
                Some(id) if !self.creations.is_of(server, &id) => taken.push((name.clone(), id)),
                Some(_) | None => return Ok(()),
            }
        }
        Err(StartError::NamesTaken { taken })
    }

    fn unrecorded(&self, cause: std::io::Error) -> StartError {
        StartError::Unrecorded { dir: self.creations.dir().to_owned(), cause }
    }
}

/// A start, at an engine that answers.
struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    server: &'a Arc<Server>,
    engine: &'a LiveEngine,
    key: &'a RunKey,
    spec: &'a ServerSpec,
    container: &'a ContainerSpec,
}

impl Attempt<'_> {
    async fn make(&self) -> Result<Started, StartError> {
        let id = self.ready_container().await?;
        let Err(failure) = self.start_and_record(&id).await else {
            return Ok(Started { container: Some(id), ..Started::default() });
        };
        let is_unusable = Refusal::of_start(&failure) == Refusal::Unusable;
        if !is_unusable || self.is_removed(&id).await {
            return Err(self.start_failed(&id, failure).await);
        }
        tracing::warn!(server = %self.key.server, container = id, why = %failure,
            "replacing a container that the engine cannot start any more");
        self.discard_container().await?;
        let id = self.ready_container().await?;
        match self.start_and_record(&id).await {
            Ok(()) => {
                let replaced = Some(failure.to_string());
                Ok(Started { container: Some(id), replaced, ..Started::default() })
            }
            Err(failure) => Err(self.start_failed(&id, failure).await),
        }
    }

    async fn start_and_record(&self, id: &str) -> Result<(), Failure> {
        let outcome = self.start_in(id).await;
        self.shared.save_record(self.server).await;
        outcome
    }

    async fn start_in(&self, id: &str) -> Result<(), Failure> {
        let Self { shared, server, engine, key, .. } = *self;
        let stdout = server.state().stdout;
        // Attached before the start, so that no output is missed.
        let streams = retry_while_cleaning_up(engine, id, || engine.api.attach(id, stdout)).await?;
        let pump = shared.start_pump(server, key.run, id);
        pump.connect(streams, None).await;
        {
            let mut state = server.state();
            state.pump = Some(pump);
            state.started_at.clear();
            state.watch.starting(key.run);
        }
        if let Err(failure) = retry_while_cleaning_up(engine, id, || engine.api.start(id)).await {
            let mut state = server.state();
            state.watch.not_started();
            state.pump = None;
            return Err(failure);
        }
        match engine.api.inspect(id).await {
            Ok(inspected) => {
                let facts = {
                    let mut state = server.state();
                    state.run_started(&inspected);
                    state.watch.started(&inspected.state);
                    state.watch.handle_inspection(&inspected.state, false)
                };
                shared.apply_facts(server, engine, facts).await;
            }
            Err(error) => {
                tracing::warn!(server = %server.name, %error, "cannot inspect a container");
                server.inspect_at(Instant::now() + INSPECT_EVERY);
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
            Some(_) => self.discard_container().await?,
            None => {}
        }
        self.remove_leftovers().await?;
        let id = self.create().await?;
        {
            let mut state = self.server.state();
            state.drop_container();
            state.container = Some(id.clone());
            state.digest = digest;
        }
        self.shared.save_record(self.server).await;
        Ok(id)
    }

    /// Gives up the server's container.
    async fn discard_container(&self) -> Result<(), StartError> {
        self.drop_record().await?;
        self.server.state().drop_container();
        Ok(())
    }

    /// Deletes the run record before its container is removed: a daemon that finds the record, but not
    /// the container, takes the server for removed.
    async fn drop_record(&self) -> Result<(), StartError> {
        let dropped = self.shared.drop_record(&self.key.server).await;
        dropped.map_err(|cause| self.shared.unrecorded(cause))
    }

    /// Removes the containers that were created for the server before: the one that is replaced, and those
    /// left behind when a daemon died or the engine was away.
    async fn remove_leftovers(&self) -> Result<(), StartError> {
        let Self { shared, engine, key, .. } = *self;
        let listed = self.check(engine.api.list(&shared.instance)).await?;
        let need = |server: &ServerName| {
            if *server == key.server { Need::Nothing } else { Need::Unknown }
        };
        let address = self.server.state().host.address.to_string();
        let source = (engine.identity.id.as_str(), address.as_str());
        let plan = plan(source, &listed, &shared.creations.all(), need, Instant::now());
        // The record may name one of them, and may have been written again in the meantime.
        self.drop_record().await?;
        for container in shared.claim(plan).await {
            tracing::info!(server = %key.server, container, "removing a container of the server");
            self.check(shared.remove(&engine.api, &container)).await?;
        }
        Ok(())
    }

    async fn create(&self) -> Result<String, StartError> {
        let Self { shared, server, engine, key, spec, container } = *self;
        let address = server.state().host.address.clone();
        let names = shared.names(&key.server);
        match shared.create(&address, engine, &names, key, spec, container).await? {
            Ok(id) => Ok(id),
            Err(Failure::Missing(_)) => {
                Err(StartError::NoImage { image: container.image.to_string() })
            }
            Err(failure @ Failure::Conflict(_)) => {
                shared.check_names(engine, &key.server, &names).await?;
                Err(self.classify(failure).await)
            }
            Err(failure) => Err(self.classify(failure).await),
        }
    }

    /// The error for a start that failed.
    async fn start_failed(&self, id: &str, failure: Failure) -> StartError {
        // Podman does not report 404 for a container that was removed meanwhile.
        if !matches!(failure, Failure::NoAnswer(_)) && self.is_removed(id).await {
            self.server.state().removed = true;
            return StartError::Removed;
        }
        self.classify(failure).await
    }

    /// Whether a container is gone or being removed.
    async fn is_removed(&self, id: &str) -> bool {
        let until = Instant::now() + REMOVAL;
        loop {
            match self.engine.api.inspect(id).await {
                Err(Failure::Missing(_)) => return true,
                Ok(found) if found.state.removing && Instant::now() < until => {
                    sleep(INSPECT_EVERY).await;
                }
                Ok(found) => return found.state.removing,
                Err(_) => return false,
            }
        }
    }

    /// Awaits a request, and classifies its failure.
    async fn check<T>(
        &self,
        request: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StartError> {
        match request.await {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(self.classify(failure).await),
        }
    }

    /// Classifies a failure. An engine that does not answer a ping is away.
    async fn classify(&self, failure: Failure) -> StartError {
        if let Err(gone) = self.engine.api.ping().await {
            let host = Arc::clone(&self.server.state().host);
            host.request(HostRequest::CheckAlive);
            return away(self.server, format!("{} does not answer: {gone}", host.address));
        }
        match (Refusal::of(&failure), failure) {
            (_, Failure::NoAnswer(why)) => StartError::Shortage {
                what: format!("the engine did not answer ({why})"),
                source: std::io::ErrorKind::TimedOut.into(),
            },
            (Refusal::Temporary | Refusal::Unusable, failure) => {
                StartError::EngineBusy { why: failure.to_string() }
            }
            (Refusal::Final, failure) => StartError::Refused(failure.to_string()),
        }
    }
}

fn refused(failure: &Failure) -> StartError {
    StartError::Refused(failure.to_string())
}

/// Repeats a request that Podman refuses for a moment after the end of a run, until it has cleaned up.
async fn retry_while_cleaning_up<T, F>(
    engine: &LiveEngine,
    id: &str,
    request: impl Fn() -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let until = Instant::now() + CLEAN_UP;
    loop {
        let refused = match request().await {
            Err(failure @ (Failure::Refused(_) | Failure::Internal(_) | Failure::Conflict(_))) => {
                failure
            }
            other => return other,
        };
        let podman = engine.identity.kind == EngineKind::Podman;
        if !podman || Instant::now() >= until {
            return Err(refused);
        }
        if let Err(Failure::Missing(_)) = engine.api.inspect(id).await {
            return Err(refused);
        }
        sleep(INSPECT_EVERY).await;
    }
}

/// The error for an engine that is away. Its return will be reported.
fn away(server: &Server, why: String) -> StartError {
    server.state().away = true;
    StartError::Away { why }
}

/// Stores which engine has a server's container.
fn pin_engine(server: &Server, engine: &LiveEngine) -> Result<(), StartError> {
    let other = {
        let mut state = server.state();
        let is_other = state.container.is_some() && state.is_at_other_engine(&engine.identity.id);
        if !is_other {
            state.engine_id = Some(engine.identity.id.clone());
        }
        is_other.then(|| state.host.other_engine())
    };
    other.map_or(Ok(()), |why| Err(away(server, why)))
}
