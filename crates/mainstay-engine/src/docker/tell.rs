//! From what an engine says to news.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{Cause, Exit, RunId, ServerName};
use tokio::time::{Instant, sleep};

use super::api::{Failure, Inspected};
use super::creations::blocking;
use super::host::{Errand, Host, Up};
use super::past;
use super::pump::{Pump, Stdout};
use super::server::Server;
use super::shared::Shared;
use super::watch::{Fact, Said};
use crate::{News, Started};

/// How long the last words of a run may take to be read.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// How long it may take until it is known that somebody stopped a run.
const STOP_IS_KNOWN: Duration = Duration::from_secs(1);

/// A connection that ended is looked into after this time: most often the run has ended, which is told
/// sooner.
const LOOK_LATER: Duration = Duration::from_millis(500);

/// An engine passes a line to its streams first and writes it to the log a moment later. A line of that moment would
/// be in neither the new stream nor the log.
const LOG_DELAY: Duration = Duration::from_millis(200);

impl Shared {
    /// Takes in an event about a server's container.
    pub(super) async fn hear(self: &Arc<Self>, server: &Arc<Server>, up: &Up, said: Said) {
        let facts = server.state().watch.hear(Instant::now().into_std(), said);
        self.tell(server, up, facts).await;
    }

    /// Looks at a server's container.
    pub(super) async fn look(
        self: &Arc<Self>,
        host: &Arc<Host>,
        up: &Up,
        name: &ServerName,
    ) -> Result<(), Failure> {
        let Some(server) = self.server(name) else { return Ok(()) };
        let container = {
            let state = server.state();
            (state.host.address == host.address).then(|| state.container.clone()).flatten()
        };
        let Some(container) = container else { return Ok(()) };
        match up.api.inspect(&container).await {
            Ok(inspected) => {
                self.see(&server, up, &inspected, false).await;
                Ok(())
            }
            // Two complete lists decide whether it was removed.
            Err(Failure::Missing(_)) => self.compare(host, up, false).await,
            Err(other) => Err(other),
        }
    }

    /// Takes in an inspection. With `returned`, the engine was away until now.
    pub(super) async fn see(
        self: &Arc<Self>,
        server: &Arc<Server>,
        up: &Up,
        inspected: &Inspected,
        returned: bool,
    ) {
        let facts = {
            let mut state = server.state();
            if state.container.as_deref() != Some(&inspected.seen.id) {
                return;
            }
            let starting = server.busy.try_lock().is_err();
            if state.started_at.is_empty() && state.watch.run().is_some() && !starting {
                // It was started, but could not be looked at.
                state.begin(inspected);
                state.watch.started(&inspected.seen);
            }
            let facts = state.watch.see(&inspected.seen, returned);
            if facts.iter().any(|fact| matches!(fact, Fact::Restarted { .. })) {
                state.begin(inspected);
            }
            facts
        };
        self.tell(server, up, facts).await;
        self.listen(server, up).await;
    }

    /// Tells what has become known, and acts on it.
    pub(super) async fn tell(self: &Arc<Self>, server: &Arc<Server>, up: &Up, facts: Vec<Fact>) {
        for fact in facts {
            match fact {
                Fact::Died { run, exit } => self.tell_end(server, run, exit).await,
                Fact::EngineTook { run } => {
                    self.close(server, run, "lost with its engine").await;
                    self.send(News::Gone { key: server.key(run), cause: Cause::EngineAway });
                }
                Fact::Amended { run, cause } => self.amend(server, run, cause),
                Fact::Restarted { old, new } => self.tell_restart(server, up, old, new).await,
                Fact::Paused(run) => self.send(News::Paused { key: server.key(run) }),
                Fact::Unpaused(run) => self.send(News::Unpaused { key: server.key(run) }),
                Fact::Unhealthy(run) => self.send(News::Unhealthy { key: server.key(run) }),
                Fact::Healthy(run) => self.send(News::Healthy { key: server.key(run) }),
                Fact::Removed(run) => self.tell_removal(server, run).await,
                Fact::Look => {
                    let host = Arc::clone(&server.state().host);
                    host.leave(Errand::Look(server.name.clone(), Instant::now()));
                }
            }
        }
    }

