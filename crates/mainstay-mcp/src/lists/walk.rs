//! Fetching all pages of a list: what to ask next.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;

use super::list::parts;
use super::{BadList, ListKind, MAX_BYTES, MAX_PAGES};
use crate::frame::string;

/// The pages fetched so far.
#[derive(Debug)]
pub struct Walk {
    kind: ListKind,
    pages: Vec<Bytes>,
    bytes: usize,
    asked: HashSet<String>,
}

/// What to do after a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Ask for the page at this cursor of the server's.
    Ask(String),
    /// That was the last page.
    Complete,
    /// The server leads back to a page that it has given already. What there is so far is the list.
    Loops,
}

impl Walk {
    /// Begins with a list of which nothing has been fetched.
    pub fn new(kind: ListKind) -> Self {
        Self { kind, pages: Vec::new(), bytes: 0, asked: HashSet::new() }
    }

    pub fn kind(&self) -> ListKind {
        self.kind
    }

    /// Takes the server's answer. Returns what to do next.
    pub fn take(&mut self, result: Bytes) -> Result<Next, BadList> {
        self.bytes += result.len();
        if self.bytes > MAX_BYTES {
            return Err(BadList::TooLarge(self.kind.method()));
        }
        let (_, cursor) = parts(self.kind, &result)?;
        let cursor = cursor.and_then(string).filter(|cursor| !cursor.is_empty());
        let cursor = cursor.map(Cow::into_owned);
        self.pages.push(result);
        match cursor {
            None => Ok(Next::Complete),
            Some(cursor) if self.asked.contains(&cursor) => Ok(Next::Loops),
            Some(_) if self.pages.len() >= MAX_PAGES => Err(BadList::Endless(self.kind.method())),
            Some(cursor) => {
                self.asked.insert(cursor.clone());
                Ok(Next::Ask(cursor))
            }
        }
    }

    /// The pages, for [`Lists::offer`](super::Lists::offer).
    pub fn into_pages(self) -> Vec<Bytes> {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(cursor: &str) -> Bytes {
        format!(r#"{{"prompts":[],"nextCursor":{cursor}}}"#).into()
    }

    fn ask(cursor: &str) -> Next {
        Next::Ask(cursor.to_owned())
    }

    #[test]
    fn pages_are_asked_for_to_the_end() {
        let mut walk = Walk::new(ListKind::Prompts);
        assert_eq!(walk.take(page(r#""a\n""#)).unwrap(), ask("a\n"));
        assert_eq!(walk.take(page(r#""b""#)).unwrap(), ask("b"));
        let last = Bytes::from_static(br#"{"prompts":[]}"#);
        assert_eq!(walk.take(last).unwrap(), Next::Complete);
        assert_eq!(walk.into_pages().len(), 3);
    }

    #[test]
    fn an_empty_or_null_cursor_is_the_end() {
        for end in ["null", r#""""#] {
            assert_eq!(Walk::new(ListKind::Prompts).take(page(end)).unwrap(), Next::Complete);
        }
    }

    #[test]
    fn a_loop_is_noticed() {
        let mut walk = Walk::new(ListKind::Prompts);
        assert_eq!(walk.take(page(r#""a""#)).unwrap(), ask("a"));
        assert_eq!(walk.take(page(r#""b""#)).unwrap(), ask("b"));
        assert_eq!(walk.take(page(r#""a""#)).unwrap(), Next::Loops);
    }

    #[test]
    fn endless_large_and_unreadable_lists_are_given_up() {
        let mut walk = Walk::new(ListKind::Prompts);
        for number in 1..MAX_PAGES {
            walk.take(page(&format!(r#""{number}""#))).unwrap();
        }
        assert!(matches!(walk.take(page(r#""more""#)), Err(BadList::Endless(_))));

        let mut walk = Walk::new(ListKind::Prompts);
        let large = page(&format!(r#""{}""#, "x".repeat(MAX_BYTES)));
        assert!(matches!(walk.take(large), Err(BadList::TooLarge(_))));
        let nonsense = Walk::new(ListKind::Prompts).take(Bytes::from_static(b"{}"));
        assert!(matches!(nonsense, Err(BadList::Unreadable { .. })));
    }
}
