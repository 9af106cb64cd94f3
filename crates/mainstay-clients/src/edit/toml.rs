//! Entries in TOML.
//!
//! An entry may be a table with a header, an inline table, a set of dotted keys, or be implied by one of its sub-tables.
//! Outside braces the unit of change is a line, inside them a member ([`super::braces`]). A new entry gets a header
//! wherever TOML allows one, which is everywhere except in an inline table.

mod lines;
mod parse;
mod sections;
pub(super) mod write;

use std::borrow::Cow;

use toml_edit::{Document, Item, Table};

use self::lines::{Statement, statements};
use self::parse::{Node, chain, members, node, parse, span, value_of};
use super::braces::{self, Layout, Members};
use super::removed::Removed;
use super::text::{Splice, apply, newline_of};
use super::value::{Fields, Value, changes};
use super::{Created, EditError, Editor};

pub(super) struct ParsedText<'t> {
    /// The text; its last line is ended.
    text: Cow<'t, str>,
    has_end: bool,
    keys: &'t [&'t str],
    document: Document<String>,
    /// In the order of the text.
    statements: Vec<Statement>,
}

impl<'t> ParsedText<'t> {
    pub(super) fn parse(text: &'t str, keys: &'t [&'t str]) -> Result<Self, EditError> {
        let (has_end, text) = (has_end(text), with_end(text));
        let document = parse(&text)?;
        let statements = statements(&document);
        let parsed = Self { text, has_end, keys, document, statements };
        parsed.chain()?;
        Ok(parsed)
    }

    fn chain(&self) -> Result<Vec<Node<'_>>, EditError> {
        chain(&self.text, &self.document, self.keys)
    }

    fn path<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        self.keys.iter().copied().chain([name]).collect()
    }

    /// An edited text; its last line is ended if it was before.
    fn as_ended(&self, mut edited: String) -> String {
        if !self.has_end && edited.ends_with('\n') {
            edited.pop();
            if edited.ends_with('\r') {
                edited.pop();
            }
        }
        edited
    }

    fn new_table(&self, name: &str, fields: &Fields) -> Splice {
        let text = self.text.as_ref();
        let newline = newline_of(text);
        let fields = fields.iter().map(|(key, value)| (key.as_str(), value));
        let table = write::table(&self.path(name), fields, newline);
        if text.trim().is_empty() {
            return Splice::replace(0..text.len(), table);
        }
        let at = self.place_for_table();
        let space = if lines::is_spaced(text, at) { "" } else { newline };
        Splice::insert(at, format!("{space}{table}"))
    }

    /// Changes fields of an entry that is not in braces.
    fn update(
        &self,
        path: &[&str],
        entry: &Table,
        changes: &[(&str, Option<&Value>)],
    ) -> Vec<Splice> {
        let mut splices = Vec::new();
        let mut new = Vec::new();
        for (field, value) in changes {
            match (entry.get(field), value) {
                (Some(Item::Value(old)), Some(value)) => {
                    splices.push(Splice::replace(span(old.span()), write::value(value)));
                }
                (_, value) => {
                    splices.extend(self.remove_field(path, field));
                    new.extend(value.map(|value| (*field, value)));
                }
            }
        }
        if !new.is_empty() {
            splices.push(self.add_fields(path, &new));
        }
        splices
    }
}

