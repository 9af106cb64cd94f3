//! One container engine at one address: whether it answers, and what its event stream reports.
//!
//! A task per address runs as long as the [`DockerEngine`](super::DockerEngine). Events only trigger inspections;
//! [`Watch`](super::watch::Watch) decides what they mean. When the event stream ends, or a request fails, the engine
//! is connected to again. An engine that does not answer within two seconds is away.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bollard::models::EventMessage;
use futures_util::{Stream, StreamExt, stream};
use mainstay_core::{RunId, ServerName};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::api::{Api, Failure, Identity, Listed, NoAnswer, PING_TIMEOUT, QUERY_TIMEOUT};
use super::shared::Shared;
use super::watch::{ContainerEvent, parse_event};
use crate::discover::Address;
use crate::tasks::or_pending;

/// Delays between attempts to reach an engine that is away.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LATER: Duration = Duration::from_secs(1);

/// Delay before an inspection that failed is repeated.
const INSPECT_AGAIN: Duration = Duration::from_millis(500);

/// How long an engine may take to begin its event stream.
const SUBSCRIPTION: Duration = Duration::from_millis(20);

const REQUEST_QUEUE: usize = 1024;

/// A container engine at an address.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) address: Address,
    reachability: watch::Sender<Reachability>,
    requests: mpsc::Sender<HostRequest>,
    /// Held by the task that removes containers there.
    pub(super) sweeping: Arc<tokio::sync::Mutex<()>>,
    /// Number of lists in which each foreign container appeared, by id.
    foreign: Mutex<HashMap<String, u32>>,
}

/// Whether an engine answers.
#[derive(Debug, Clone)]
pub(crate) enum Reachability {
    /// It has not been tried yet.
    Unknown,
    Up(LiveEngine),
    Away(Unreachable),
}

/// Why an engine cannot be used, and has to be connected to again.
#[derive(Debug, Clone)]
pub(crate) struct Unreachable {
    pub(crate) why: String,
    pub(crate) is_permission_denied: bool,
}

impl Unreachable {
    fn new(why: String) -> Self {
        Self { why, is_permission_denied: false }
    }

    pub(crate) fn at(address: &Address, failure: &Failure) -> Self {
        let is_permission_denied = *failure == Failure::NoAnswer(NoAnswer::PermissionDenied);
        Self { why: format!("{address} does not answer: {failure}"), is_permission_denied }
    }
}

/// An engine that answers.
#[derive(Debug, Clone)]
pub(crate) struct LiveEngine {
    pub(crate) api: Api,
    pub(crate) identity: Identity,
}

/// Work for the task of a host.
#[derive(Debug)]
pub(crate) enum HostRequest {
    /// Inspect a server's container at that time.
    Inspect(ServerName, Instant),
    /// Report the exit of a run at that time, unless its cause has become known by then.
    ConfirmExit(ServerName, RunId, Instant),
    /// Check that the engine still answers.
    CheckAlive,
    /// Compare everything with the engine's list. The sender is dropped when that is done.
    Compare(mpsc::Sender<()>),
}

impl Host {
    /// Starts the task that watches the engine at an address.
    pub(super) fn start(shared: &Arc<Shared>, address: Address) -> Arc<Self> {
        let (requests, inbox) = mpsc::channel(REQUEST_QUEUE);
        let host = Arc::new(Self {
            address,
            reachability: watch::Sender::new(Reachability::Unknown),
            requests,
            sweeping: Arc::default(),
            foreign: Mutex::default(),
        });
        let watcher = Watcher {
            shared: Arc::downgrade(shared),
            host: Arc::clone(&host),
            requests: inbox,
            due: Vec::new(),
        };
        shared.tasks.spawn(watcher.run());
        host
    }

    /// The engine, or why it does not answer. Waits for the first attempt to connect.
    pub(crate) async fn engine(&self) -> Result<LiveEngine, Unreachable> {
        let mut reachability = self.reachability.subscribe();
        let known = reachability.wait_for(|now| !matches!(now, Reachability::Unknown));
        let known = timeout(PING_TIMEOUT + QUERY_TIMEOUT, known).await;
        match known.ok().and_then(Result::ok).as_deref() {
            Some(Reachability::Up(engine)) => Ok(engine.clone()),
            Some(Reachability::Away(why)) => Err(why.clone()),
            Some(Reachability::Unknown) | None => {
                Err(Unreachable::new(format!("{} has not answered yet", self.address)))
            }
        }
    }

