//! Reconciles the entries of one server: a task that follows its driver.
//!
//! The reconciler does one thing at a time, so an addition never overtakes an earlier removal. Each change of a file is
//! in the ledger before it is made, so the reconciler of the next daemon completes it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mainstay_api::{ClientDone, ClientReport};
use mainstay_clients::Client;
use mainstay_core::refresh::{Refresh, RefreshHistory, RemovalReason, Serving, Step};
use mainstay_core::{ClientSettings, ServerName, Status, Wanted};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::Clients;
use super::worker::{DesiredEntry, Endpoint, Worker, is_helped};
use crate::clock;
use crate::snapshot::Snapshot;

/// A client that has its settings in memory may overwrite a change. The files are checked this long after each
/// change, and this many times in a row.
const CHECK_AGAIN: Duration = Duration::from_secs(1);
const CHECKS: u32 = 3;

/// The delay before a failed change is repeated.
const RETRY: Duration = Duration::from_secs(30);

/// How long the start of a run waits for the removal of entries.
const START_WAITS: Duration = Duration::from_secs(2);

const INBOX: usize = 8;

/// A handle to the reconciler of a server's entries.
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    requests: mpsc::Sender<Request>,
    /// The revision of the server's snapshot that the reconciler has processed.
    acted: watch::Receiver<u64>,
}

/// What to do about entries that the user has changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryRequest {
    /// Leave them.
    Keep,
    /// Overwrite them in these clients, because the user asks for it.
    Overwrite(BTreeSet<String>),
}

#[derive(Debug)]
enum Request {
    /// Make the files match.
    Ensure(EntryRequest, oneshot::Sender<Vec<ClientReport>>),
    /// The server is removed.
    Leave(oneshot::Sender<Vec<ClientReport>>),
    /// Clients have to reconnect.
    SessionsLost,
}

impl Entries {
    /// Asks to make the files match. The receiver gets the reports.
    pub(crate) async fn ensure(
        &self,
        request: EntryRequest,
    ) -> oneshot::Receiver<Vec<ClientReport>> {
        let (to, done) = oneshot::channel();
        self.send(Request::Ensure(request, to)).await;
        done
    }

    /// Asks to remove the entries; none is added after that. The receiver gets the reports.
    pub(crate) async fn leave(&self) -> oneshot::Receiver<Vec<ClientReport>> {
        let (to, done) = oneshot::channel();
        self.send(Request::Leave(to)).await;
        done
    }

    /// Sessions were lost, so clients have to connect again.
    pub(crate) async fn lose_sessions(&self) {
        self.send(Request::SessionsLost).await;
    }

    /// Waits, not for long, until the reconciler has acted on what the server's driver published.
    pub(crate) async fn follow_up(mut self, revision: u64) {
        // If it takes longer, a client holds its lock, and the server does not wait for that.
        timeout(START_WAITS, self.acted.wait_for(|acted| *acted >= revision)).await.ok();
    }

    async fn send(&self, request: Request) {
        // A reconciler ends with its server, which then has no entries.
        self.requests.send(request).await.ok();
    }
}

/// The handle, and the task of the reconciler, which ends with the server's driver.
pub(super) fn start(
    clients: Clients,
    server: ServerName,
    view: watch::Receiver<Snapshot>,
) -> (Entries, impl Future<Output = ()> + Send + 'static) {
    let (requests, inbox) = mpsc::channel(INBOX);
    let (acted, watcher) = watch::channel(0);
    // The driver has not started yet, so a run that is not up is a former one.
    let former = {
        let unit = &view.borrow().unit;
        if unit.run().is_some() { 0 } else { unit.last_run().generation() }
    };
    let reconcile = async move {
        let past = clients.leftovers(server.clone()).await;
        let past = past.unwrap_or(RefreshHistory { out: None, run: former });
        let (settings, hold) = {
            let shown = view.borrow();
            (shown.spec.clients.clone(), shown.spec.proxy.hold)
        };
        let reconciler = EntryReconciler {
            refresh: Refresh::new(clock::now(), clients.mode(&settings), hold, past),
            clients,
            server,
            view,
            settings,
            run: 0,
            check: None,
            undone: None,
            problems: BTreeMap::new(),
            left: false,
        };
        reconciler.run(inbox, acted).await;
    };
    (Entries { requests, acted: watcher }, reconcile)
}

struct EntryReconciler {
    clients: Clients,
    server: ServerName,
    view: watch::Receiver<Snapshot>,
    settings: ClientSettings,
    run: u64,
    refresh: Refresh,
    /// When to check the files again, and how many checks are left.
    check: Option<(Instant, u32)>,
    /// Why entries have to be removed that could not be removed yet.
    undone: Option<RemovalReason>,
    /// The last problem that was reported for each client.
    problems: BTreeMap<String, String>,
    /// Whether the server was removed.
    left: bool,
}

