//! The last good copies of a server's lists: tools, prompts, resources, resource templates.
//!
//! While a server is down, its lists are answered from here, and the lists of a new run are compared with these. Pages
//! stay as the server wrote them, except for their cursors: a server's cursors are invalid after its run. Pure: the
//! caller requests the pages, and [`Walk`] returns what to request next.
//!
//! Bounded by [`MAX_PAGES`] and [`MAX_BYTES`]: what is larger is not kept.

mod kind;
mod list;
mod stored;
mod walk;

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::frame::Method;

pub use self::kind::ListKind;
pub use self::list::List;
pub use self::walk::{Next, Walk};

pub const MAX_PAGES: usize = 1000;
/// How many bytes all lists of a server may have together. No client can use more, and each server may take
/// that much memory.
pub const MAX_BYTES: usize = 8 << 20;
/// How many vanished tools are remembered; then the oldest are forgotten.
const MAX_VANISHED: usize = 1000;

#[derive(Debug, Clone, Default)]
pub struct Lists {
    copies: [Option<List>; ListKind::ALL.len()],
    /// Tools that an earlier list had and the present one has not, in the order in which they went.
    vanished: Vec<String>,
    known: [Known; ListKind::ALL.len()],
}

/// What clients know of a list.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// The fingerprint of the list that was announced to them last.
    fingerprint: Option<u64>,
    /// Whether the server has announced a change since.
    announced: bool,
    /// Whether a client has got a list since that may be another one.
    unsettled: bool,
}

