//! Reads and edits clients' files. Everything here blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use mainstay_api::{Around, ClientDone, ClientReport, EventRecord};
use mainstay_clients::ledger::{Done, Record, State};
use mainstay_clients::table::Presence;
use mainstay_clients::{Change, Client, ClientError, Machine, Purpose, Registrar, Target};
use mainstay_core::ServerName;
use mainstay_core::refresh::{RefreshHistory, RemovalReason, Scope};

use crate::clock;
use crate::state::store::StoredClient;

pub(super) struct Worker {
    pub(super) state_dir: PathBuf,
    /// The clients that were chosen or named, with their locations.
    pub(super) known: BTreeMap<String, StoredClient>,
    /// Where the others are searched for.
    pub(super) around: Around,
}

/// A client that should have an entry of a server.
pub(super) struct DesiredEntry {
    pub(super) client: String,
    /// Where the client finds the server.
    pub(super) endpoint: Endpoint,
    /// Whether the entry should be in the file now, rather than when the server is ready.
    pub(super) present: bool,
    /// Whether an entry is overwritten that the user has changed or removed.
    pub(super) overwrite: bool,
}

/// The address of a server for a client.
pub(super) enum Endpoint {
    At(Target),
    /// There is no listener yet.
    NotYet,
    /// A process of another user has the address, so there must be no entry.
    Taken {
        addr: SocketAddr,
        uid: u32,
    },
}

impl Endpoint {
    pub(super) fn target(self) -> Option<Target> {
        match self {
            Self::At(target) => Some(target),
            Self::NotYet | Self::Taken { .. } => None,
        }
    }
}

impl Worker {
    pub(super) fn registrar(&self, client: &str) -> Registrar {
        let around = self.known.get(client).map_or(&self.around, |known| &known.around);
        #[cfg(debug_assertions)]
        if self.state_dir.join(format!("test-panic-{client}")).exists() {
            let (state, observer) = (self.state_dir.clone(), std::sync::Arc::new(Panic));
            return Registrar::observed(state, machine(around), observer).with_quarantine();
        }
        Registrar::new(self.state_dir.clone(), machine(around)).with_quarantine()
    }

    /// The records of a server in the ledger.
    pub(super) fn records(&self, server: &str) -> Result<Vec<Record>, ClientError> {
        let mut records = self.ledger()?;
        records.retain(|record| record.server == server);
        Ok(records)
    }

    fn ledger(&self) -> Result<Vec<Record>, ClientError> {
        Registrar::new(self.state_dir.clone(), machine(&self.around)).records()
    }

    /// What an earlier daemon left of the entries of a server. `None` if it has none.
    pub(super) fn leftovers(&self, server: &ServerName) -> Option<RefreshHistory> {
        let Ok(records) = self.records(server.as_str()) else {
            return Some(RefreshHistory::default());
        };
        if records.iter().all(|record| record.state == State::Leaving) {
            return None;
        }
        let away = records.iter().filter(|record| matches!(record.state, State::Away { .. }));
        let mut helped = away.map(|record| is_helped(&record.client)).peekable();
        let out = helped
            .peek()
            .is_some()
            .then(|| if helped.all(|is_helped| is_helped) { Scope::Helped } else { Scope::All });
        Some(RefreshHistory { out, run: 0 })
    }

    /// Adds, updates and removes the entries of a server to match.
    pub(super) fn ensure(
        &self,
        server: &ServerName,
        entries: &[DesiredEntry],
    ) -> Vec<ClientReport> {
        let wanted = entries.iter().map(|entry| entry.client.as_str()).collect();
        let mut reports = self.remove_except(server, &wanted);
        for entry in entries {
            let client = entry.client.as_str();
            match &entry.endpoint {
                Endpoint::At(target) if entry.present => {
                    reports.push(self.add(server, entry, target));
                }
                Endpoint::At(_) => reports.push(waits(client, server, "it is ready")),
                Endpoint::NotYet => reports.push(waits(client, server, "Mainstay listens")),
                Endpoint::Taken { addr, uid } => {
                    reports.extend(self.withdraw(server, client, *addr, *uid));
                }
            }
        }
        reports
    }

    /// Removes an entry while its address belongs to another user.
    fn withdraw(
        &self,
        server: &ServerName,
        client: &str,
        addr: SocketAddr,
        uid: u32,
    ) -> Vec<ClientReport> {
        let mut reports = self.remove(server, [client].into_iter(), Purpose::Refresh);
        for report in reports.iter_mut().filter(|report| report.done == ClientDone::Removed) {
            let until = "added again when Mainstay has the address back";
            report.text = format!("{}: {addr} belongs to uid {uid}; {until}", report.text);
        }
        if reports.iter().all(|report| report.done == ClientDone::Nothing) {
            let until = format!("Mainstay has {addr}, which belongs to uid {uid} now");
            reports = vec![waits(client, server, &until)];
        }
        reports
    }

    fn add(&self, server: &ServerName, entry: &DesiredEntry, target: &Target) -> ClientReport {
        let registrar = self.registrar(&entry.client);
        let added = if entry.overwrite {
            registrar.force_add(&entry.client, server, target)
        } else {
            registrar.add(&entry.client, server, target)
        };
        report(&entry.client, server, added)
    }

