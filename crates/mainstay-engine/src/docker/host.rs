//! One engine at one address: who answers there, and what it says.
//!
//! A task keeps watch over it for as long as the engine of containers lives. It listens to events, which
//! only wake: what they mean is decided by [`Watch`](super::noticing::Watch), and whatever matters is
//! looked up. When the stream of events ends, or anything else makes the engine suspect, it is met
//! anew; one that cannot be met within two seconds is away.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bollard::models::EventMessage;
use futures_util::StreamExt;
use mainstay_core::{RunId, ServerName};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Shared;
use super::api::{ASK, Api, Identity, PING};
use super::discover::Address;
use super::noticing::{self, Said};

/// How often an engine that is away is tried, at first and later.
const TRY_FIRST: Duration = Duration::from_millis(100);
const TRY_LATER: Duration = Duration::from_secs(1);

/// What could not be looked at is looked at again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Errands on their way to the task of a host.
const ERRANDS: usize = 1024;

/// An engine at an address.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) address: Address,
    reach: watch::Sender<Reach>,
    errands: mpsc::Sender<Errand>,
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
        let host = Arc::new(Self { address, reach, errands });
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

/// Why a watch ended.
enum Ended {
    /// The engine is to be met anew.
    Doubtful,
    /// Nobody needs it any more.
    Unwanted,
}

impl Watcher {
    async fn run(mut self) {
        let mut tries = 0;
        loop {
            let met = Api::meet(&self.host.address).await;
            let Some(shared) = self.shared.upgrade() else { return };
            match met {
                Ok((api, who)) => {
                    tries = 0;
                    drop(shared);
                    match self.attend(Up { api, who }).await {
                        Ended::Doubtful => {}
                        Ended::Unwanted => return,
                    }
                }
                Err(failure) => {
                    let why = format!("{} does not answer: {failure}", self.host.address);
                    self.host.reach.send_replace(Reach::Away(why.clone()));
                    shared.tell_away(&self.host, &why);
                    drop(shared);
                    tries += 1;
                    let pause = if tries <= 20 { TRY_FIRST } else { TRY_LATER };
                    if !self.wait(pause).await {
                        return;
                    }
                }
            }
        }
    }

    /// Waits while the engine is away. Nothing can be looked at meanwhile.
    async fn wait(&mut self, pause: Duration) -> bool {
        let mut pause = pin!(sleep(pause));
        loop {
            tokio::select! {
                () = &mut pause => return true,
                errand = self.errands.recv() => match errand {
                    Some(Errand::Settle(server, run, at)) => {
                        self.due.push((at, Later::Settle(server, run)));
                    }
                    // All is compared when it is back; who waits for that is told that nothing can be said.
                    Some(Errand::Look(..) | Errand::Doubt | Errand::Compare(_)) => {}
                    None => return false,
                },
            }
        }
    }

    /// Listens to an engine until there is reason to doubt that it is there.
    async fn attend(&mut self, up: Up) -> Ended {
        let Some(shared) = self.shared.upgrade() else { return Ended::Unwanted };
        let mut events = pin!(up.api.events(&shared.instance));
        // The stream is open when the engine has answered, of which nothing is said before the first
        // event; a comparison after that misses nothing that is not in the stream.
        let first = tokio::select! {
            biased;
            event = events.next() => Some(event),
            () = sleep(Duration::from_millis(20)) => None,
        };
        let returned = matches!(self.host.reach(), Reach::Away(_));
        if shared.compare(&self.host, &up, returned).await.is_err() {
            sleep(TRY_FIRST).await;
            return Ended::Doubtful;
        }
        self.host.reach.send_replace(Reach::Up(up.clone()));
        shared.tell_back(&self.host, &up).await;
        drop(shared);
        if let Some(event) = first
            && !self.hear(&up, event).await
        {
            return Ended::Doubtful;
        }
        loop {
            let due = self.due.iter().map(|(at, _)| *at).min();
            tokio::select! {
                event = events.next() => {
                    if !self.hear(&up, event).await {
                        return Ended::Doubtful;
                    }
                }
                errand = self.errands.recv() => match errand {
                    Some(errand) => {
                        if !self.run_errand(&up, errand).await {
                            return Ended::Doubtful;
                        }
                    }
                    None => return Ended::Unwanted,
                },
                () = at(due) => {
                    if !self.do_what_is_due(&up).await {
                        return Ended::Doubtful;
                    }
                }
            }
        }
    }

    /// Takes in an event. False if the engine has become doubtful.
    async fn hear(
        &mut self,
        up: &Up,
        event: Option<Result<EventMessage, bollard::errors::Error>>,
    ) -> bool {
        let Some(Ok(event)) = event else { return false };
        let Some(shared) = self.shared.upgrade() else { return false };
        let none = HashMap::new();
        let Some(actor) = event.actor else { return true };
        let attributes = actor.attributes.as_ref().unwrap_or(&none);
        let said = noticing::said(event.action.as_deref().unwrap_or_default(), attributes);
        let (Some(said), Some(id)) = (said, actor.id) else { return true };
        let Some(server) = shared.server_of(&self.host, &id) else { return true };
        // An engine that stops kills its containers and says so, when it no longer takes connections.
        if matches!(said, Said::Die { .. }) && up.api.ping().await.is_err() {
            return false;
        }
        shared.hear(&server, up, said).await;
        true
    }

    async fn run_errand(&mut self, up: &Up, errand: Errand) -> bool {
        match errand {
            Errand::Look(server, at) => self.due.push((at, Later::Look(server))),
            Errand::Settle(server, run, at) => self.due.push((at, Later::Settle(server, run))),
            Errand::Doubt => return up.api.ping().await.is_ok(),
            Errand::Compare(done) => {
                let Some(shared) = self.shared.upgrade() else { return false };
                let compared = shared.compare(&self.host, up, false).await;
                drop(done);
                return compared.is_ok() || up.api.ping().await.is_ok();
            }
        }
        true
    }

    async fn do_what_is_due(&mut self, up: &Up) -> bool {
        let now = Instant::now();
        let due: Vec<Later> =
            self.due.extract_if(.., |(at, _)| *at <= now).map(|(_, later)| later).collect();
        let Some(shared) = self.shared.upgrade() else { return false };
        for later in due {
            match later {
                Later::Look(server) => {
                    if shared.look(&self.host, up, &server).await.is_ok() {
                        continue;
                    }
                    if up.api.ping().await.is_err() {
                        return false;
                    }
                    self.due.push((now + LOOK_AGAIN, Later::Look(server)));
                }
                Later::Settle(server, run) => shared.settle(&server, run),
            }
        }
        true
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}
