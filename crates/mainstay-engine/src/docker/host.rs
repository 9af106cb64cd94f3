//! One engine at one address: who answers there, and what it says.
//!
//! A task keeps watch over it for as long as the engine of containers lives. It listens to events, which
//! only wake: what they mean is decided by [`Watch`](super::watch::Watch), and whatever matters is
//! looked up. When the stream of events ends, or anything else makes the engine suspect, it is met
//! anew; one that cannot be met within two seconds is away.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bollard::models::EventMessage;
use futures_util::{Stream, StreamExt};
use mainstay_core::{RunId, ServerName};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::api::{ASK, Api, Identity, Listed, PING};
use super::shared::Shared;
use super::watch::{Said, said};
use crate::discover::Address;

/// How often an engine that is away is tried, at first and later.
const TRY_FIRST: Duration = Duration::from_millis(100);
const TRY_LATER: Duration = Duration::from_secs(1);

/// What could not be looked at is looked at again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long an engine may take to begin with its events.
const SUBSCRIPTION: Duration = Duration::from_millis(20);

/// Errands on their way to the task of a host.
const ERRANDS: usize = 1024;

/// An engine at an address.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) address: Address,
    reach: watch::Sender<Reach>,
    errands: mpsc::Sender<Errand>,
    /// Held by whoever sweeps there.
    pub(super) sweeping: Arc<tokio::sync::Mutex<()>>,
    /// Number of lists in which each foreign container appeared, by id.
    foreign: Mutex<HashMap<String, u32>>,
}

/// Whether an engine answers.
#[derive(Debug, Clone)]
pub(crate) enum Reach {
    /// It has not been tried yet.
    Untried,
    /// It does.
    Up(Up),
    /// It does not, and this is why.
    Away(String),
}

/// An engine that answers.
#[derive(Debug, Clone)]
pub(crate) struct Up {
    pub(crate) api: Api,
    pub(crate) who: Identity,
}

/// Something to be done by the task of a host.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Look at a server's container at that time.
    Look(ServerName, Instant),
    /// By then it is known whether somebody stopped that run.
    Settle(ServerName, RunId, Instant),
    /// Find out whether the engine is still there.
    Doubt,
    /// Compare everything, and say when that is done.
    Compare(mpsc::Sender<()>),
}

impl Host {
    /// Begins to keep watch over what answers at an address.
    pub(super) fn start(shared: &Arc<Shared>, address: Address) -> Arc<Self> {
        let (errands, inbox) = mpsc::channel(ERRANDS);
        let reach = watch::Sender::new(Reach::Untried);
        let (sweeping, foreign) = (Arc::default(), Mutex::default());
        let host = Arc::new(Self { address, reach, errands, sweeping, foreign });
        let watcher = Watcher {
            shared: Arc::downgrade(shared),
            host: Arc::clone(&host),
            errands: inbox,
            due: Vec::new(),
        };
        shared.tasks.spawn(watcher.run());
        host
    }

    /// The engine, if it answers; or why it does not.
    pub(crate) async fn up(&self) -> Result<Up, String> {
        let mut reach = self.reach.subscribe();
        let known = timeout(PING + ASK, reach.wait_for(|reach| !matches!(reach, Reach::Untried)));
        match known.await.map(|known| known.map(|known| known.clone())) {
            Ok(Ok(Reach::Up(up))) => Ok(up),
            Ok(Ok(Reach::Away(why))) => Err(why),
            Ok(Ok(Reach::Untried) | Err(_)) | Err(_) => {
                Err(format!("{} has not answered yet", self.address))
            }
        }
    }

    /// Whether it answers, as far as that is known without asking.
    pub(crate) fn reach(&self) -> Reach {
        self.reach.borrow().clone()
    }

    /// What is said when another engine answers than the one that has a server's container.
    pub(crate) fn stranger(&self) -> String {
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

    /// Leaves something to be done. There is always more than one way to learn of anything, so nothing
    /// is lost for good if there is no room.
    pub(crate) fn leave(&self, errand: Errand) {
        self.errands.try_send(errand).ok();
    }

    /// Has everything compared with what the engine lists.
    pub(crate) async fn compare(&self) {
        let (done, mut compared) = mpsc::channel(1);
        if self.errands.send(Errand::Compare(done)).await.is_ok() {
            compared.recv().await;
        }
    }
}

/// What a stream of events has; nothing at its end.
type Event = Result<EventMessage, bollard::errors::Error>;
type Heard = Option<Event>;

/// Who keeps watch over a host.
struct Watcher {
    shared: Weak<Shared>,
    host: Arc<Host>,
    errands: mpsc::Receiver<Errand>,
    /// What is to be done later.
    due: Vec<(Instant, Later)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Later {
    Look(ServerName),
    Settle(ServerName, RunId),
}

/// Why an engine is to be met anew, for people.
#[derive(Debug)]
struct Doubt(String);

impl Watcher {
    /// Goes on until nobody needs the engine any more.
    async fn run(mut self) {
        let mut tries: u32 = 0;
        loop {
            let Doubt(why) = match Api::meet(&self.host.address).await {
                Ok((api, who)) => self.attend(Up { api, who }, &mut tries).await,
                Err(failure) => self.doubt(&failure),
            };
            let Some(shared) = self.shared.upgrade() else { return };
            self.host.reach.send_replace(Reach::Away(why.clone()));
            shared.tell_away(&self.host, &why);
            drop(shared);
            tries = tries.saturating_add(1);
            match tries {
                1 => {}
                2..20 => self.wait(TRY_FIRST).await,
                _ => self.wait(TRY_LATER).await,
            }
        }
    }