/// Why a list is not kept. The copy before it stays.
#[derive(Debug, thiserror::Error)]
pub enum BadList {
    /// A page is not an object with items.
    #[error("the server's answer to `{method}` cannot be read")]
    Unreadable {
        method: &'static str,
        /// What is wrong with it; nothing if the items are missing.
        #[source]
        source: Option<serde_json::Error>,
    },
    #[error("the server's answers to `{0}` do not end after {MAX_PAGES} pages")]
    Endless(&'static str),
    #[error("the server's answers to `{0}` make more than {MAX_BYTES} bytes of lists")]
    TooLarge(&'static str),
}

impl Lists {
    /// The copy of a list, if there is one.
    pub fn get(&self, kind: ListKind) -> Option<&List> {
        self.copies[kind.place()].as_ref()
    }

    /// Replaces the copy of a list by a complete list, given as the results that the server sent.
    pub fn offer(&mut self, kind: ListKind, pages: Vec<Bytes>) -> Result<(), BadList> {
        let others = ListKind::ALL.into_iter().filter(|other| *other != kind);
        let kept: usize = others.filter_map(|other| self.get(other)).map(List::bytes).sum();
        if kept + pages.iter().map(Bytes::len).sum::<usize>() > MAX_BYTES {
            return Err(BadList::TooLarge(kind.method()));
        }
        let list = List::read(kind, pages)?;
        let copy = &mut self.copies[kind.place()];
        if copy.is_none() {
            self.known[kind.place()].fingerprint = Some(list.fingerprint());
        }
        let names = list.names().clone();
        let old = copy.replace(list);
        if kind == ListKind::Tools {
            self.vanished.extend(old.iter().flat_map(List::names).cloned());
            let mut seen = BTreeSet::new();
            self.vanished.retain(|name| !names.contains(name) && seen.insert(name.clone()));
            let excess = self.vanished.len().saturating_sub(MAX_VANISHED);
            self.vanished.drain(..excess);
        }
        Ok(())
    }

    /// The server announces, with this method, that lists have changed.
    pub fn announced(&mut self, method: &Method) {
        for kind in ListKind::ALL.into_iter().filter(|kind| kind.changed() == method.as_str()) {
            self.known[kind.place()].announced = true;
        }
    }

    /// A client has got a list before it was known whether it is complete.
    pub fn passed_unsettled(&mut self, kind: ListKind) {
        self.known[kind.place()].unsettled = true;
    }

    /// Whether a change of a list has to be announced to clients. Called when it has been read, or could not be.
    /// After that it counts as announced.
    pub fn take_unannounced_change(&mut self, kind: ListKind, is_read: bool) -> bool {
        let fingerprint = self.get(kind).map(List::fingerprint);
        let known = std::mem::replace(
            &mut self.known[kind.place()],
            Known { fingerprint, ..Known::default() },
        );
        let is_compared = is_read && known.fingerprint.is_some();
        let differs = is_compared && known.fingerprint != fingerprint;
        differs || (known.announced && (known.unsettled || !is_compared))
    }

    /// Whether a tool is read-only, by the server's annotation.
    pub fn is_read_only(&self, tool: &str) -> bool {
        self.get(ListKind::Tools).is_some_and(|tools| tools.is_read_only(tool))
    }

    /// Whether the server had a tool of this name and has it no longer.
    pub fn has_vanished(&self, tool: &str) -> bool {
        self.vanished.iter().any(|name| name == tool)
    }

    /// Whether there is any tool that has vanished.
    pub fn has_any_vanished(&self) -> bool {
        !self.vanished.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: &[&'static str]) -> Vec<Bytes> {
        pages.iter().map(|page| Bytes::from_static(page.as_bytes())).collect()
    }

    fn offer(lists: &mut Lists, given: &[&'static str]) {
        lists.offer(ListKind::Tools, pages(given)).unwrap();
    }

    #[test]
    fn only_a_real_difference_is_one() {
        let mut lists = Lists::default();
        let mut check = |given: &[&'static str], differs: bool| {
            let fingerprint = |lists: &Lists| lists.get(ListKind::Tools).map(List::fingerprint);
            let before = fingerprint(&lists);
            offer(&mut lists, given);
            assert_eq!(fingerprint(&lists) != before, differs, "{given:?}");
        };
        check(&[r#"{"tools":[{"name":"a","x":{"p":1,"q":[1,2]}},{"name":"b"}]}"#], true);
        check(
            &[
                r#"{"tools":[{"name":"b"}],"nextCursor":"1"}"#,
                r#"{"_meta":{}, "tools":[ {"x":{"q":[1,2],"p":1},"n\u0061me":"a"}]}"#,
            ],
            false,
        );
        check(&[r#"{"tools":[{"name":"a","x":{"p":1,"q":[2,1]}},{"name":"b"}]}"#], true);
        check(&[r#"{"tools":[{"name":"c"},{"name":"b"}]}"#], true);
        check(&[r#"{"tools":[{"name":"c"},{"name":"b"},{"name":"b"}]}"#], true);
        check(&[r#"{"tools":[]}"#], true);
    }

    #[test]
    fn clients_are_told_what_they_cannot_know() {
        let (old, new) = (r#"{"tools":[{"name":"a"}]}"#, r#"{"tools":[{"name":"b"}]}"#);
        // Given: the list that follows `old`, whether it was read, announced, and passed on in between.
        for (next, is_read, announced, passed, expected) in [
            (old, true, false, false, false),
            (old, true, true, false, false),
            (old, true, false, true, false),
            (old, true, true, true, true),
            (old, false, false, false, false),
            (old, false, true, false, true),
            (new, true, false, false, true),
            (new, true, true, true, true),
        ] {
            let mut lists = Lists::default();
            offer(&mut lists, &[old]);
            assert!(
                !lists.take_unannounced_change(ListKind::Tools, true),
                "there were no clients before it"
            );
            // What happens in between is not told before the list has settled.
            offer(&mut lists, &[new]);
            offer(&mut lists, &[next]);
            if announced {
                lists.announced(&Method::ToolsChanged);
            }
            if passed {
                lists.passed_unsettled(ListKind::Tools);
            }
            let case = (next, is_read, announced, passed);
            assert_eq!(
                lists.take_unannounced_change(ListKind::Tools, is_read),
                expected,
                "{case:?}"
            );
            assert!(
                !lists.take_unannounced_change(ListKind::Tools, is_read),
                "they are told once: {case:?}"
            );
        }
        let mut lists = Lists::default();
        lists.announced(&Method::ResourcesChanged);
        assert!(
            lists.take_unannounced_change(ListKind::ResourceTemplates, true),
            "nothing to compare with"
        );
        assert!(!lists.take_unannounced_change(ListKind::Tools, true));
    }

    #[test]
    fn a_vanished_tool_is_remembered_until_it_comes_back() {
        let mut lists = Lists::default();
        offer(&mut lists, &[r#"{"tools":[{"name":"a"},{"name":"b"}]}"#]);
        assert!(!lists.has_vanished("a") && !lists.has_vanished("never"));
        offer(&mut lists, &[r#"{"tools":[{"name":"b"}]}"#]);
        offer(&mut lists, &[r#"{"tools":[{"name":"c"}]}"#]);
        assert!(lists.has_vanished("a") && lists.has_vanished("b") && !lists.has_vanished("c"));
        offer(&mut lists, &[r#"{"tools":[{"name":"a"}]}"#]);
        assert!(!lists.has_vanished("a") && lists.has_vanished("b") && lists.has_vanished("c"));
    }

    #[test]
    fn vanished_tools_are_forgotten_after_a_thousand_others() {
        let mut lists = Lists::default();
        for number in 0..MAX_VANISHED + 2 {
            let page = format!(r#"{{"tools":[{{"name":"t{number}"}}]}}"#);
            lists.offer(ListKind::Tools, vec![page.into()]).unwrap();
        }
        assert!(!lists.has_vanished("t0") && lists.has_vanished("t1"));
        assert_eq!(lists.vanished.len(), MAX_VANISHED);
    }

    #[test]
    fn a_tool_is_read_only_if_the_server_says_so_and_nothing_else() {
        let mut lists = Lists::default();
        assert!(!lists.is_read_only("a"));
        offer(
            &mut lists,
            &[r#"{"tools":[
                {"name":"a","annotations":{"readOnlyHint":true}},
                {"name":"b","annotations":{"readOnlyHint":"true"}},
                {"name":"c","annotations":{"idempotentHint":true}},
                {"name":"d","readOnlyHint":true},
                {"name":"e","annotations":{"readOnlyHint":true}},
                {"name":"e","annotations":{"readOnlyHint":false}}]}"#],
        );
        assert!(lists.is_read_only("a"));
        for tool in ["b", "c", "d", "e", "f"] {
            assert!(!lists.is_read_only(tool), "{tool}");
        }
    }

    #[test]
    fn a_bad_list_leaves_the_good_copy() {
        let mut lists = Lists::default();
        offer(&mut lists, &[r#"{"tools":[{"name":"a"}]}"#]);
        for bad in ["", "[]", "{}", r#"{"tools":{}}"#, r#"{"tools":[],"tools":[]}"#] {
            let error = lists.offer(ListKind::Tools, pages(&[bad])).unwrap_err();
            assert!(matches!(error, BadList::Unreadable { .. }), "{error}");
        }
        let many = vec![Bytes::from_static(br#"{"tools":[]}"#); MAX_PAGES + 1];
        let error = lists.offer(ListKind::Tools, many).unwrap_err();
        assert!(matches!(error, BadList::Endless("tools/list")), "{error}");
        assert!(lists.get(ListKind::Tools).unwrap().names().contains("a"));
    }

    #[test]
    fn the_limit_is_on_all_lists_together() {
        let large = |key: &str| {
            let text = format!(r#"{{"{key}":[{{"uri":"{}"}}]}}"#, "x".repeat(MAX_BYTES / 2));
            vec![Bytes::from(text)]
        };
        let mut lists = Lists::default();
        lists.offer(ListKind::Resources, large("resources")).unwrap();
        lists.offer(ListKind::Resources, large("resources")).unwrap();
        let error = lists.offer(ListKind::Prompts, large("prompts")).unwrap_err();
        assert!(matches!(error, BadList::TooLarge("prompts/list")), "{error}");
    }
}
