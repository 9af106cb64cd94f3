//! Entries in TOML.
//!
//! An entry may be written as a table with a header, as an inline table, with dotted keys, or be there only because one
//! of its sub-tables is. Outside of braces the unit of change is a line, inside of them a member ([`super::braces`]). A
//! new entry gets a header of its own wherever TOML allows one, which is everywhere but inside of an inline table.

pub(crate) mod events;
mod inline;
mod lines;
mod parse;
mod scan;
mod sections;
mod write;

use std::borrow::Cow;
use std::ops::Range;

use toml_edit::{InlineTable, Item, Table};

use self::lines::Statement;
use self::parse::{Node, Parsed, chain, node, parse, value_of};
use super::layout;
use super::removed::Removed;
use super::splice::{Splice, apply};
use super::value::{Changes, Fields, Value};
use super::{Created, EditError};

/// A text that has been read.
pub(super) struct Reading<'t> {
    /// The text, its last line with an end.
    text: Cow<'t, str>,
    has_end: bool,
    keys: &'t [&'t str],
    parsed: Parsed,
}

impl<'t> Reading<'t> {
    pub(super) fn of(text: &'t str, keys: &'t [&'t str]) -> Result<Self, EditError> {
        let (has_end, text) = (has_end(text), with_end(text));
        let parsed = parse(&text, keys.first().copied())?;
        let reading = Self { text, has_end, keys, parsed };
        reading.chain()?;
        Ok(reading)
    }

    pub(super) fn upsert(
        &self,
        name: &str,
        fields: &Fields,
        owned: &[&str],
    ) -> Result<String, EditError> {
        let text = self.text.as_ref();
        let chain = self.chain()?;
        let (anchor, missing) = split(&chain, self.keys);
        let found = if missing.is_empty() { anchor.get(name) } else { None };
        let splices = match (anchor, found) {
            (Node::Table(_), None) => vec![self.new_table(name, fields)],
            (Node::Inline(table), None) => {
                let way: Vec<_> = missing.iter().copied().chain([name]).collect();
                let value = Value::Map(fields.clone()).within(&way[1..]);
                inline::add(text, table, way[0], &value)
            }
            (Node::Table(_) | Node::Inline(_), Some(item)) => {
                let changes = Changes::of(fields, owned);
                match node(text, name, item)? {
                    Node::Inline(entry) => vec![inline::update(text, entry, &changes)?],
                    Node::Table(entry) => self.update(&self.path(name), entry, &changes),
                }
            }
        };
        Ok(self.edited(splices))
    }

    pub(super) fn remove(&self, name: &str, created: &Created) -> Result<String, EditError> {
        let chain = self.chain()?;
        let (anchor, missing) = split(&chain, self.keys);
        if !missing.is_empty() || anchor.get(name).is_none() {
            return Ok(self.edited(Vec::new()));
        }
        let splices = match anchor {
            Node::Table(_) => {
                lines::remove(&self.text, self.statements(), &self.path(name), created.spaced)
            }
            Node::Inline(_) => {
                let tables: Vec<&InlineTable> = chain.iter().filter_map(Node::as_inline).collect();
                inline::remove(&self.text, &tables, self.keys, name, created)?
            }
        };
        let edited = self.edited(splices);
        match &created.document {
            Some(document) if edited.trim().is_empty() => Ok(document.clone()),
            Some(_) | None => Ok(edited),
        }
    }

    /// What there is to know of an entry for it to be put back into the text that is `left` without it. Nothing of one that
    /// is not written as tables with headers.
    pub(super) fn removed(&self, name: &str, left: &str, out: &[&Removed]) -> Option<Removed> {
        sections::removed(&self.text, self.statements(), &self.path(name), &with_end(left), out)
    }

    /// The text with an entry that was taken out.
    pub(super) fn restore(&self, removed: &Removed, out: &[&Removed]) -> String {
        let depth = self.keys.len() + 1;
        self.edited(vec![sections::restore(&self.text, self.statements(), depth, removed, out)])
    }

    pub(super) fn find(&self, name: &str) -> Result<Option<Value>, EditError> {
        let chain = self.chain()?;
        Ok(match split(&chain, self.keys) {
            (container, []) => container.get(name).map(|item| value_of(&self.text, item)),
            (_, [_, ..]) => None,
        })
    }

    pub(super) fn entries(&self) -> Result<Fields, EditError> {
        let chain = self.chain()?;
        Ok(match split(&chain, self.keys) {
            (container, []) => container.values(&self.text),
            (_, [_, ..]) => Vec::new(),
        })
    }

    pub(super) fn outline(&self) -> Result<Created, EditError> {
        if self.text.trim().is_empty() {
            return Ok(Created { document: Some(self.text.to_string()), ..Created::default() });
        }
        let chain = self.chain()?;
        match split(&chain, self.keys) {
            (Node::Inline(table), missing) => Ok(Created {
                containers: missing.len(),
                gap: inline::members(&self.text, table).gap().map(str::to_owned),
                ..Created::default()
            }),
            (Node::Table(_), _) => {
                let at = lines::place_for_table(&self.text, self.statements(), self.keys);
                Ok(Created { spaced: !lines::is_spaced(&self.text, at), ..Created::default() })
            }
        }
    }

    /// The tables on the way to the container.
    fn chain(&self) -> Result<Vec<Node<'_>>, EditError> {
        chain(&self.text, &self.parsed.document, self.keys)
    }