    /// Waits while the engine is away. Nothing can be looked at meanwhile, and all is compared when it is
    /// back: who waits for a comparison is told that nothing can be said.
    async fn wait(&mut self, pause: Duration) {
        let mut pause = pin!(sleep(pause));
        loop {
            tokio::select! {
                () = &mut pause => return,
                Some(_useless) = self.errands.recv() => {}
            }
        }
    }

    /// Listens to an engine until there is reason to doubt that it is there.
    async fn attend(&mut self, up: Up, tries: &mut u32) -> Doubt {
        let Some(shared) = self.shared.upgrade() else { return self.doubt(&"nobody asks") };
        let mut events = pin!(up.api.events(&shared.instance));
        // The engine is asked for its events with this. It does not say when it tells them from then on;
        // what happens before that, and after the comparison, the next one finds.
        let first = tokio::select! {
            biased;
            event = events.next() => Some(event),
            () = sleep(SUBSCRIPTION) => None,
        };
        let returned = matches!(self.host.reach(), Reach::Away(_));
        if let Err(failure) = shared.compare(&self.host, &up, returned).await {
            return self.doubt(&failure);
        }
        self.host.reach.send_replace(Reach::Up(up.clone()));
        shared.tell_back(&self.host, &up).await;
        drop(shared);
        *tries = 0;
        match self.listen(&up, first, events).await {
            Ok(never) => match never {},
            Err(doubt) => doubt,
        }
    }

    async fn listen(
        &mut self,
        up: &Up,
        first: Option<Heard>,
        mut events: impl Stream<Item = Event> + Unpin,
    ) -> Result<Infallible, Doubt> {
        if let Some(event) = first {
            self.hear(up, event).await?;
        }
        loop {
            let due = self.due.iter().map(|(at, _)| *at).min();
            tokio::select! {
                event = events.next() => self.hear(up, event).await?,
                Some(errand) = self.errands.recv() => self.run_errand(up, errand).await?,
                () = at(due) => self.do_what_is_due(up).await?,
            }
        }
    }

    /// Takes in an event. The stream of events ends with its engine, even if the next one is there before
    /// anybody could miss it.
    async fn hear(&mut self, up: &Up, event: Heard) -> Result<(), Doubt> {
        let Some(Ok(event)) = event else {
            return Err(Doubt(format!("{} broke off the stream of events", self.host.address)));
        };
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let Some(actor) = event.actor else { return Ok(()) };
        let attributes = actor.attributes.unwrap_or_default();
        let said = said(event.action.as_deref().unwrap_or_default(), &attributes);
        let (Some(said), Some(id)) = (said, actor.id) else { return Ok(()) };
        let Some(server) = shared.server_of(&self.host, &id) else { return Ok(()) };
        // An engine that stops kills its containers and says so, when it no longer takes connections.
        if matches!(said, Said::Die { .. }) {
            self.ping(up).await?;
        }
        shared.hear(&server, up, said).await;
        Ok(())
    }

    async fn run_errand(&mut self, up: &Up, errand: Errand) -> Result<(), Doubt> {
        match errand {
            Errand::Look(server, at) => self.due.push((at, Later::Look(server))),
            Errand::Settle(server, run, at) => self.due.push((at, Later::Settle(server, run))),
            Errand::Doubt => {
                self.ping(up).await?;
                let Some(shared) = self.shared.upgrade() else { return Ok(()) };
                shared.tell_back(&self.host, up).await;
            }
            Errand::Compare(_done) => {
                // One that hangs is found out sooner than by the answers that it owes.
                self.ping(up).await?;
                let Some(shared) = self.shared.upgrade() else { return Ok(()) };
                match shared.compare(&self.host, up, false).await {
                    Ok(()) => shared.tell_back(&self.host, up).await,
                    Err(_) => self.ping(up).await?,
                }
                // The right one may be back without a word: no stream of its own has ended.
                if shared.misses_another(&self.host, up)
                    && up.api.identity().await.is_ok_and(|who| who != up.who)
                {
                    return Err(Doubt(self.host.stranger()));
                }
            }
        }
        Ok(())
    }

    async fn do_what_is_due(&mut self, up: &Up) -> Result<(), Doubt> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let now = Instant::now();
        while let Some(index) = self.due.iter().position(|(at, _)| *at <= now) {
            let (_, later) = self.due.swap_remove(index);
            match later {
                Later::Look(server) => {
                    if shared.look(&self.host, up, &server).await.is_err() {
                        self.due.push((now + LOOK_AGAIN, Later::Look(server)));
                        self.ping(up).await?;
                    }
                }
                Later::Settle(server, run) => shared.settle(&server, run),
            }
        }
        Ok(())
    }

    async fn ping(&self, up: &Up) -> Result<(), Doubt> {
        up.api.ping().await.map_err(|failure| self.doubt(&failure))
    }

    fn doubt(&self, why: &dyn fmt::Display) -> Doubt {
        Doubt(format!("{} does not answer: {why}", self.host.address))
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}