impl EntryReconciler {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>, acted: watch::Sender<u64>) {
        loop {
            let revision = self.update();
            self.act().await;
            acted.send_replace(revision);
            let deadline = self.deadline();
            tokio::select! {
                biased;
                request = inbox.recv() => match request {
                    Some(request) => self.handle(request).await,
                    None => return,
                },
                changed = self.view.changed() => if changed.is_err() {
                    return;
                },
                () = clock::wait_until(deadline) => {}
            }
        }
    }

    /// Reads the server's snapshot.
    fn update(&mut self) -> u64 {
        let shown = self.view.borrow_and_update();
        if self.settings != shown.spec.clients {
            self.settings.clone_from(&shown.spec.clients);
        }
        self.run = shown.unit.last_run().generation();
        self.refresh.set(self.clients.mode(&self.settings), shown.spec.proxy.hold);
        self.refresh.observe(clock::now(), serving(&shown), self.run);
        shown.revision
    }

    /// Does what is due.
    async fn act(&mut self) {
        while let Some(step) = self.refresh.due(clock::now()).filter(|_| !self.left) {
            match step {
                Step::Remove(why) => self.take_out(why).await,
                Step::Add => {
                    self.refresh.done(clock::now(), step);
                    self.ensure(&EntryRequest::Keep).await;
                }
            }
        }
        if self.check.is_some_and(|(at, _)| at <= clock::now()) {
            match self.undone.filter(|_| !self.refresh.is_in()) {
                Some(why) => self.take_out(why).await,
                None => drop(self.ensure(&EntryRequest::Keep).await),
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let check = self.check.map(|(at, _)| at);
        self.refresh.deadline().filter(|_| !self.left).into_iter().chain(check).min()
    }

    async fn handle(&mut self, request: Request) {
        self.update();
        // The request is executed even if the receiver was dropped.
        match request {
            Request::Ensure(request, to) => {
                // First, so that no entry is added that is due to be removed.
                self.act().await;
                drop(to.send(self.ensure(&request).await));
            }
            Request::Leave(to) => drop(to.send(self.leave().await)),
            Request::SessionsLost => self.refresh.lose_sessions(),
        }
    }

    async fn take_out(&mut self, why: RemovalReason) {
        let (server, entries) = (self.server.clone(), self.desired(&EntryRequest::Keep));
        let edit = move |worker: &Worker| worker.take_out(&server, &entries, why);
        let reports = self.clients.edit(edit).await;
        self.report(&reports);
        // Clients notice the removal when it is written, so the minimum gap begins now.
        self.refresh.done(clock::now(), Step::Remove(why));
        let failed = reports.iter().any(|report| report.done == ClientDone::Failed);
        self.undone = failed.then_some(why);
        self.check = failed.then(|| (clock::now() + RETRY, CHECKS));
    }

    async fn ensure(&mut self, request: &EntryRequest) -> Vec<ClientReport> {
        if self.left {
            return Vec::new();
        }
        self.undone = self.undone.filter(|_| !self.refresh.is_in());
        let (server, entries) = (self.server.clone(), self.desired(request));
        let reports = self.clients.edit(move |worker| worker.ensure(&server, &entries)).await;
        self.report(&reports);
        self.schedule_check(&reports);
        reports
    }

    async fn leave(&mut self) -> Vec<ClientReport> {
        if std::mem::replace(&mut self.left, true) {
            return Vec::new();
        }
        self.check = None;
        let server = self.server.clone();
        let remove = move |worker: &Worker| worker.remove_except(&server, &BTreeSet::new());
        let reports = self.clients.edit(remove).await;
        self.report(&reports);
        reports
    }

    fn desired(&self, request: &EntryRequest) -> Vec<DesiredEntry> {
        let entry = |id: String| {
            let endpoint = |client| self.clients.endpoint(client, &self.server);
            let endpoint = Client::by_id(&id).map_or(Endpoint::NotYet, endpoint);
            let overwrite = match request {
                EntryRequest::Keep => false,
                EntryRequest::Overwrite(ids) => ids.contains(&id),
            };
            let present = self.refresh.is_in_for(is_helped(&id));
            DesiredEntry { client: id, endpoint, present, overwrite }
        };
        self.clients.wanted(&self.settings).into_iter().map(entry).collect()
    }

    /// Decides when to check the files again.
    fn schedule_check(&mut self, reports: &[ClientReport]) {
        let any = |done: &[ClientDone]| reports.iter().any(|report| done.contains(&report.done));
        let changed = any(&[ClientDone::Added, ClientDone::Updated, ClientDone::Removed]);
        let failed = any(&[ClientDone::Failed]) || self.undone.is_some();
        let left = self.check.map_or(CHECKS, |(_, left)| left.saturating_sub(1));
        self.check = if changed && left > 0 {
            Some((clock::now() + CHECK_AGAIN, left))
        } else {
            failed.then(|| (clock::now() + RETRY, CHECKS))
        };
    }

    /// Records what was done. A persistent problem is recorded once.
    fn report(&mut self, reports: &[ClientReport]) {
        for report in reports {
            let reported = self.problems.remove(&report.client);
            let is_new = match report.done {
                ClientDone::Added | ClientDone::Updated | ClientDone::Removed => true,
                ClientDone::Nothing | ClientDone::Waits => false,
                ClientDone::Left | ClientDone::Failed => {
                    self.problems.insert(report.client.clone(), report.text.clone());
                    reported.as_ref() != Some(&report.text)
                }
            };
            if is_new {
                self.clients.record(report, (self.run > 0).then_some(self.run));
            }
        }
    }
}

fn serving(shown: &Snapshot) -> Serving {
    match shown.unit.view(clock::now()).status {
        status if status.is_up() && shown.session.is_some() => Serving::Ready,
        Status::Starting
        | Status::Restarting
        | Status::Running
        | Status::Busy
        | Status::Blocked
        | Status::Hung
        | Status::Suspended
        | Status::Unresponsive
        | Status::Unhealthy
        | Status::Waiting => Serving::Down,
        Status::Stopping if shown.unit.wanted() == Wanted::On => Serving::Down,
        Status::Stopping | Status::Stopped | Status::Removing => Serving::Off,
        Status::Error => Serving::Failed,
    }
}
