//! Entries in TOML.
//!
//! An entry may be written as a table with a header, as an inline table, with dotted keys, or be there only because one
//! of its sub-tables is. Outside of braces the unit of change is a line, inside of them a member ([`super::braces`]). A
//! new entry gets a header of its own wherever TOML allows one, which is everywhere but inside of an inline table.

mod inline;
mod lines;
mod parse;
mod write;

use std::borrow::Cow;
use std::ops::Range;

use toml_edit::{Document, InlineTable, Item, Table};

use self::lines::statements;
use self::parse::{Node, chain, node, parse, value_of};
use super::layout;
use super::splice::{Splice, apply};
use super::value::{Changes, Fields, Value};
use super::{Created, EditError, Place};

pub(super) fn upsert(
    text: &str,
    place: &Place,
    name: &str,
    fields: &Fields,
    owned: &[&str],
) -> Result<String, EditError> {
    in_lines(text, |text| {
        let document = parse(text)?;
        let chain = chain(text, &document, place.keys)?;
        let (anchor, missing) = split(&chain, place.keys);
        let found = if missing.is_empty() { anchor.get(name) } else { None };
        let splices = match (anchor, found) {
            (Node::Table(_), None) => vec![new_table(text, &document, place.keys, name, fields)],
            (Node::Inline(table), None) => {
                let way: Vec<_> = missing.iter().copied().chain([name]).collect();
                let value = Value::Map(fields.clone()).within(&way[1..]);
                inline::add(text, table, way[0], &value)
            }
            (Node::Table(_) | Node::Inline(_), Some(item)) => {
                let changes = Changes::of(fields, owned);
                match node(text, name, item)? {
                    Node::Inline(entry) => vec![inline::update(text, entry, &changes)?],
                    Node::Table(entry) => {
                        let path: Vec<_> = place.keys.iter().copied().chain([name]).collect();
                        update(text, &document, &path, entry, &changes)
                    }
                }
            }
        };
        Ok(apply(text, splices))
    })
}

pub(super) fn remove(
    text: &str,
    place: &Place,
    name: &str,
    created: &Created,
) -> Result<String, EditError> {
    let edited = in_lines(text, |text| {
        let document = parse(text)?;
        let chain = chain(text, &document, place.keys)?;
        let (anchor, missing) = split(&chain, place.keys);
        if !missing.is_empty() || anchor.get(name).is_none() {
            return Ok(text.to_owned());
        }
        let splices = match anchor {
            Node::Table(_) => {
                let path: Vec<_> = place.keys.iter().copied().chain([name]).collect();
                lines::remove(text, &statements(&document), &path, created.spaced)
            }
            Node::Inline(_) => {
                let tables: Vec<&InlineTable> = chain.iter().filter_map(Node::as_inline).collect();
                inline::remove(text, &tables, place.keys, name, created)?
            }
        };
        Ok(apply(text, splices))
    })?;
    match &created.document {
        Some(document) if edited.trim().is_empty() => Ok(document.clone()),
        Some(_) | None => Ok(edited),
    }
}

pub(super) fn find(text: &str, place: &Place, name: &str) -> Result<Option<Value>, EditError> {
    let document = parse(text)?;
    let chain = chain(text, &document, place.keys)?;
    Ok(match split(&chain, place.keys) {
        (container, []) => container.get(name).map(|item| value_of(text, item)),
        (_, [_, ..]) => None,
    })
}

pub(super) fn names(text: &str, place: &Place) -> Result<Vec<String>, EditError> {
    let document = parse(text)?;
    let chain = chain(text, &document, place.keys)?;
    Ok(match split(&chain, place.keys) {
        (container, []) => container.keys(),
        (_, [_, ..]) => Vec::new(),
    })
}

pub(super) fn outline(text: &str, place: &Place) -> Result<Created, EditError> {
    if text.trim().is_empty() {
        return Ok(Created { document: Some(text.to_owned()), ..Created::default() });
    }
    let text = with_end(text);
    let document = parse(&text)?;
    let chain = chain(&text, &document, place.keys)?;
    match split(&chain, place.keys) {
        (Node::Inline(table), missing) => Ok(Created {
            containers: missing.len(),
            gap: inline::members(&text, table).gap().map(str::to_owned),
            ..Created::default()
        }),
        (Node::Table(_), _) => {
            let at = lines::place_for_table(&text, &statements(&document), place.keys);
            Ok(Created { spaced: !lines::is_spaced(&text, at), ..Created::default() })
        }
    }
}

/// Lets an edit see a text whose last line has an end, and takes that end away again if it was not there.
fn in_lines(
    text: &str,
    edit: impl FnOnce(&str) -> Result<String, EditError>,
) -> Result<String, EditError> {
    let edited = edit(&with_end(text))?;
    if has_end(text) {
        return Ok(edited);
    }
    let line = edited.strip_suffix('\n').unwrap_or(&edited);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

fn with_end(text: &str) -> Cow<'_, str> {
    if has_end(text) {
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

/// A table of its own for a new entry.
fn new_table(
    text: &str,
    document: &Document<&str>,
    keys: &[&str],
    name: &str,
    fields: &Fields,
) -> Splice {
    let newline = layout::newline_of(text).unwrap_or("\n");
    let path: Vec<_> = keys.iter().copied().chain([name]).collect();
    let fields = fields.iter().map(|(key, value)| (key.as_str(), value));
    let table = write::table(&path, fields, newline);
    if text.trim().is_empty() {
        return Splice::replace(0..text.len(), table);
    }
    let at = lines::place_for_table(text, &statements(document), keys);
    let space = if lines::is_spaced(text, at) { "" } else { newline };
    Splice::insert(at, format!("{space}{table}"))
}

/// Changes the fields of an entry that is not written in braces.
fn update(
    text: &str,
    document: &Document<&str>,
    path: &[&str],
    entry: &Table,
    changes: &Changes,
) -> Vec<Splice> {
    let statements = statements(document);
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
                splices.extend(lines::remove_field(text, &statements, path, field));
                new.push((*field, *value));
            }
        }
    }
    for field in &changes.unset {
        splices.extend(lines::remove_field(text, &statements, path, field));
    }
    if !new.is_empty() {
        splices.push(lines::add_fields(text, &statements, path, &new));
    }
    splices
}

fn span(span: Option<Range<usize>>) -> Range<usize> {
    span.expect("a parsed document knows its spans")
}
