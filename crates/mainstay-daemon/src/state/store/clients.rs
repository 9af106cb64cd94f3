//! The clients that a user chose or named, and their location.

use std::collections::BTreeMap;

use mainstay_api::Around;
use rusqlite::params;

use super::{Store, StoreError, json};

/// A client that a user chose or named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredClient {
    /// Whether it gets entries for all servers that name no clients of their own.
    pub(crate) chosen: bool,
    pub(crate) around: Around,
}

impl Store {
    /// The clients that were chosen or named, by id.
    pub(crate) fn clients(&self) -> Result<BTreeMap<String, StoredClient>, StoreError> {
        let rows: Vec<(String, bool, String)> = self.read(|tx| {
            let mut select = tx.prepare("SELECT id, chosen, around FROM clients")?;
            let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            rows.collect()
        })?;
        let read = |(id, chosen, around): (String, bool, String)| {
            let around = serde_json::from_str(&around)
                .map_err(|error| self.damaged(&format!("client `{id}`"), &error))?;
            Ok((id, StoredClient { chosen, around }))
        };
        rows.into_iter().map(read).collect()
    }

    /// Stores clients, in place of those of the same ids: all of them or none.
    pub(crate) async fn put_clients(
        &self,
        clients: BTreeMap<String, StoredClient>,
    ) -> Result<(), StoreError> {
        self.change(move |tx| {
            let mut put = tx.prepare(
                "INSERT OR REPLACE INTO clients (id, chosen, around) VALUES (?1, ?2, ?3)",
            )?;
            for (id, client) in clients {
                put.execute(params![id, client.chosen, json(&client.around)?])?;
            }
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clients_are_read_as_they_were_stored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        let env = BTreeMap::from([("CODEX_HOME".to_owned(), "/x".to_owned())]);
        let around = Around { home: "/home/ann".into(), env };
        let cursor = StoredClient { chosen: true, around };
        let clients = |cursor| BTreeMap::from([("cursor".to_owned(), cursor)]);
        store.put_clients(clients(cursor.clone())).await.unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.clients().unwrap(), clients(cursor.clone()));
        let dropped = StoredClient { chosen: false, ..cursor };
        store.put_clients(clients(dropped.clone())).await.unwrap();
        assert_eq!(store.clients().unwrap(), clients(dropped));
    }
}
