//! Reads and edits clients' files. Everything here blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use mainstay_api::{Around, ClientDone, ClientReport, EventRecord};
use mainstay_clients::ledger::{Done, Record, State};
use mainstay_clients::table::Presence;
use mainstay_clients::{Change, Client, ClientError, Machine, Purpose, Registrar, Target};
use mainstay_core::ServerName;
use mainstay_core::refresh::{RemovalReason, Scope};

use crate::clock;
use crate::state::store::StoredClient;

/// A entry to work on clients' files.
pub(super) struct Worker {
    state_dir: PathBuf,
    /// The clients that were chosen or named, with their locations.
    pub(super) known: BTreeMap<String, StoredClient>,
    /// Where the others are searched for.
    around: Around,
}

pub(super) struct DesiredEntries {
    pub(super) server: ServerName,
    /// The clients it is to be registered with.
    pub(super) entries: Vec<DesiredEntry>,
}

/// A client that a server is to be registered with.
pub(super) struct DesiredEntry {
    pub(super) client: String,
    /// Where the client finds the server.
    pub(super) target: Endpoint,
    /// Whether the entry should be in the file now, or waits for the server.
    pub(super) present: bool,
    /// Whether the user asks for it, so that an entry that was changed or removed is overwritten.
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
    pub(super) fn at(self) -> Option<Target> {
        match self {
            Self::At(target) => Some(target),
            Self::NotYet | Self::Taken { .. } => None,
        }
    }
}

/// What an earlier daemon left of a server's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Leftovers {
    /// The server has none.
    #[default]
    None,
    /// It has some.
    Some,
    /// Some were taken out, to be put back.
    Away(Scope),
}

impl Worker {
    pub(super) fn new(
        state_dir: PathBuf,
        known: BTreeMap<String, StoredClient>,
        around: Around,
    ) -> Self {
        Self { state_dir, known, around }
    }

    pub(super) fn registrar(&self, client: &str) -> Registrar {
        let around = self.known.get(client).map_or(&self.around, |known| &known.around);
        #[cfg(debug_assertions)]
        if self.state_dir.join(format!("test-panic-{client}")).exists() {
            let (state, observer) = (self.state_dir.clone(), std::sync::Arc::new(Panic));
            return Registrar::observed(state, machine(around), observer).with_quarantine();
        }
        Registrar::new(self.state_dir.clone(), machine(around)).with_quarantine()
    }

    /// What the ledger has of a server.
    pub(super) fn records(&self, server: &str) -> Result<Vec<Record>, ClientError> {
        let mut records = self.ledger()?;
        records.retain(|record| record.server == server);
        Ok(records)
    }

    fn ledger(&self) -> Result<Vec<Record>, ClientError> {
        Registrar::new(self.state_dir.clone(), machine(&self.around)).records()
    }

    /// What is left of the entries of a server.
    pub(super) fn leftovers(&self, server: &ServerName) -> Leftovers {
        let left = |record: &Record| record.state == State::Leaving;
        let records = match self.records(server.as_str()) {
            Ok(records) if records.iter().all(left) => return Leftovers::None,
            Ok(records) => records,
            Err(_) => return Leftovers::Some,
        };
        let away = |record: &&Record| matches!(record.state, State::Away { .. });
        let mut helped = records.iter().filter(away).map(|record| is_helped(&record.client));
        match (helped.next(), helped.all(|is_helped| is_helped)) {
            (None, _) => Leftovers::Some,
            (Some(true), true) => Leftovers::Away(Scope::Helped),
            (Some(_), _) => Leftovers::Away(Scope::All),
        }
    }

    /// Adds, updates and removes entries to match.
    pub(super) fn ensure(&self, desired: &DesiredEntries) -> Vec<ClientReport> {
        let server = &desired.server;
        let wanted = desired.entries.iter().map(|entry| entry.client.as_str()).collect();
        let mut reports = self.remove_but(server, &wanted);
        for entry in &desired.entries {
            let client = entry.client.as_str();
            match &entry.target {
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
        match added {
            Ok(change) => report(&change, server),
            Err(error) => failed(&entry.client, server, &error),
        }
    }

    /// Temporarily removes the entries of a server from the clients that the reason concerns.
    pub(super) fn take_out(
        &self,
        desired: &DesiredEntries,
        why: RemovalReason,
    ) -> Vec<ClientReport> {
        let clients = desired.entries.iter().map(|entry| entry.client.as_str());
        let clients = clients.filter(|client| why.concerns(is_helped(client)));
        let mut reports = self.remove(&desired.server, clients, Purpose::Refresh);
        for report in reports.iter_mut().filter(|report| report.done == ClientDone::Removed) {
            report.text = format!("{}: {why}; added again when it is ready", report.text);
        }
        reports
    }

    /// Removes the entries of a server, except in the clients to `keep`.
    pub(super) fn remove_but(
        &self,
        server: &ServerName,
        keep: &BTreeSet<&str>,
    ) -> Vec<ClientReport> {
        let records = match self.records(server.as_str()) {
            Ok(records) => records,
            Err(error) => return vec![failed("", server, &error)],
        };
        let clients: BTreeSet<_> = records.iter().map(|record| record.client.as_str()).collect();
        let unwanted = clients.into_iter().filter(|client| !keep.contains(client));
        let mut reports = self.remove(server, unwanted, Purpose::ForGood);
        // It is not reported that an entry that was removed before is still absent.
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
        unknown.flat_map(|server| self.remove_but(server, &BTreeSet::new())).collect()
    }

    fn remove<'a>(
        &self,
        server: &ServerName,
        clients: impl Iterator<Item = &'a str>,
        purpose: Purpose,
    ) -> Vec<ClientReport> {
        let mut reports = Vec::new();
        for client in clients {
            let done = self.registrar(client).remove(client, server, purpose);
            reports.extend(done.into_iter().map(|done| match done {
                Ok(change) => report(&change, server),
                Err(error) => failed(client, server, &error),
            }));
        }
        reports
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

/// The message for the first of these clients that is not installed.
pub(super) fn missing(worker: &Worker, ids: &[String]) -> Option<String> {
    if !ids.is_empty() && !worker.around.home.is_absolute() {
        return Some(
            "there is no home directory to look for clients in: HOME is not set".to_owned(),
        );
    }
    ids.iter().find_map(|id| {
        let client = Client::by_id(id)?;
        let located = machine(&worker.around).look(|around| client.locate(around));
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

fn report(change: &Change, server: &ServerName) -> ClientReport {
    let done = match &change.done {
        Done::Added | Done::PutBack => ClientDone::Added,
        Done::Updated => ClientDone::Updated,
        Done::Removed => ClientDone::Removed,
        Done::AlreadyThere | Done::NotThere => ClientDone::Nothing,
        Done::Left(_) => ClientDone::Left,
    };
    let (client, text) = (change.client.id.to_owned(), change.to_string());
    ClientReport { client, server: server.clone(), done, text }
}

fn waits(client: &str, server: &ServerName, until: &str) -> ClientReport {
    let product = Client::by_id(client).map_or(client, |client| client.product);
    let text = format!("`{server}` is added to {product} once {until}");
    let client = client.to_owned();
    ClientReport { client, server: server.clone(), done: ClientDone::Waits, text }
}

fn failed(client: &str, server: &ServerName, error: &ClientError) -> ClientReport {
    let (client, text) = (client.to_owned(), error.line());
    ClientReport { client, server: server.clone(), done: ClientDone::Failed, text }
}
