//! Clients and entries as the control API shows them. Reads files and changes none.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_api::{ClientEntry, ClientInfo, EntryStanding, Registration};
use mainstay_clients::edit::Value;
use mainstay_clients::ledger::Standing;
use mainstay_clients::registrar::EntryStatus;
use mainstay_clients::table::{Located, Presence};
use mainstay_clients::{Client, Target, clients};
use mainstay_core::ServerName;

use super::worker::Worker;

/// The servers that should be in a client, each with its address, if that is known.
pub(super) type Wanted = BTreeMap<String, Option<Target>>;

/// All clients, as `client ls` shows them. `wanted` are the servers that should be in each.
pub(super) fn all(worker: &Worker, wanted: &BTreeMap<String, Wanted>) -> Vec<ClientInfo> {
    let none = Wanted::new();
    let info =
        |client: &'static Client| info(worker, client, wanted.get(client.id).unwrap_or(&none));
    clients().iter().map(info).collect()
}

/// The entries of a server, as `status` shows them. Files that cannot be read are skipped; `client ls` shows them.
pub(super) fn of_server(worker: &Worker, server: &ServerName) -> Vec<Registration> {
    let records = worker.records(server.as_str()).unwrap_or_default();
    let ids: BTreeSet<_> = records.into_iter().map(|record| record.client).collect();
    let registration = |id: String| {
        let client = Client::by_id(&id)?;
        let status = worker.registrar(&id).status(&id).ok()?;
        let entry = status.entries.into_iter().find(|entry| entry.name == server.as_str())?;
        Some(Registration {
            product: client.product.to_owned(),
            file: status.located.file,
            standing: standing(&entry.standing)?.0,
            client: id,
        })
    };
    ids.into_iter().filter_map(registration).collect()
}

fn info(worker: &Worker, client: &'static Client, wanted: &Wanted) -> ClientInfo {
    let registrar = worker.registrar(client.id);
    let Located { file, exists, presence } = registrar.locate(client);
    let because = match presence {
        Presence::Installed { why } => Some(why),
        Presence::NotInstalled => None,
    };
    let (entries, problem) = match registrar.status(client.id) {
        Ok(status) => {
            let ours = !wanted.is_empty() || status.entries.iter().any(is_ours);
            let problem = status.problem.filter(|_| ours);
            let found = status.entries.into_iter();
            (with_missing(found.filter_map(|found| entry(client, found, wanted)), wanted), problem)
        }
        Err(error) => (Vec::new(), Some(error.line())),
    };
    ClientInfo {
        id: client.id.to_owned(),
        product: client.product.to_owned(),
        installed: because.is_some(),
        installed_because: because,
        chosen: worker.known.get(client.id).is_some_and(|known| known.chosen),
        file,
        exists,
        entries,
        problem,
    }
}

fn is_ours(entry: &EntryStatus) -> bool {
    !matches!(entry.standing, Standing::Foreign | Standing::Absent)
}

/// Adds the entries that should exist but were never added.
fn with_missing(found: impl Iterator<Item = ClientEntry>, wanted: &Wanted) -> Vec<ClientEntry> {
    let mut entries: Vec<_> = found.collect();
    let missing = wanted.keys().filter(|name| entries.iter().all(|entry| entry.name != **name));
    let missing: Vec<_> = missing
        .map(|name| ClientEntry {
            name: name.clone(),
            standing: EntryStanding::Missing,
            wanted: true,
            leads_to_server: false,
            drifted: Vec::new(),
            says: BTreeMap::new(),
            own_fields: Vec::new(),
        })
        .collect();
    entries.extend(missing);
    entries
}

fn entry(client: &Client, found: EntryStatus, wanted: &Wanted) -> Option<ClientEntry> {
    let (standing, drifted) = standing(&found.standing)?;
    let target = wanted.get(&found.name).and_then(Option::as_ref);
    let leads_to_server = standing == EntryStanding::Foreign
        && target
            .zip(found.value.as_ref())
            .is_some_and(|(target, says)| client.leads_to(says, target));
    let fields = match found.value {
        Some(Value::Map(fields)) if standing != EntryStanding::Foreign => fields,
        Some(_) | None => Vec::new(),
    };
    let (says, own): (Vec<_>, Vec<_>) =
        fields.into_iter().partition(|(field, _)| client.owned.contains(&field.as_str()));
    Some(ClientEntry {
        wanted: wanted.contains_key(&found.name),
        leads_to_server,
        name: found.name,
        standing,
        drifted,
        says: says.into_iter().map(|(field, value)| (field, value.to_json())).collect(),
        own_fields: own.into_iter().map(|(field, _)| field).collect(),
    })
}

/// The standing of an entry and its changed fields. `None` if there is no entry and none is expected.
fn standing(found: &Standing) -> Option<(EntryStanding, Vec<String>)> {
    let standing = match found {
        Standing::Ours => EntryStanding::Ours,
        Standing::Foreign => EntryStanding::Foreign,
        Standing::Drifted { fields } => return Some((EntryStanding::Drifted, fields.clone())),
        Standing::Away => EntryStanding::Away,
        Standing::Withdrawn => EntryStanding::Withdrawn,
        Standing::Overwritten => EntryStanding::Missing,
        Standing::Absent => return None,
    };
    Some((standing, Vec::new()))
}
