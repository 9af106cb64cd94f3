//! Changes of the entries of several servers in clients' files.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_api::{ApiError, Around, ClientDone, ClientInfo, ClientReport};
use mainstay_core::supervisor::Event;
use mainstay_core::{ClientSettings, ServerName, ServerSpec};
use mainstay_hold::limits::{ACKNOWLEDGE, REPORT_ENTRIES};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Registry, refused};
use crate::driver::Handle;
use crate::entries::EntryRequest;

impl Registry {
    /// Updates the entries of servers whose specs were just stored. The user has chosen the clients that a spec names.
    pub(crate) async fn register(&self, servers: &[ServerName]) -> Vec<ClientReport> {
        let changed = servers.iter().filter_map(|name| self.get(name).ok());
        let request = |handle: Handle| {
            let named = handle.view.borrow().spec.clients.only.clone();
            (handle, EntryRequest::Overwrite(named.unwrap_or_default()))
        };
        ensure(changed.map(request)).await
    }

    /// Updates the entries of all servers.
    pub(crate) async fn register_all(&self, request: EntryRequest) -> Vec<ClientReport> {
        ensure(self.all().into_iter().map(|handle| (handle, request.clone()))).await
    }

    /// All clients, as `client ls` shows them.
    pub(crate) async fn clients(&self, around: Around) -> Vec<ClientInfo> {
        let settings = |handle: &Handle| {
            let spec = &handle.view.borrow().spec;
            (spec.name.clone(), spec.clients.clone())
        };
        let servers = self.all().iter().map(settings).collect();
        self.shared.context.clients.list(around, servers).await
    }

    /// Chooses clients, and adds every server to them whose spec names no clients.
    pub(crate) async fn choose_clients(
        &self,
        ids: Vec<String>,
        around: Around,
    ) -> Result<Vec<ClientReport>, ApiError> {
        let guard = self.begin_change().await?;
        self.shared.context.clients.choose(&ids, around).await?;
        drop(guard);
        let mut reports = self.sweep_entries().await;
        reports.extend(self.register_all(EntryRequest::Overwrite(ids.into_iter().collect())).await);
        Ok(reports)
    }

    /// Removes all entries from the files of clients, which are no longer chosen, also not by specs.
    pub(crate) async fn drop_clients(
        &self,
        ids: Vec<String>,
    ) -> Result<Vec<ClientReport>, ApiError> {
        let guard = self.begin_change().await?;
        self.shared.context.clients.unchoose(&ids).await?;
        let unnamed = self.unname(&ids.into_iter().collect()).await?;
        drop(guard);
        let mut reports = self.sweep_entries().await;
        reports.extend(self.register_all(EntryRequest::Keep).await);
        for report in &mut reports {
            if report.done == ClientDone::Removed && unnamed.contains(&report.server) {
                report.text.push_str("; it no longer names that client");
            }
        }
        Ok(reports)
    }

    /// Lets clients reconnect to all servers, because their sessions are lost.
    pub(crate) async fn lose_sessions(&self) {
        for entries in self.all().into_iter().filter_map(|handle| handle.entries) {
            entries.lose_sessions().await;
        }
    }

    /// Removes the entries of servers that no longer exist: a daemon died before it could, or a file could not be edited
    /// when its server was removed.
    pub(crate) async fn sweep_entries(&self) -> Vec<ClientReport> {
        let registry = self.clone();
        let is_known = move |server: &ServerName| registry.state().servers.contains_key(server);
        self.shared.context.clients.sweep(is_known).await
    }

    /// Removes these clients from the specs that name them, and returns the servers of these specs.
    async fn unname(&self, ids: &BTreeSet<String>) -> Result<BTreeSet<ServerName>, ApiError> {
        let mut changed = Vec::new();
        let mut affected = Vec::new();
        for handle in self.all() {
            let spec = Arc::clone(&handle.view.borrow().spec);
            let Some(clients) = without(&spec.clients, ids) else { continue };
            changed.push(ServerSpec { clients: clients.clone(), ..ServerSpec::clone(&spec) });
            affected.push((handle, clients));
        }
        let names = changed.iter().map(|spec| spec.name.clone()).collect();
        self.shared.context.store.describe(changed).await.map_err(|error| refused(&error))?;
        for (handle, clients) in affected {
            handle.send(Event::SetClients(clients.clone())).await;
            show(handle, &clients).await;
        }
        Ok(names)
    }
}

/// Waits until a driver has published these settings.
pub(super) async fn show(mut handle: Handle, clients: &ClientSettings) {
    let shown = handle.view.wait_for(|shown| shown.spec.clients == *clients);
    // A driver that has ended publishes nothing more.
    timeout(ACKNOWLEDGE, shown).await.ok();
}

/// The settings without these clients, if they named one of them.
fn without(settings: &ClientSettings, ids: &BTreeSet<String>) -> Option<ClientSettings> {
    let only = settings.only.as_ref()?;
    let left: BTreeSet<_> = only.difference(ids).cloned().collect();
    (left.len() < only.len()).then(|| ClientSettings { only: Some(left), ..settings.clone() })
}

/// Updates the entries of servers concurrently. A client that locks its file for long is not waited for: its entries follow
/// when the lock is released.
async fn ensure(servers: impl Iterator<Item = (Handle, EntryRequest)>) -> Vec<ClientReport> {
    let mut requested = Vec::new();
    for (handle, request) in servers {
        if let Some(entries) = handle.entries {
            let server = handle.view.borrow().spec.name.clone();
            requested.push((server, entries.ensure(request).await));
        }
    }
    collect(requested).await
}

/// What was done for each server, as far as it is done in time.
pub(super) async fn collect(
    requested: Vec<(ServerName, oneshot::Receiver<Vec<ClientReport>>)>,
) -> Vec<ClientReport> {
    let limit = Instant::now() + REPORT_ENTRIES;
    let mut reports = Vec::new();
    for (server, done) in requested {
        match timeout_at(limit, done).await {
            Ok(done) => reports.extend(done.unwrap_or_default()),
            Err(_) => reports.push(ClientReport {
                client: String::new(),
                done: ClientDone::Waits,
                text: format!("a client has locked its file: the entries of `{server}` follow"),
                server,
            }),
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_a_client_differ_only_if_they_named_it() {
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let naming = |ids: &[&str]| ClientSettings { only: Some(set(ids)), refresh: None };
        let check = |settings, gone: &[&str]| without(&settings, &set(gone));
        assert_eq!(check(ClientSettings::default(), &["cursor"]), None);
        assert_eq!(check(naming(&["zed"]), &["cursor"]), None);
        assert_eq!(check(naming(&["cursor", "zed"]), &["cursor"]), Some(naming(&["zed"])));
        assert_eq!(check(naming(&["zed"]), &["zed"]), Some(naming(&[])));
    }
}