    /// Temporarily removes the entries of a server from the clients that the reason concerns.
    pub(super) fn take_out(
        &self,
        server: &ServerName,
        entries: &[DesiredEntry],
        why: RemovalReason,
    ) -> Vec<ClientReport> {
        let clients = entries.iter().map(|entry| entry.client.as_str());
        let clients = clients.filter(|client| why.concerns(is_helped(client)));
        let mut reports = self.remove(server, clients, Purpose::Refresh);
        for report in reports.iter_mut().filter(|report| report.done == ClientDone::Removed) {
            report.text = format!("{}: {why}; added again when it is ready", report.text);
        }
        reports
    }

    /// Removes the entries of a server, except in the clients to `keep`.
    pub(super) fn remove_except(
        &self,
        server: &ServerName,
        keep: &BTreeSet<&str>,
    ) -> Vec<ClientReport> {
        let records = match self.records(server.as_str()) {
            Ok(records) => records,
            Err(error) => return vec![report("", server, Err(error))],
        };
        let clients: BTreeSet<_> = records.iter().map(|record| record.client.as_str()).collect();
        let unwanted = clients.into_iter().filter(|client| !keep.contains(client));
        let mut reports = self.remove(server, unwanted, Purpose::ForGood);
        // An entry that was removed before is not reported again.
        let left = |client: &str| {
            records.iter().all(|record| record.client != client || record.state == State::Leaving)
        };
        reports.retain(|report| report.done != ClientDone::Nothing || !left(&report.client));
        reports
    }

    /// Removes the entries of unknown servers. A server is known before it has
    /// entries, so the check comes after reading the ledger.
    pub(super) fn sweep(&self, is_known: impl Fn(&ServerName) -> bool) -> Vec<ClientReport> {
        let records = match self.ledger() {
            Ok(records) => records,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the ledger of clients' entries cannot be read");
                return Vec::new();
            }
        };
        let named = records.iter().filter_map(|record| record.server.parse::<ServerName>().ok());
        let servers: BTreeSet<_> = named.collect();
        let unknown = servers.iter().filter(|server| !is_known(server));
        unknown.flat_map(|server| self.remove_except(server, &BTreeSet::new())).collect()
    }

    fn remove<'a>(
        &self,
        server: &ServerName,
        clients: impl Iterator<Item = &'a str>,
        purpose: Purpose,
    ) -> Vec<ClientReport> {
        let removed = |client: &'a str| {
            let done = self.registrar(client).remove(client, server, purpose).into_iter();
            done.map(move |done| report(client, server, done))
        };
        clients.flat_map(removed).collect()
    }
}

/// Panics, for tests.
#[cfg(debug_assertions)]
struct Panic;

#[cfg(debug_assertions)]
impl mainstay_clients::file::Observer for Panic {
    fn before(&self, _: mainstay_clients::file::Step) -> std::io::Result<()> {
        panic!("requested by a test");
    }
}

/// Whether a refresh makes a client connect again.
pub(super) fn is_helped(client: &str) -> bool {
    Client::by_id(client).is_some_and(|client| client.refresh.helps())
}

/// Says which is the first of these clients that is not installed.
pub(super) fn missing(worker: &Worker, ids: &[String]) -> Option<String> {
    if !ids.is_empty() && !worker.around.home.is_absolute() {
        return Some(
            "there is no home directory to look for clients in: HOME is not set".to_owned(),
        );
    }
    ids.iter().find_map(|id| {
        let client = Client::by_id(id)?;
        let located = client.locate(&machine(&worker.around));
        match located.presence {
            Presence::Installed { .. } => None,
            Presence::NotInstalled => {
                let file = located.file.display();
                Some(format!("{} is not installed (`{file}` would be its file)", client.product))
            }
        }
    })
}

/// Those of these clients that are installed.
pub(super) fn present(worker: &Worker, mut ids: Vec<String>) -> Vec<String> {
    ids.retain(|id| missing(worker, std::slice::from_ref(id)).is_none());
    ids
}

pub(super) fn machine(around: &Around) -> Machine {
    Machine { home: around.home.clone(), env: around.env.clone() }
}

/// A report as an event.
pub(super) fn event(report: &ClientReport, run: Option<u64>) -> EventRecord {
    let cause = match report.done {
        ClientDone::Added => "added",
        ClientDone::Updated => "updated",
        ClientDone::Removed => "removed",
        ClientDone::Nothing => "nothing",
        ClientDone::Waits => "waits",
        ClientDone::Left => "left",
        ClientDone::Failed => "failed",
    };
    EventRecord {
        at: clock::wall(),
        server: Some(report.server.clone()),
        run,
        event: EventRecord::CLIENT.to_owned(),
        cause: Some(cause.to_owned()),
        detail: report.text.clone(),
    }
}

fn report(client: &str, server: &ServerName, changed: Result<Change, ClientError>) -> ClientReport {
    let (client, done, text) = match changed {
        Ok(change) => {
            let done = match &change.done {
                Done::Added | Done::PutBack => ClientDone::Added,
                Done::Updated => ClientDone::Updated,
                Done::Removed => ClientDone::Removed,
                Done::AlreadyThere | Done::NotThere => ClientDone::Nothing,
                Done::Left(_) => ClientDone::Left,
            };
            (change.client.id, done, change.to_string())
        }
        Err(error) => (client, ClientDone::Failed, error.line()),
    };
    ClientReport { client: client.to_owned(), server: server.clone(), done, text }
}

fn waits(client: &str, server: &ServerName, until: &str) -> ClientReport {
    let product = Client::by_id(client).map_or(client, |client| client.product);
    let text = format!("`{server}` is added to {product} once {until}");
    let client = client.to_owned();
    ClientReport { client, server: server.clone(), done: ClientDone::Waits, text }
}