    fn statements(&self) -> &[Statement] {
        &self.parsed.statements
    }

    fn path<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        self.keys.iter().copied().chain([name]).collect()
    }

    /// The text after a change, its last line without an end if it had none.
    fn edited(&self, splices: Vec<Splice>) -> String {
        let mut edited = apply(&self.text, splices);
        if !self.has_end && edited.ends_with('\n') {
            edited.pop();
            if edited.ends_with('\r') {
                edited.pop();
            }
        }
        edited
    }

    /// A table of its own for a new entry.
    fn new_table(&self, name: &str, fields: &Fields) -> Splice {
        let text = self.text.as_ref();
        let newline = layout::newline_of(text).unwrap_or("\n");
        let fields = fields.iter().map(|(key, value)| (key.as_str(), value));
        let table = write::table(&self.path(name), fields, newline);
        if text.trim().is_empty() {
            return Splice::replace(0..text.len(), table);
        }
        let at = lines::place_for_table(text, self.statements(), self.keys);
        let space = if lines::is_spaced(text, at) { "" } else { newline };
        Splice::insert(at, format!("{space}{table}"))
    }

    /// Changes the fields of an entry that is not written in braces.
    fn update(&self, path: &[&str], entry: &Table, changes: &Changes) -> Vec<Splice> {
        let (text, statements) = (self.text.as_ref(), self.statements());
        let mut splices = Vec::new();
        let mut new = Vec::new();
        for (field, value) in &changes.set {
            match entry.get(field) {
                None => new.push((*field, *value)),
                Some(item) if value_of(text, item).means(value) => {}
                Some(Item::Value(old)) => {
                    splices.push(Splice::replace(span(old.span()), write::value(value)));
                }
                Some(Item::Table(_) | Item::ArrayOfTables(_) | Item::None) => {
                    splices.extend(lines::remove_field(text, statements, path, field));
                    new.push((*field, *value));
                }
            }
        }
        for field in &changes.unset {
            splices.extend(lines::remove_field(text, statements, path, field));
        }
        if !new.is_empty() {
            splices.push(lines::add_fields(text, statements, path, &new));
        }
        splices
    }
}

fn with_end(text: &str) -> Cow<'_, str> {
    // Half a line end is for the parser to refuse, not for us to complete.
    if has_end(text) || text.ends_with('\r') {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{text}{}", layout::newline_of(text).unwrap_or("\n")))
    }
}

/// Whether the last line has an end, or there is no line to speak of.
fn has_end(text: &str) -> bool {
    text.ends_with('\n') || text.trim().is_empty()
}

/// The innermost table that exists, and the keys that are missing below it.
fn split<'d, 'k>(chain: &[Node<'d>], keys: &'k [&'k str]) -> (Node<'d>, &'k [&'k str]) {
    let found = chain.len() - 1;
    (chain[found], &keys[found..])
}

fn span(span: Option<Range<usize>>) -> Range<usize> {
    span.expect("a parsed document knows its spans")
}
