//! The lists as they are kept on disk.
//!
//! JSON with a version. A daemon reads no later version than its own: it then begins without
//! copies, and fetches them anew.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{BadList, ListKind, Lists};

const VERSION: u32 = 1;

/// Why stored lists cannot be taken up.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// They are damaged.
    #[error("the stored lists cannot be read")]
    Damaged(#[source] serde_json::Error),
    /// A later program wrote them.
    #[error("the stored lists are of version {0}, known is {VERSION}")]
    Newer(u32),
    /// A stored page is none.
    #[error("a stored list cannot be read")]
    List(#[source] BadList),
}

impl Lists {
    /// The lists for the disk.
    ///
    /// # Panics
    ///
    /// Never: pages are JSON, or they would not be here.
    pub fn stored(&self) -> Vec<u8> {
        let page = |page| serde_json::from_slice(page).expect("a page that was read is JSON");
        let pages =
            |kind: ListKind| Some(self.get(kind)?.pages().iter().map(|p| page(p)).collect());
        let lists = ListKind::ALL.into_iter();
        let lists =
            lists.filter_map(|kind| Some(StoredList { kind, pages: pages(kind)? })).collect();
        let stored = Stored { version: VERSION, lists, vanished: self.vanished.clone() };
        serde_json::to_vec(&stored).expect("strings, numbers and raw JSON can be written")
    }

    /// Takes up what [`Lists::stored`] wrote.
    pub fn restore(stored: &[u8]) -> Result<Self, RestoreError> {
        let Versioned { version } =
            serde_json::from_slice(stored).map_err(RestoreError::Damaged)?;
        if version > VERSION {
            return Err(RestoreError::Newer(version));
        }
        let stored: Stored = serde_json::from_slice(stored).map_err(RestoreError::Damaged)?;
        let mut lists = Self { vanished: stored.vanished, ..Self::default() };
        for StoredList { kind, pages } in stored.lists {
            let page = |page: &RawValue| Bytes::copy_from_slice(page.get().as_bytes());
            let pages = pages.into_iter().map(page).collect();
            lists.offer(kind, pages).map_err(RestoreError::List)?;
        }
        Ok(lists)
    }
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    version: u32,
    #[serde(borrow)]
    lists: Vec<StoredList<'a>>,
    vanished: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredList<'a> {
    kind: ListKind,
    #[serde(borrow)]
    pages: Vec<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::super::Change;
    use super::*;

    #[test]
    fn stored_lists_are_the_same_lists() {
        let tools = |text: &'static str| vec![Bytes::from_static(text.as_bytes())];
        let mut lists = Lists::default();
        lists.offer(ListKind::Tools, tools(r#"{"tools":[{"name":"gone"}]}"#)).unwrap();
        let pages = vec![
            Bytes::from_static(b"{ \"tools\":[{\"name\":\"a\"}],\n\"nextCursor\":\"x\"}"),
            Bytes::from_static(br#"{"tools":[{"name":"b","annotations":{"readOnlyHint":true}}]}"#),
        ];
        lists.offer(ListKind::Tools, pages.clone()).unwrap();

        let mut found = Lists::restore(&lists.stored()).unwrap();
        assert!(found.has_vanished("gone") && found.is_read_only("b"));
        assert!(found.get(ListKind::Prompts).is_none());
        let first = |lists: &Lists| lists.get(ListKind::Tools).unwrap().page(None).unwrap();
        assert_eq!(first(&found), first(&lists));
        assert_eq!(found.offer(ListKind::Tools, pages).unwrap(), Change::Same);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        let error = Lists::restore(br#"{"version":2,"lists":"other"}"#).unwrap_err();
        assert_eq!(error.to_string(), "the stored lists are of version 2, known is 1");
        for damaged in [&b""[..], b"{}", br#"{"version":1}"#, b"\xff"] {
            assert!(matches!(Lists::restore(damaged), Err(RestoreError::Damaged(_))));
        }
        let odd = br#"{"version":1,"lists":[{"kind":"tools","pages":[{}]}],"vanished":[]}"#;
        assert!(matches!(Lists::restore(odd), Err(RestoreError::List(_))));
    }
}