    async fn tell_end(&self, server: &Arc<Server>, run: RunId, exit: Exit) {
        server.state().unsettled = Some((run, exit));
        let stderr = self.close(server, run, &exit.to_string()).await;
        self.send(News::Exited { key: server.key(run), exit, stderr });
        let respect = {
            let mut state = server.state();
            if !self.is_listed() {
                state.unseen = Some((run, exit));
            }
            state.respect.then(|| Arc::clone(&state.host))
        };
        match respect {
            Some(host) => {
                let at = Instant::now() + STOP_IS_KNOWN;
                host.leave(Errand::Settle(server.name.clone(), run, at));
            }
            None => self.settle(&server.name, run),
        }
    }

    /// Nobody is known to have stopped that run, and it is time to say so.
    pub(super) fn settle(&self, name: &ServerName, run: RunId) {
        let Some(server) = self.server(name) else { return };
        let settled = server.state().unsettled.take_if(|(unsettled, _)| *unsettled == run);
        if let Some((run, exit)) = settled {
            self.send(News::Gone { key: server.key(run), cause: Cause::Exited(exit) });
        }
    }

    fn amend(&self, server: &Arc<Server>, run: RunId, cause: Cause) {
        let key = server.key(run);
        let unsettled = server.state().unsettled.take_if(|(unsettled, _)| *unsettled == run);
        self.send(match unsettled {
            Some(_) => News::Gone { key, cause },
            None => News::Amended { key, cause },
        });
    }

    async fn tell_restart(self: &Arc<Self>, server: &Arc<Server>, up: &Up, old: RunId, new: RunId) {
        self.close(server, old, "restarted by someone else").await;
        let container = server.state().container.clone();
        let Some(container) = container else { return };
        let pump = self.pump(server, new, &container);
        server.state().pump = Some(pump);
        self.keep_record(server).await;
        self.listen(server, up).await;
        let started = Started { container: Some(container), ..Started::default() };
        self.send(News::Restarted { key: server.key(old), new, started });
    }

    /// Somebody removed the container. What is known of it stays until the server is forgotten.
    pub(super) async fn tell_removal(&self, server: &Arc<Server>, last: RunId) {
        self.close(server, last, "removed").await;
        {
            let mut state = server.state();
            state.container = None;
            state.lost = None;
            state.removed = true;
        }
        self.send(News::Gone { key: server.key(last), cause: Cause::Removed });
    }

    /// Ends the conversation with a run that is over, and hands out its last lines.
    async fn close(&self, server: &Arc<Server>, run: RunId, how: &str) -> Vec<u8> {
        let pump = server.state().pump.take();
        if let Some(pump) = pump {
            pump.finish(LAST_WORDS).await;
            self.log(&server.name).write_lines(format!("--- run {run} {how} ---").as_bytes());
            let mut state = server.state();
            state.past = pump.past();
            state.last_stderr = pump.stderr();
        }
        self.keep_record(server).await;
        server.state().last_stderr.clone()
    }

    /// The streams of a run that begins in that container.
    pub(super) fn pump(&self, server: &Arc<Server>, run: RunId, container: &str) -> Arc<Pump> {
        let mut log = self.log(&server.name);
        let short = container.get(..12).unwrap_or(container);
        log.write_lines(format!("--- run {run}, container {short} ---").as_bytes());
        let (stdout, past, host) = {
            let mut state = server.state();
            (state.stdout, std::mem::take(&mut state.past), Arc::clone(&state.host))
        };
        let name = server.name.clone();
        let lost = move || host.leave(Errand::Look(name.clone(), Instant::now() + LOOK_LATER));
        Arc::new(Pump::start(&self.tasks, stdout, log, past, lost))
    }

