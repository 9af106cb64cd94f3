//! Clients and entries as the control API shows them. Reads files and changes none.

use std::collections::BTreeSet;

use mainstay_api::{ClientEntry, ClientInfo, EntryStanding, Registration};
use mainstay_clients::edit::Value;
use mainstay_clients::ledger::Standing;
use mainstay_clients::registrar::EntryStatus;
use mainstay_clients::table::{Located, Presence};
use mainstay_clients::{Client, clients};
use mainstay_core::ServerName;

use super::desk::Desk;

/// All clients, as `client ls` shows them.
pub(super) fn all(desk: &Desk) -> Vec<ClientInfo> {
    clients().iter().map(|client| info(desk, client)).collect()
}

/// The entries of a server, as `status` shows them. A file that cannot be read is `client ls`'s to
/// tell.
pub(super) fn of_server(desk: &Desk, server: &ServerName) -> Vec<Registration> {
    let records = desk.records(server.as_str()).unwrap_or_default();
    let ids: BTreeSet<_> = records.into_iter().map(|record| record.client).collect();
    let registration = |id: String| {
        let client = Client::by_id(&id)?;
        let status = desk.registrar(&id).status(&id).ok()?;
        let entry = status.entries.into_iter().find(|entry| entry.name == server.as_str())?;
        Some(Registration {
            product: client.product.to_owned(),
            file: status.located.file,
            standing: standing(&entry.standing).0,
            client: id,
        })
    };
    ids.into_iter().filter_map(registration).collect()
}

fn info(desk: &Desk, client: &'static Client) -> ClientInfo {
    let registrar = desk.registrar(client.id);
    let Located { file, exists, presence } = registrar.locate(client);
    let because = match presence {
        Presence::Installed { why } => Some(why),
        Presence::NotInstalled => None,
    };
    let (entries, problem) = match registrar.status(client.id) {
        Ok(status) => {
            (status.entries.into_iter().map(|found| entry(client, found)).collect(), None)
        }
        Err(error) => (Vec::new(), Some(error.line())),
    };
    ClientInfo {
        id: client.id.to_owned(),
        product: client.product.to_owned(),
        installed: because.is_some(),
        installed_because: because,
        chosen: desk.known.get(client.id).is_some_and(|known| known.chosen),
        file,
        exists,
        entries,
        problem,
    }
}

fn entry(client: &Client, found: EntryStatus) -> ClientEntry {
    let (standing, drifted) = standing(&found.standing);
    let fields = match found.says {
        Some(Value::Map(fields)) if standing != EntryStanding::Foreign => fields,
        Some(_) | None => Vec::new(),
    };
    let (says, own): (Vec<_>, Vec<_>) =
        fields.into_iter().partition(|(field, _)| client.owned.contains(&field.as_str()));
    ClientEntry {
        name: found.name,
        standing,
        wanted: false,
        drifted,
        says: says.into_iter().map(|(field, value)| (field, value.to_json())).collect(),
        own_fields: own.into_iter().map(|(field, _)| field).collect(),
    }
}

fn standing(found: &Standing) -> (EntryStanding, Vec<String>) {
    let standing = match found {
        Standing::Ours => EntryStanding::Ours,
        Standing::Foreign => EntryStanding::Foreign,
        Standing::Drifted { fields } => return (EntryStanding::Drifted, fields.clone()),
        Standing::Away => EntryStanding::Away,
        Standing::Withdrawn => EntryStanding::Withdrawn,
        Standing::Absent | Standing::Overwritten => EntryStanding::Missing,
    };
    (standing, Vec::new())
}
