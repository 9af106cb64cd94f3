//! The lists as they are kept on disk.
//!
//! JSON with a version. A daemon reads no later version than its own: it then begins without
//! copies, and reads the lists again.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{ListKind, Lists};

const VERSION: u32 = 1;

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

    /// Reads what [`Lists::stored`] wrote. None if it is damaged, or of a later version.
    pub fn restore(stored: &[u8]) -> Option<Self> {
        let stored: Stored<'_> = serde_json::from_slice(stored).ok()?;
        let mut lists = Self { vanished: stored.vanished, ..Self::default() };
        for StoredList { kind, pages } in stored.lists {
            let page = |page: &RawValue| Bytes::copy_from_slice(page.get().as_bytes());
            lists.offer(kind, pages.into_iter().map(page).collect()).ok()?;
        }
        (stored.version <= VERSION).then_some(lists)
    }
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
        let fingerprint = found.get(ListKind::Tools).unwrap().fingerprint();
        found.offer(ListKind::Tools, pages).unwrap();
        assert_eq!(found.get(ListKind::Tools).unwrap().fingerprint(), fingerprint);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for damaged in [
            &b""[..],
            b"{}",
            br#"{"version":1}"#,
            b"\xff",
            br#"{"version":2,"lists":"other"}"#,
            br#"{"version":2,"lists":[],"vanished":[]}"#,
            br#"{"version":1,"lists":[{"kind":"tools","pages":[{}]}],"vanished":[]}"#,
        ] {
            assert!(Lists::restore(damaged).is_none());
        }
    }
}