    /// Whether it answers, as far as that is known without asking.
    pub(crate) fn reachability(&self) -> Reachability {
        self.reachability.borrow().clone()
    }

    /// The message for when another engine answers than the one that has a server's container.
    pub(crate) fn other_engine(&self) -> String {
        format!("another engine answers at {} than the one that has its container", self.address)
    }

    /// Logs once which containers have our labels although we did not create them. They are left alone.
    pub(crate) fn report_foreign(&self, listed: &[Listed], foreign: &[Listed]) {
        let mut seen = mainstay_core::lock(&self.foreign);
        seen.retain(|id, _| listed.iter().any(|listed| listed.id == *id));
        for Listed { id, name, server, .. } in foreign {
            let lists = seen.entry(id.clone()).or_default();
            *lists = lists.saturating_add(1);
            // The first list may be older than the records, if a container was removed in between.
            if *lists == 2 {
                tracing::warn!(
                    container = name,
                    id,
                    server,
                    "a container has Mainstay labels but no record; it is left alone. If it is not \
                     needed: `docker rm --force {name}`"
                );
            }
        }
    }

    /// Queues work for the task. Work is dropped if the queue is full: the next comparison makes up for it.
    pub(crate) fn request(&self, request: HostRequest) {
        self.requests.try_send(request).ok();
    }

    /// Compares everything with what the engine lists.
    pub(crate) async fn compare(&self) {
        let (done, mut compared) = mpsc::channel(1);
        if self.requests.send(HostRequest::Compare(done)).await.is_ok() {
            compared.recv().await;
        }
    }
}

type Event = Result<EventMessage, bollard::errors::Error>;

/// The task of a host.
struct Watcher {
    shared: Weak<Shared>,
    host: Arc<Host>,
    requests: mpsc::Receiver<HostRequest>,
    /// Requests that are due later.
    due: Vec<(Instant, HostRequest)>,
}

impl Watcher {
    async fn run(mut self) {
        let mut tries: u32 = 0;
        loop {
            let unreachable = match Api::connect(&self.host.address).await {
                Ok((api, identity)) => self.serve(LiveEngine { api, identity }, &mut tries).await,
                Err(failure) => self.unreachable(&failure),
            };
            let Some(shared) = self.shared.upgrade() else { return };
            self.host.reachability.send_replace(Reachability::Away(unreachable.clone()));
            shared.report_away(&self.host, &unreachable.why);
            drop(shared);
            tries = tries.saturating_add(1);
            match tries {
                1 => {}
                2..20 => self.wait(RETRY_FIRST).await,
                _ => self.wait(RETRY_LATER).await,
            }
        }
    }

    /// Waits while the engine is away. Requests are dropped meanwhile: everything is compared when it is back.
    async fn wait(&mut self, pause: Duration) {
        let mut pause = pin!(sleep(pause));
        loop {
            tokio::select! {
                () = &mut pause => return,
                Some(_dropped) = self.requests.recv() => {}
            }
        }
    }

    /// Follows an engine until it no longer answers.
    async fn serve(&mut self, engine: LiveEngine, tries: &mut u32) -> Unreachable {
        let Some(shared) = self.shared.upgrade() else {
            return Unreachable::new("this daemon is ending".to_owned());
        };
        let mut events = pin!(engine.api.events(&shared.instance).fuse());
        // Polling the stream subscribes to events. The engine does not confirm that; what happens between the
        // comparison and the subscription is found by the next comparison.
        let first = tokio::select! {
            biased;
            event = events.next() => event,
            () = sleep(SUBSCRIPTION) => None,
        };
        let returned = matches!(self.host.reachability(), Reachability::Away(_));
        if let Err(failure) = shared.compare(&self.host, &engine, returned).await {
            return self.unreachable(&failure);
        }
        self.host.reachability.send_replace(Reachability::Up(engine.clone()));
        shared.report_back(&self.host, &engine).await;
        drop(shared);
        *tries = 0;
        let events = stream::iter(first).chain(events);
        let Err(unreachable) = self.process_events(&engine, events).await;
        unreachable
    }

