//! Keeps the entries of one server: a task that follows its driver.
//!
//! The reconciler does one thing at a time, so an addition never overtakes the removal before it. What it
//! is about to do to a file is in the ledger before it is done; the reconciler of the next daemon takes up
//! what this one left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mainstay_api::{ClientDone, ClientReport};
use mainstay_clients::Client;
use mainstay_core::refresh::{Past, Refresh, Serving, Step, Why};
use mainstay_core::{ClientSettings, ServerName, Status, Wanted};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::Clients;
use super::worker::{Endpoint, Leftovers, Order, Place, is_helped};
use crate::clock;
use crate::snapshot::Snapshot;

/// A client that had its settings in memory may write them over ours: so long after each change it is
/// looked whether one did, and so often in a row.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOKS: u32 = 3;

/// What could not be done is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// So long a run's start waits for entries to be taken out before it.
const START_WAITS: Duration = Duration::from_secs(2);

/// Asks on their way to a reconciler.
const INBOX: usize = 8;

/// How others reach the reconciler of a server's entries.
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    asks: mpsc::Sender<Ask>,
    /// The revision of the server that the reconciler has acted on.
    acted: watch::Receiver<u64>,
}

/// How much an entry is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryRequest {
    /// What a person changed or took out stays so.
    Keep,
    /// A person asks for entries in these clients: they are set right.
    Anew(BTreeSet<String>),
}

#[derive(Debug)]
enum Ask {
    /// Make the entries what they are to be.
    Ensure(EntryRequest, oneshot::Sender<Vec<ClientReport>>),
    /// The server goes for good.
    Leave(oneshot::Sender<Vec<ClientReport>>),
    /// Clients have to connect anew.
    SessionsLost,
}

impl Entries {
    /// Asks for the entries to be made what they are to be. What was done is told once it is.
    pub(crate) async fn ensure(
        &self,
        request: EntryRequest,
    ) -> oneshot::Receiver<Vec<ClientReport>> {
        let (to, done) = oneshot::channel();
        self.ask(Ask::Ensure(request, to)).await;
        done
    }

    /// Asks for the entries to be taken out for good; none is added after that. What was done is told
    /// once it is.
    pub(crate) async fn leave(&self) -> oneshot::Receiver<Vec<ClientReport>> {
        let (to, done) = oneshot::channel();
        self.ask(Ask::Leave(to)).await;
        done
    }

    /// Sessions were lost, so clients have to connect again.
    pub(crate) async fn lose_sessions(&self) {
        self.ask(Ask::SessionsLost).await;
    }

    /// Waits, not for long, until the reconciler has acted on what the server's driver published.
    pub(crate) async fn follow_up(mut self, revision: u64) {
        // If it takes longer, a client holds its file, and the server does not wait for that.
        timeout(START_WAITS, self.acted.wait_for(|acted| *acted >= revision)).await.ok();
    }

    async fn ask(&self, ask: Ask) {
        // A reconciler ends with its server, which then has no entries.
        self.asks.send(ask).await.ok();
    }
}

/// A way to a reconciler, and what it does until its server's driver ends.
pub(super) fn keep(
    clients: Clients,
    server: ServerName,
    view: watch::Receiver<Snapshot>,
) -> (Entries, impl Future<Output = ()> + Send + 'static) {
    let (asks, inbox) = mpsc::channel(INBOX);
    let (acted, watcher) = watch::channel(0);
    // Its driver has not begun yet, so a run that is not up is past.
    let former = {
        let unit = &view.borrow().unit;
        if unit.run().is_some() { 0 } else { unit.last_run().generation() }
    };
    let keeping = async move {
        let past = match clients.leftovers(server.clone()).await {
            Leftovers::None => Past { out: None, run: former },
            Leftovers::Some => Past::default(),
            Leftovers::Away(scope) => Past { out: Some(scope), run: 0 },
        };
        EntryReconciler::new(clients, server, view, past).run(inbox, acted).await;
    };
    (Entries { asks, acted: watcher }, keeping)
}

struct EntryReconciler {
    clients: Clients,
    server: ServerName,
    view: watch::Receiver<Snapshot>,
    settings: ClientSettings,
    run: u64,
    refresh: Refresh,
    /// When to look at the files again, and how often in a row that may still be.
    look: Option<(Instant, u32)>,
    /// Why entries are to be out, if some could not be taken out yet.
    undone: Option<Why>,
    /// What was last told about clients that did not get what they should.
    troubles: BTreeMap<String, String>,
    left: bool,
}

