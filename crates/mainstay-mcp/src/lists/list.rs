//! One list: its pages, ready to be handed out, and what is to be known of its items.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{BadList, ListKind, MAX_PAGES};
use crate::frame::{Edit, Span, members, splice};

/// A list as a server gave it, with Mainstay's cursors.
#[derive(Debug, Clone)]
pub struct List {
    kind: ListKind,
    pages: Vec<Bytes>,
    fingerprint: u64,
    names: BTreeSet<String>,
    read_only: BTreeSet<String>,
}

impl List {
    /// A page as the result of the list's method, the first one if there is no cursor. None if Mainstay has not
    /// issued the cursor.
    ///
    /// A cursor stays valid when the list changes: then it stands for the page of the same number, and the last page
    /// is followed by an empty one. So a client in the middle of a list gets to its end, and `list_changed` announces
    /// the change.
    pub fn page(&self, cursor: Option<&str>) -> Option<Bytes> {
        let number = match cursor {
            // Some clients write that instead of nothing.
            None | Some("") => 0,
            Some(cursor) => page_of_cursor(cursor)?,
        };
        Some(self.pages.get(number).cloned().unwrap_or_else(|| self.empty_page()))
    }

    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    pub(super) fn read(kind: ListKind, pages: Vec<Bytes>) -> Result<Self, BadList> {
        if pages.len() > MAX_PAGES {
            return Err(BadList::Endless(kind.method()));
        }
        let mut reading = Reading::default();
        let cursors = pages.iter().map(|page| reading.take(kind, page));
        let cursors = cursors.collect::<Result<Vec<_>, _>>()?;
        reading.items.sort_unstable();
        let fingerprint = hash(&reading.items);
        let ours = |(number, (page, cursor)): (usize, (Bytes, Option<Span>))| match cursor {
            Some(span) => {
                let cursor = format!(r#""m{fingerprint:016x}-{}""#, number + 1);
                splice(&page, &mut [Edit(span, &cursor)])
            }
            None => page,
        };
        let pages = pages.into_iter().zip(cursors).enumerate().map(ours).collect();
        let read_only = &reading.read_only - &reading.writing;
        Ok(Self { kind, pages, fingerprint, names: reading.names, read_only })
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.iter().map(Bytes::len).sum()
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn is_read_only(&self, name: &str) -> bool {
        self.read_only.contains(name)
    }

    pub(super) fn pages(&self) -> &[Bytes] {
        &self.pages
    }

    fn empty_page(&self) -> Bytes {
        format!(r#"{{"{}":[]}}"#, self.kind.key()).into()
    }
}

/// The items and the next cursor of a result.
pub(super) fn parts(
    kind: ListKind,
    result: &[u8],
) -> Result<(&RawValue, Option<&RawValue>), BadList> {
    let [items, cursor] =
        members(result, [kind.key(), "nextCursor"]).map_err(|error| unreadable(kind, error))?;
    let items = items.ok_or(BadList::Unreadable { method: kind.method(), source: None })?;
    Ok((items, cursor.filter(|cursor| cursor.get().starts_with('"'))))
}

fn unreadable(kind: ListKind, error: serde_json::Error) -> BadList {
    BadList::Unreadable { method: kind.method(), source: Some(error) }
}

/// What is known of the pages read so far.
#[derive(Default)]
struct Reading {
    items: Vec<u64>,
    names: BTreeSet<String>,
    read_only: BTreeSet<String>,
    /// Names that stand for something else, maybe besides something that only reads.
    writing: BTreeSet<String>,
}

impl Reading {
    /// Reads a page. Returns where its cursor is.
    fn take(&mut self, kind: ListKind, page: &[u8]) -> Result<Option<Span>, BadList> {
        let (items, cursor) = parts(kind, page)?;
        let items: Vec<Value> =
            serde_json::from_str(items.get()).map_err(|error| unreadable(kind, error))?;
        for item in items {
            self.items.push(hash(&item));
            let Some(name) = item.get(kind.name_key()).and_then(Value::as_str) else { continue };
            self.names.insert(name.to_owned());
            let hint = item.pointer("/annotations/readOnlyHint");
            let reads = hint.and_then(Value::as_bool) == Some(true);
            let names = if reads { &mut self.read_only } else { &mut self.writing };
            names.insert(name.to_owned());
        }
        Ok(cursor.map(|cursor| Span::of(cursor.get().as_bytes(), page)))
    }
}

/// The page that a cursor stands for: `m`, the fingerprint of its list, and the number of the page.
fn page_of_cursor(cursor: &str) -> Option<usize> {
    let (fingerprint, page) = cursor.strip_prefix('m')?.split_once('-')?;
    let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    (fingerprint.len() == 16 && is_hex(fingerprint) && is_hex(page)).then(|| page.parse().ok())?
}

/// The order of keys in an object does not matter.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(pages: &[&'static str]) -> List {
        let pages = pages.iter().map(|page| Bytes::from_static(page.as_bytes())).collect();
        List::read(ListKind::Tools, pages).unwrap()
    }

    fn cursor_of(page: &[u8]) -> Option<String> {
        let page: Value = serde_json::from_slice(page).unwrap();
        page.get("nextCursor").and_then(Value::as_str).map(str::to_owned)
    }

    /// All pages as a client gets them.
    fn followed(list: &List) -> Vec<Bytes> {
        let mut pages = vec![list.page(None).unwrap()];
        while let Some(cursor) = cursor_of(pages.last().unwrap()) {
            pages.push(list.page(Some(&cursor)).unwrap());
        }
        pages
    }

    #[test]
    fn pages_are_the_servers_and_cursors_ours() {
        let list = list(&[
            r#"{ "nextCursor" : "theirs", "tools":[{"name":"a", "nextCursor":"x"}], "_meta":{} }"#,
            r#"{"tools":[{"name":"b"}]}"#,
        ]);
        let pages = followed(&list);
        let cursor = cursor_of(&pages[0]).unwrap();
        assert_eq!(
            pages[0],
            format!(
                r#"{{ "nextCursor" : "{cursor}", "tools":[{{"name":"a", "nextCursor":"x"}}], "_meta":{{}} }}"#
            ),
        );
        assert_eq!(pages[1], r#"{"tools":[{"name":"b"}]}"#);
        assert_eq!(pages.len(), 2);
        assert_eq!(list.page(Some("")).unwrap(), pages[0]);
    }

    #[test]
    fn a_cursor_outlives_its_list() {
        let long = list(&[
            r#"{"tools":[{"name":"a"}],"nextCursor":"1"}"#,
            r#"{"tools":[{"name":"b"}],"nextCursor":"2"}"#,
            r#"{"tools":[{"name":"c"}]}"#,
        ]);
        let cursors: Vec<_> = followed(&long).iter().filter_map(|page| cursor_of(page)).collect();
        let short =
            list(&[r#"{"tools":[{"name":"x"}],"nextCursor":"1"}"#, r#"{"tools":[{"name":"y"}]}"#]);
        assert_eq!(short.page(Some(&cursors[0])).unwrap(), r#"{"tools":[{"name":"y"}]}"#);
        assert_eq!(short.page(Some(&cursors[1])).unwrap(), r#"{"tools":[]}"#);
    }

    #[test]
    fn a_list_that_was_cut_short_or_ends_oddly_still_ends() {
        for last in [r#"{"tools":[],"nextCursor":"again"}"#, r#"{"tools":[],"nextCursor":""}"#] {
            let pages = followed(&list(&[last]));
            assert_eq!(pages.last().unwrap(), r#"{"tools":[]}"#);
            assert_eq!(pages.len(), 2);
        }
        let null = list(&[r#"{"tools":[],"nextCursor":null}"#]);
        assert_eq!(followed(&null), [r#"{"tools":[],"nextCursor":null}"#]);
        assert_eq!(list(&[]).page(None).unwrap(), r#"{"tools":[]}"#);
    }

    #[test]
    fn foreign_cursors_are_refused() {
        let list = list(&[r#"{"tools":[]}"#]);
        for cursor in
            ["1", "m-1", "m0123456789abcdef-", "m0123456789abcdef-f", "m+123456789abcdef-1", "é"]
        {
            assert_eq!(list.page(Some(cursor)), None, "{cursor}");
        }
        assert_eq!(list.page(Some("m0123456789abcdef-99999999999999999999")), None);
    }

    proptest! {
        #[test]
        fn any_cursor_is_answered_or_refused(cursor: String) {
            list(&[r#"{"tools":[]}"#]).page(Some(&cursor));
        }

        #[test]
        fn reading_our_own_pages_again_changes_nothing(names in prop::collection::vec(".{0,4}", 1..5)) {
            let page = |name: &String| {
                serde_json::to_vec(&serde_json::json!({"tools": [{"name": name}], "nextCursor": "c"}))
            };
            let pages = names.iter().map(|name| page(name).unwrap().into()).collect();
            let list = List::read(ListKind::Tools, pages).unwrap();
            let again = List::read(ListKind::Tools, list.pages().to_vec()).unwrap();
            prop_assert_eq!(again.fingerprint(), list.fingerprint());
            prop_assert_eq!(again.pages(), list.pages());
        }
    }
}
