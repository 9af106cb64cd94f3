//! Turns events and inspections into [`News`].

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{Cause, Exit, RunId, ServerName};
use tokio::time::Instant;

use super::api::{Failure, Inspected};
use super::host::{Host, HostRequest, LiveEngine};
use super::server::Server;
use super::shared::Shared;
use super::watch::{ContainerEvent, Fact};
use crate::tasks::blocking;
use crate::{News, Started};

/// How long it may take until it is known that someone stopped a run.
const STOP_IS_KNOWN: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) async fn handle_event(
        self: &Arc<Self>,
        server: &Arc<Server>,
        engine: &LiveEngine,
        event: ContainerEvent,
    ) {
        let facts = server.state().watch.handle_event(Instant::now().into_std(), event);
        self.apply_facts(server, engine, facts).await;
    }

    /// Inspects a server's container.
    pub(super) async fn inspect(
        self: &Arc<Self>,
        host: &Arc<Host>,
        engine: &LiveEngine,
        name: &ServerName,
    ) -> Result<(), Failure> {
        let Some(server) = self.server(name) else { return Ok(()) };
        let container = {
            let state = server.state();
            (state.host.address == host.address).then(|| state.container.clone()).flatten()
        };
        let Some(container) = container else { return Ok(()) };
        match engine.api.inspect(&container).await {
            Ok(inspected) => {
                self.handle_inspection(&server, engine, &inspected, false).await;
                Ok(())
            }
            // Two complete lists decide whether it was removed.
            Err(Failure::Missing(_)) => self.compare(host, engine, false).await,
            Err(other) => Err(other),
        }
    }

    /// With `returned`, the engine was away until now.
    pub(super) async fn handle_inspection(
        self: &Arc<Self>,
        server: &Arc<Server>,
        engine: &LiveEngine,
        inspected: &Inspected,
        returned: bool,
    ) {
        let facts = {
            let mut state = server.state();
            if state.container.as_deref() != Some(&inspected.state.id) {
                return;
            }
            let starting = server.busy.try_lock().is_err();
            if state.started_at.is_empty() && state.watch.run().is_some() && !starting {
                // It was started, but the inspection after the start failed.
                state.run_started(inspected);
                state.watch.started(&inspected.state);
            }
            let facts = state.watch.handle_inspection(&inspected.state, returned);
            if facts.iter().any(|fact| matches!(fact, Fact::Restarted { .. })) {
                state.run_started(inspected);
            }
            facts
        };
        self.apply_facts(server, engine, facts).await;
        self.reconnect_if_lost(server, engine).await;
    }

    /// Reports what has become known, and acts on it.
    pub(super) async fn apply_facts(
        self: &Arc<Self>,
        server: &Arc<Server>,
        engine: &LiveEngine,
        facts: Vec<Fact>,
    ) {
        for fact in facts {
            match fact {
                Fact::Died { run, exit } => self.report_exit(server, run, exit).await,
                Fact::LostInOutage { run } => {
                    self.close_streams(server, run, "lost with its engine").await;
                    self.send(News::Gone { key: server.key(run), cause: Cause::EngineAway });
                }
                Fact::Amended { run, cause } => {
                    let key = server.key(run);
                    self.send(match server.state().take_unconfirmed(run) {
                        Some(_) => News::Gone { key, cause },
                        None => News::Amended { key, cause },
                    });
                }
                Fact::Restarted { old, new } => self.report_restart(server, engine, old, new).await,
                Fact::Paused(run) => self.send(News::Paused { key: server.key(run) }),
                Fact::Unpaused(run) => self.send(News::Unpaused { key: server.key(run) }),
                Fact::Unhealthy(run) => self.send(News::Unhealthy { key: server.key(run) }),
                Fact::Healthy(run) => self.send(News::Healthy { key: server.key(run) }),
                Fact::Removed(run) => self.report_removal(server, run).await,
                Fact::Inspect => server.inspect_at(Instant::now()),
            }
        }
    }

    async fn report_exit(&self, server: &Arc<Server>, run: RunId, exit: Exit) {
        server.state().unconfirmed_exit = Some((run, exit));
        let stderr = self.close_streams(server, run, &exit.to_string()).await;
        self.send(News::Exited { key: server.key(run), exit, stderr });
        let wait_for_cause = {
            let mut state = server.state();
            if !self.is_listed() {
                state.unreported_exit = Some((run, exit));
            }
            state.respect_stop.then(|| Arc::clone(&state.host))
        };
        match wait_for_cause {
            Some(host) => {
                let at = Instant::now() + STOP_IS_KNOWN;
                host.request(HostRequest::ConfirmExit(server.name.clone(), run, at));
            }
            None => self.confirm_exit(&server.name, run),
        }
    }

    /// Reports that a run is gone, unless the cause of its end has become known before.
    pub(super) fn confirm_exit(&self, name: &ServerName, run: RunId) {
        let Some(server) = self.server(name) else { return };
        let exit = server.state().take_unconfirmed(run);
        if let Some(exit) = exit {
            self.send(News::Gone { key: server.key(run), cause: Cause::Exited(exit) });
        }
    }

    async fn report_restart(
        self: &Arc<Self>,
        server: &Arc<Server>,
        engine: &LiveEngine,
        old: RunId,
        new: RunId,
    ) {
        self.close_streams(server, old, "restarted by someone else").await;
        let container = server.state().container.clone();
        let Some(container) = container else { return };
        let pump = self.start_pump(server, new, &container);
        server.state().pump = Some(pump);
        self.save_record(server).await;
        self.reconnect_if_lost(server, engine).await;
        let started = Started { container: Some(container), ..Started::default() };
        self.send(News::Restarted { key: server.key(old), new, started });
    }

    /// Someone removed the container. Its server is kept until it is forgotten.
    pub(super) async fn report_removal(&self, server: &Arc<Server>, last: RunId) {
        self.close_streams(server, last, "removed").await;
        {
            let mut state = server.state();
            state.container = None;
            state.missing_container = None;
            state.removed = true;
        }
        self.send(News::Gone { key: server.key(last), cause: Cause::Removed });
    }

    /// Writes which run a container is in. The record is composed when it is written, so it is never out of date.
    pub(super) async fn save_record(&self, server: &Arc<Server>) {
        let (records, server) = (self.records.clone(), Arc::clone(server));
        blocking(move || records.write(&server.name, || server.state().record())).await;
    }

    /// The engine at an address does not answer.
    pub(super) fn report_away(&self, host: &Arc<Host>, why: &str) {
        for server in self.servers_at(host) {
            let unconfirmed = server.state().unconfirmed_exit.take();
            if let Some((run, _)) = unconfirmed {
                self.send(News::Gone { key: server.key(run), cause: Cause::EngineAway });
            }
            self.report_missing_engine(&server, why.to_owned());
        }
    }

    /// The engine of a server does not answer, or another one does. Each reason is reported once.
    fn report_missing_engine(&self, server: &Server, why: String) {
        let before = {
            let mut state = server.state();
            state.away = true;
            state.away_reason.replace(why.clone())
        };
        if before.as_ref() != Some(&why) {
            self.send(News::Away { server: server.name.clone(), why });
        }
    }

    /// The engine at an address answers, and everything has been compared.
    pub(super) async fn report_back(self: &Arc<Self>, host: &Arc<Host>, engine: &LiveEngine) {
        for server in self.servers_at(host) {
            if server.state().is_at_other_engine(&engine.identity.id) {
                self.report_missing_engine(&server, host.other_engine());
                continue;
            }
            self.reconnect_if_lost(&server, engine).await;
            server.state().away_reason = None;
            if std::mem::replace(&mut server.state().away, false) {
                self.send(News::Back { server: server.name.clone() });
            }
        }
    }
}
