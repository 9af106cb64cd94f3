//! The tokens of callers other than this user. Only hashes are stored.
//!
//! They are in the `meta` table, so that versions without tokens can still read the store.

use mainstay_api::TokenInfo;
use mainstay_core::ServerName;
use rusqlite::{Transaction, params};
use serde::{Deserialize, Serialize};

use super::{Store, StoreError, json};

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredToken {
    #[serde(flatten)]
    pub(crate) info: TokenInfo,
    pub(crate) digest: [u8; 32],
}

/// Whether a token was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    Yes,
    NameTaken,
    NoSuchServer,
}

impl Store {
    /// All tokens, ordered by name.
    pub(crate) async fn tokens(&self) -> Result<Vec<StoredToken>, StoreError> {
        let store = self.clone();
        self.pool.run(move || store.load_tokens()).await
    }

    /// The same during startup, without waiting.
    pub(crate) fn load_tokens(&self) -> Result<Vec<StoredToken>, StoreError> {
        let texts = self.read(select)?;
        let parse = |text: &String| serde_json::from_str(text);
        let tokens: serde_json::Result<_> = texts.iter().map(parse).collect();
        tokens.map_err(|error| self.damaged("a token", &error))
    }

    /// Stores a token, unless the name is taken or the server does not exist.
    pub(crate) async fn add_token(&self, token: StoredToken) -> Result<Added, StoreError> {
        self.change(move |tx| {
            if let Some(server) = &token.info.server {
                let count = "SELECT count(*) FROM servers WHERE name = ?1";
                let count: i64 = tx.query_row(count, [server.as_str()], |row| row.get(0))?;
                if count == 0 {
                    return Ok(Added::NoSuchServer);
                }
            }
            let added = tx.execute(
                "INSERT OR IGNORE INTO meta (key, value) VALUES ('token ' || ?1, ?2)",
                params![token.info.name, json(&token)?],
            )?;
            Ok(if added == 1 { Added::Yes } else { Added::NameTaken })
        })
        .await
    }

    /// Removes a token. Returns false if there is none of this name.
    pub(crate) async fn remove_token(&self, name: String) -> Result<bool, StoreError> {
        self.change(move |tx| {
            Ok(tx.execute("DELETE FROM meta WHERE key = 'token ' || ?1", [name])? == 1)
        })
        .await
    }
}

/// Removes the tokens that admit to this server only.
pub(super) fn forget_server(tx: &Transaction<'_>, server: &ServerName) -> rusqlite::Result<()> {
    tx.execute(
        "DELETE FROM meta WHERE key GLOB 'token *' AND value ->> 'server' = ?1",
        [server.as_str()],
    )?;
    Ok(())
}

fn select(tx: &Transaction<'_>) -> rusqlite::Result<Vec<String>> {
    let mut select = tx.prepare("SELECT value FROM meta WHERE key GLOB 'token *' ORDER BY key")?;
    select.query_map([], |row| row.get(0))?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, server: Option<&str>) -> StoredToken {
        let info = TokenInfo {
            name: name.to_owned(),
            server: server.map(|server| server.parse().unwrap()),
            created_at: "2026-01-02T03:04:05Z".parse().unwrap(),
        };
        StoredToken { info, digest: [7; 32] }
    }

    fn described(name: &str) -> crate::state::store::Stored {
        let spec = mainstay_testkit::samples::spec(name);
        let wanted = mainstay_core::Wanted::On;
        crate::state::store::Stored { spec, wanted, created_at: jiff::Timestamp::UNIX_EPOCH }
    }

    #[tokio::test]
    async fn tokens_are_read_as_they_were_stored_and_go_with_their_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        assert_eq!(store.tokens().await.unwrap(), []);
        let (all, one, other) =
            (token("all", None), token("one", Some("a")), token("x", Some("b")));
        let early = store.add_token(one.clone()).await.unwrap();
        assert_eq!(early, Added::NoSuchServer);
        store.put(["a", "b"].map(described).into()).await.unwrap();
        for token in [&all, &one, &other] {
            assert_eq!(store.add_token(token.clone()).await.unwrap(), Added::Yes);
        }
        let again = store.add_token(token("all", Some("a"))).await.unwrap();
        assert_eq!(again, Added::NameTaken);
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.load_tokens().unwrap(), [all.clone(), one, other.clone()]);
        store.delete("a".parse().unwrap()).await.unwrap();
        assert_eq!(store.tokens().await.unwrap(), [all, other.clone()]);
        assert!(store.remove_token("all".to_owned()).await.unwrap());
        assert!(!store.remove_token("all".to_owned()).await.unwrap());
        assert_eq!(store.tokens().await.unwrap(), [other]);
        assert_eq!(store.port().unwrap(), None);
        store.choose_port(7434).unwrap();
        assert_eq!(Store::port_in(&path).unwrap(), Some(7434));
    }
}