impl Editor for ParsedText<'_> {
    fn upsert(&self, name: &str, fields: &Fields, owned: &[&str]) -> Result<String, EditError> {
        let text = self.text.as_ref();
        let chain = self.chain()?;
        let (last, missing) = split(&chain, self.keys);
        let found = if missing.is_empty() { last.get(name) } else { None };
        let edited = match (last, found) {
            (Node::Table(_), None) => apply(text, vec![self.new_table(name, fields)]),
            (Node::Inline(table), None) => {
                let (key, value) = match missing {
                    [first, rest @ ..] => (*first, Value::object_at(rest, name, fields)),
                    [] => (name, Value::Map(fields.clone())),
                };
                apply(text, members(text, table).append(&layout(text), key, &value))
            }
            (Node::Table(_) | Node::Inline(_), Some(item)) => {
                let (entry, path) = (node(text, name, item)?, self.path(name));
                let changes = changes(&entry.values(text), fields, owned);
                match entry {
                    Node::Inline(_) => {
                        braces::update(text, &layout(text), &changes, |text| entry_in(text, &path))?
                    }
                    Node::Table(entry) => apply(text, self.update(&path, entry, &changes)),
                }
            }
        };
        Ok(self.as_ended(edited))
    }

    fn remove(&self, name: &str, created: &Created) -> Result<String, EditError> {
        let text = self.text.as_ref();
        let chain = self.chain()?;
        let splices = match split(&chain, self.keys) {
            (container, []) if container.get(name).is_some() => match container {
                Node::Table(_) => self.remove_lines(&self.path(name), created.spaced),
                Node::Inline(_) => {
                    let tables = chain.iter().filter_map(Node::as_inline);
                    let levels: Vec<_> = tables.map(|table| members(text, table)).collect();
                    braces::remove_nested(&levels, self.keys, name, created)?
                }
            },
            _ => return Ok(self.as_ended(text.to_owned())),
        };
        let left = self.as_ended(apply(text, splices));
        let document = created.document.clone();
        Ok(document.filter(|_| left.trim().is_empty()).unwrap_or(left))
    }

    /// Only entries that are tables with headers can be put back.
    fn removed(
        &self,
        name: &str,
        left: &str,
        absent: &[&Removed],
    ) -> Result<Option<Removed>, EditError> {
        Ok(self.removed_table(name, &with_end(left), absent))
    }

    fn restore(
        &self,
        _name: &str,
        removed: &Removed,
        absent: &[&Removed],
    ) -> Result<String, EditError> {
        Ok(self.as_ended(apply(&self.text, vec![self.restore_table(removed, absent)])))
    }

    fn find(&self, name: &str) -> Result<Option<Value>, EditError> {
        let chain = self.chain()?;
        Ok(match split(&chain, self.keys) {
            (container, []) => container.get(name).map(|item| value_of(&self.text, item)),
            (_, [_, ..]) => None,
        })
    }

    fn entries(&self) -> Result<Fields, EditError> {
        let chain = self.chain()?;
        Ok(match split(&chain, self.keys) {
            (container, []) => container.values(&self.text),
            (_, [_, ..]) => Vec::new(),
        })
    }

    fn to_create(&self) -> Result<Created, EditError> {
        let text = self.text.as_ref();
        if text.trim().is_empty() {
            return Ok(Created { document: Some(text.to_owned()), ..Created::default() });
        }
        let chain = self.chain()?;
        match split(&chain, self.keys) {
            (Node::Inline(table), missing) => Ok(Created {
                containers: missing.len(),
                gap: members(text, table).gap().map(str::to_owned),
                ..Created::default()
            }),
            (Node::Table(_), _) => {
                let at = self.place_for_table();
                Ok(Created { spaced: !lines::is_spaced(text, at), ..Created::default() })
            }
        }
    }
}

/// The entry at a path that ends in braces.
fn entry_in<'t>(text: &'t str, path: &[&str]) -> Result<Members<'t>, EditError> {
    let document = parse(text)?;
    let chain = chain(text, &document, path)?;
    let entry = chain.last().and_then(Node::as_inline);
    Ok(members(text, entry.expect("the entry is an inline table")))
}

/// What is added to braces stays on one line unless the members around it do not.
fn layout(text: &str) -> Layout {
    Layout { newline: newline_of(text), unit: "  ".to_owned(), flat: true, spaced: true }
}

fn with_end(text: &str) -> Cow<'_, str> {
    // Half a line end is left for the parser to reject.
    if has_end(text) || text.ends_with('\r') {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{text}{}", newline_of(text)))
    }
}

/// Whether the last line is ended, or the text is blank.
fn has_end(text: &str) -> bool {
    text.ends_with('\n') || text.trim().is_empty()
}

/// The innermost table that exists, and the keys that are missing below it.
fn split<'d, 'k>(chain: &[Node<'d>], keys: &'k [&'k str]) -> (Node<'d>, &'k [&'k str]) {
    let found = chain.len() - 1;
    (chain[found], &keys[found..])
}