    /// Connects again to the streams of a run that lives, if the connection was lost. A run that an
    /// earlier daemon had is left alone until its lines are asked for: some engines close the standard
    /// input of a container with each connection that ends.
    pub(super) async fn listen(&self, server: &Arc<Server>, up: &Up) {
        let lost = {
            let state = server.state();
            let words = state.stdout == Stdout::Log;
            let alone = state.pump.is_none() && !words;
            let connected = state.pump.as_ref().is_some_and(|pump| pump.is_connected());
            state.watch.run().is_some() && !alone && !connected
        };
        if lost && let Err(error) = self.connect(server, up).await {
            tracing::warn!(server = %server.name, %error, "cannot listen to a container");
            let host = Arc::clone(&server.state().host);
            host.leave(Errand::Look(server.name.clone(), Instant::now() + LOOK_LATER));
        }
    }

    /// Connects to the streams of a run. What it wrote while the connection was lost is taken from the
    /// log. What it wrote to an earlier daemon, or to none, is told apart from what follows.
    pub(super) async fn connect(&self, server: &Arc<Server>, up: &Up) -> Result<(), Failure> {
        let (run, pump, container, stdout, started_at) = {
            let state = server.state();
            let (Some(run), Some(container)) = (state.watch.run(), state.container.clone()) else {
                return Ok(());
            };
            (run, state.pump.clone(), container, state.stdout, state.started_at.clone())
        };
        let streams = up.api.attach(&container, stdout).await?;
        // The log is read after the connection, so that every line is in one of the two.
        if let Some(pump) = pump {
            sleep(LOG_DELAY).await;
            let missed = up.api.written_since(&container, past::seconds(&started_at)).await?;
            pump.connect(streams, Some(missed)).await;
        } else {
            let earlier = match stdout {
                Stdout::Protocol => past::said_before(up, &container, &started_at).await?,
                Stdout::Log => Vec::new(),
            };
            let pump = self.pump(server, run, &container);
            pump.recall(earlier);
            pump.connect(streams, None).await;
            server.state().pump = Some(pump);
        }
        Ok(())
    }

    /// Writes down which run a container is in. The record is made when it is written, so none is out of date.
    pub(super) async fn keep_record(&self, server: &Arc<Server>) {
        let (records, server) = (self.records.clone(), Arc::clone(server));
        let write = move || {
            records.write(&server.name, || server.state().record());
            Ok(())
        };
        if let Err(error) = blocking(write).await {
            tracing::warn!(%error, "the record of a container was not written");
        }
    }

    /// The engine at an address does not answer.
    pub(super) fn tell_away(&self, host: &Arc<Host>, why: &str) {
        for server in self.servers_at(host) {
            let unsettled = server.state().unsettled.take();
            if let Some((run, _)) = unsettled {
                self.send(News::Gone { key: server.key(run), cause: Cause::EngineAway });
            }
            self.miss(&server, why.to_owned());
        }
    }

    /// The engine of a server does not answer, or another one does. Each reason is told once.
    pub(super) fn miss(&self, server: &Server, why: String) {
        let before = {
            let mut state = server.state();
            state.away = true;
            state.away_why.replace(why.clone())
        };
        if before.as_ref() != Some(&why) {
            self.send(News::Away { server: server.name.clone(), why });
        }
    }

    /// The engine at an address answers, and everything has been compared.
    pub(super) async fn tell_back(self: &Arc<Self>, host: &Arc<Host>, up: &Up) {
        for server in self.servers_at(host) {
            if server.state().is_elsewhere(&up.who.id) {
                let why = host.stranger();
                self.miss(&server, why);
                continue;
            }
            self.listen(&server, up).await;
            server.state().away_why = None;
            if std::mem::replace(&mut server.state().away, false) {
                self.send(News::Back { server: server.name.clone() });
            }
        }
    }
}