    async fn process_events(
        &mut self,
        engine: &LiveEngine,
        mut events: impl Stream<Item = Event> + Unpin,
    ) -> Result<Infallible, Unreachable> {
        loop {
            let due = self.due.iter().map(|(at, _)| *at).min();
            tokio::select! {
                event = events.next() => self.handle_event(engine, event).await?,
                Some(request) = self.requests.recv() => self.handle_request(engine, request).await?,
                () = or_pending(due.map(sleep_until)) => self.run_due(engine).await?,
            }
        }
    }

    /// Handles an event. The stream ends with its engine, even if a new engine already answers at the address.
    async fn handle_event(
        &mut self,
        engine: &LiveEngine,
        event: Option<Event>,
    ) -> Result<(), Unreachable> {
        let Some(Ok(event)) = event else {
            let why = format!("{} closed its event stream", self.host.address);
            return Err(Unreachable::new(why));
        };
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let Some(actor) = event.actor else { return Ok(()) };
        let attributes = actor.attributes.unwrap_or_default();
        let event = parse_event(event.action.as_deref().unwrap_or_default(), &attributes);
        let (Some(event), Some(id)) = (event, actor.id) else { return Ok(()) };
        let Some(server) = shared.server_of(&self.host, &id) else { return Ok(()) };
        // An engine that stops kills its containers and reports that, but no longer accepts connections.
        if matches!(event, ContainerEvent::Die { .. }) {
            self.ping(engine).await?;
        }
        shared.handle_event(&server, engine, event).await;
        Ok(())
    }

    async fn handle_request(
        &mut self,
        engine: &LiveEngine,
        request: HostRequest,
    ) -> Result<(), Unreachable> {
        match request {
            HostRequest::Inspect(_, at) | HostRequest::ConfirmExit(_, _, at) => {
                self.due.push((at, request));
            }
            HostRequest::CheckAlive => {
                self.ping(engine).await?;
                let Some(shared) = self.shared.upgrade() else { return Ok(()) };
                shared.report_back(&self.host, engine).await;
            }
            HostRequest::Compare(_done) => {
                // A ping fails sooner than a list if the engine hangs.
                self.ping(engine).await?;
                let Some(shared) = self.shared.upgrade() else { return Ok(()) };
                match shared.compare(&self.host, engine, false).await {
                    Ok(()) => shared.report_back(&self.host, engine).await,
                    Err(_) => self.ping(engine).await?,
                }
                // Another engine may have taken over the address without ending the event stream.
                if shared.waits_for_other_engine(&self.host, engine)
                    && engine.api.identity().await.is_ok_and(|now| now != engine.identity)
                {
                    return Err(Unreachable::new(self.host.other_engine()));
                }
            }
        }
        Ok(())
    }

    async fn run_due(&mut self, engine: &LiveEngine) -> Result<(), Unreachable> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let now = Instant::now();
        while let Some(index) = self.due.iter().position(|(at, _)| *at <= now) {
            match self.due.swap_remove(index).1 {
                HostRequest::Inspect(server, _) => {
                    if shared.inspect(&self.host, engine, &server).await.is_err() {
                        let again = now + INSPECT_AGAIN;
                        self.due.push((again, HostRequest::Inspect(server, again)));
                        self.ping(engine).await?;
                    }
                }
                HostRequest::ConfirmExit(server, run, _) => shared.confirm_exit(&server, run),
                HostRequest::CheckAlive | HostRequest::Compare(_) => {}
            }
        }
        Ok(())
    }

    async fn ping(&self, engine: &LiveEngine) -> Result<(), Unreachable> {
        engine.api.ping().await.map_err(|failure| self.unreachable(&failure))
    }

    fn unreachable(&self, failure: &Failure) -> Unreachable {
        Unreachable::at(&self.host.address, failure)
    }
}