impl EntryReconciler {
    fn new(
        clients: Clients,
        server: ServerName,
        view: watch::Receiver<Snapshot>,
        past: Past,
    ) -> Self {
        let (settings, hold) = {
            let shown = view.borrow();
            (shown.spec.clients.clone(), shown.spec.proxy.hold)
        };
        let refresh = Refresh::new(clock::now(), clients.mode(&settings), hold, past);
        Self {
            clients,
            server,
            view,
            settings,
            run: 0,
            refresh,
            look: None,
            undone: None,
            troubles: BTreeMap::new(),
            left: false,
        }
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<Ask>, acted: watch::Sender<u64>) {
        loop {
            let revision = self.take_in();
            self.act().await;
            acted.send_replace(revision);
            let deadline = self.deadline();
            tokio::select! {
                biased;
                ask = inbox.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => return,
                },
                changed = self.view.changed() => if changed.is_err() {
                    return;
                },
                () = clock::wait_until(deadline) => {}
            }
        }
    }

    /// Takes in how the server stands.
    fn take_in(&mut self) -> u64 {
        let shown = self.view.borrow_and_update();
        if self.settings != shown.spec.clients {
            self.settings.clone_from(&shown.spec.clients);
        }
        self.run = shown.unit.last_run().generation();
        self.refresh.set(self.clients.mode(&self.settings), shown.spec.proxy.hold);
        self.refresh.look(clock::now(), serving(&shown), self.run);
        shown.revision
    }

    /// Does what is due.
    async fn act(&mut self) {
        while let Some(step) = self.refresh.due(clock::now()).filter(|_| !self.left) {
            match step {
                // Clients see the entry go when it is written, so the time it stays out begins then.
                Step::Remove(why) => {
                    self.take_out(why).await;
                    self.refresh.done(clock::now(), step);
                }
                Step::Add => {
                    self.refresh.done(clock::now(), step);
                    self.ensure(&EntryRequest::Keep).await;
                }
            }
        }
        if self.look.is_some_and(|(at, _)| at <= clock::now()) {
            match self.undone.filter(|_| !self.refresh.is_in()) {
                Some(why) => {
                    self.take_out(why).await;
                    self.refresh.done(clock::now(), Step::Remove(why));
                }
                None => drop(self.ensure(&EntryRequest::Keep).await),
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let look = self.look.map(|(at, _)| at);
        self.refresh.deadline().filter(|_| !self.left).into_iter().chain(look).min()
    }

    async fn answer(&mut self, ask: Ask) {
        self.take_in();
        // Whoever asked may have gone; what was asked for is done all the same.
        match ask {
            Ask::Ensure(request, to) => drop(to.send(self.obey(&request).await)),
            Ask::Leave(to) => drop(to.send(self.leave().await)),
            Ask::SessionsLost => self.refresh.lose_sessions(),
        }
    }

    /// Does what a person or the daemon asks for. What is due comes first, so that no entry is added
    /// only to be removed.
    async fn obey(&mut self, request: &EntryRequest) -> Vec<ClientReport> {
        self.act().await;
        self.ensure(request).await
    }

    async fn take_out(&mut self, why: Why) {
        let order = self.order(&EntryRequest::Keep);
        let reports = self.clients.work(move |worker| worker.take_out(&order, why)).await;
        self.tell(&reports);
        let failed = reports.iter().any(|report| report.done == ClientDone::Failed);
        self.undone = failed.then_some(why);
        self.look = failed.then(|| (clock::now() + TRY_AGAIN, LOOKS));
    }

    async fn ensure(&mut self, request: &EntryRequest) -> Vec<ClientReport> {
        if self.left {
            return Vec::new();
        }
        self.undone = self.undone.filter(|_| !self.refresh.is_in());
        let order = self.order(request);
        let reports = self.clients.work(move |worker| worker.ensure(&order)).await;
        self.tell(&reports);
        self.look_again(&reports);
        reports
    }

    async fn leave(&mut self) -> Vec<ClientReport> {
        if std::mem::replace(&mut self.left, true) {
            return Vec::new();
        }
        self.look = None;
        let server = self.server.clone();
        let reports =
            self.clients.work(move |worker| worker.remove_but(&server, &BTreeSet::new())).await;
        self.tell(&reports);
        reports
    }

    fn order(&self, request: &EntryRequest) -> Order {
        let place = |id: String| {
            let client = Client::by_id(&id);
            let find = |client| self.clients.target(client, &self.server);
            let target = client.map_or(Endpoint::NotYet, find);
            let anew = match request {
                EntryRequest::Keep => false,
                EntryRequest::Anew(ids) => ids.contains(&id),
            };
            let present = self.refresh.is_in_for(is_helped(&id));
            Place { client: id, target, present, anew }
        };
        let places = self.clients.wanted(&self.settings).into_iter().map(place).collect();
        Order { server: self.server.clone(), places }
    }

    /// Decides when to look at the files again after these reports.
    fn look_again(&mut self, reports: &[ClientReport]) {
        let any = |done: &[ClientDone]| reports.iter().any(|report| done.contains(&report.done));
        let left = self.look.map_or(LOOKS, |(_, left)| left.saturating_sub(1));
        let now = clock::now();
        self.look =
            if any(&[ClientDone::Added, ClientDone::Updated, ClientDone::Removed]) && left > 0 {
                Some((now + LOOK_AGAIN, left))
            } else if any(&[ClientDone::Failed]) || self.undone.is_some() {
                Some((now + TRY_AGAIN, LOOKS))
            } else {
                None
            };
    }

    /// Tells what was done. Trouble that lasts is told once.
    fn tell(&mut self, reports: &[ClientReport]) {
        for report in reports {
            let news = match report.done {
                ClientDone::Added | ClientDone::Updated | ClientDone::Removed => {
                    self.troubles.remove(&report.client);
                    true
                }
                ClientDone::Left | ClientDone::Failed => {
                    let told = self.troubles.insert(report.client.clone(), report.text.clone());
                    told.as_ref() != Some(&report.text)
                }
                ClientDone::Nothing | ClientDone::Waits => {
                    self.troubles.remove(&report.client);
                    false
                }
            };
            if news {
                self.clients.record(report, (self.run > 0).then_some(self.run));
            }
        }
    }
}

/// How a server stands toward its clients.
fn serving(shown: &Snapshot) -> Serving {
    match shown.unit.view(clock::now()).status {
        Status::Running | Status::Unhealthy if shown.session.is_some() => Serving::Ready,
        Status::Starting
        | Status::Restarting
        | Status::Running
        | Status::Unhealthy
        | Status::Waiting => Serving::Down,
        Status::Stopping if shown.unit.wanted() == Wanted::On => Serving::Down,
        Status::Stopping | Status::Stopped | Status::Removing => Serving::Off,
        Status::Error => Serving::Failed,
    }
}
