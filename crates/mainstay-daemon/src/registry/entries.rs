//! What is done to the entries of all servers, or of several, in clients' files.

use std::collections::BTreeSet;

use mainstay_api::{ApiError, Around, ClientReport};
use mainstay_core::{ClientSettings, ServerName, ServerSpec};
use tokio::time::timeout;

use super::change::ACKNOWLEDGE;
use super::{Registry, refused, send};
use crate::clients::Wish;
use crate::driver::{Handle, Message};
use crate::store::Stored;

impl Registry {
    /// Makes the entries of servers that were just described what they are to be. Clients that a server
    /// names are asked for now.
    pub(crate) async fn register(&self, servers: &[ServerName]) -> Vec<ClientReport> {
        let mut reports = Vec::new();
        for handle in servers.iter().filter_map(|name| self.get(name).ok()) {
            let named = handle.view.borrow().spec.clients.only.clone();
            reports.extend(ensure(&handle, Wish::Anew(named.unwrap_or_default())).await);
        }
        reports
    }

    /// Makes the entries of all servers what they are to be.
    pub(crate) async fn register_all(&self, wish: Wish) -> Vec<ClientReport> {
        let mut reports = Vec::new();
        for handle in self.all() {
            reports.extend(ensure(&handle, wish.clone()).await);
        }
        reports
    }

    /// Chooses clients, and registers every server with them that names no clients of its own.
    pub(crate) async fn choose_clients(
        &self,
        ids: Vec<String>,
        around: Around,
    ) -> Result<Vec<ClientReport>, ApiError> {
        let _guard = self.begin_change().await?;
        self.shared.context.clients.choose(&ids, around).await?;
        let mut reports = self.sweep_entries().await;
        reports.extend(self.register_all(Wish::Anew(ids.into_iter().collect())).await);
        Ok(reports)
    }

    /// Chooses clients no longer, also for servers that named them, and takes all entries out of their
    /// files.
    pub(crate) async fn drop_clients(
        &self,
        ids: Vec<String>,
    ) -> Result<Vec<ClientReport>, ApiError> {
        let _guard = self.begin_change().await?;
        self.shared.context.clients.unchoose(&ids).await?;
        self.unname(&ids.into_iter().collect()).await?;
        let mut reports = self.sweep_entries().await;
        reports.extend(self.register_all(Wish::Keep).await);
        Ok(reports)
    }

    /// Clients are to connect anew to all servers: their sessions are lost.
    pub(crate) async fn lose_sessions(&self) {
        for entries in self.all().into_iter().filter_map(|handle| handle.entries) {
            entries.lose_sessions().await;
        }
    }

    /// Takes out the entries of servers that nobody knows any more: a daemon died before it could, or
    /// a file could not be edited when its server was removed.
    pub(crate) async fn sweep_entries(&self) -> Vec<ClientReport> {
        let registry = self.clone();
        let is_known = move |server: &ServerName| registry.servers().contains_key(server);
        self.shared.context.clients.sweep(is_known).await
    }

    /// Makes servers name these clients no longer.
    async fn unname(&self, ids: &BTreeSet<String>) -> Result<(), ApiError> {
        let mut changed = Vec::new();
        let mut told = Vec::new();
        for handle in self.all() {
            let shown = handle.view.borrow().clone();
            let Some(clients) = without(&shown.spec.clients, ids) else { continue };
            let spec = ServerSpec { clients: clients.clone(), ..ServerSpec::clone(&shown.spec) };
            changed.push(Stored { spec, wanted: shown.wanted, created_at: shown.created_at });
            told.push((handle, clients));
        }
        self.shared.context.store.put(changed).await.map_err(|error| refused(&error))?;
        for (handle, clients) in told {
            send(&handle, Message::Clients(clients.clone())).await;
            show(handle, &clients).await;
        }
        Ok(())
    }
}

/// Waits until a server's driver shows these settings, which is at once.
pub(super) async fn show(mut handle: Handle, clients: &ClientSettings) {
    let shown = handle.view.wait_for(|shown| shown.spec.clients == *clients);
    // A driver that has ended shows nothing more.
    timeout(ACKNOWLEDGE, shown).await.ok();
}

/// Settings that name these clients no longer, if they did.
fn without(settings: &ClientSettings, ids: &BTreeSet<String>) -> Option<ClientSettings> {
    let only = settings.only.as_ref()?;
    let left: BTreeSet<_> = only.difference(ids).cloned().collect();
    (left.len() < only.len()).then(|| ClientSettings { only: Some(left), ..settings.clone() })
}

async fn ensure(handle: &Handle, wish: Wish) -> Vec<ClientReport> {
    match &handle.entries {
        Some(entries) => entries.ensure(wish).await,
        None => Vec::new(),
    }
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
