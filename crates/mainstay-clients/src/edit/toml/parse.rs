//! Parsing with `toml_edit`, and its errors as ours.

use std::ops::Range;

use toml_edit::{Document, InlineTable, Item, Key, Table, TomlError, Value as TomlValue};

use super::super::braces::{Member, Members, Syntax};
use super::super::text::{self, line_start, skip};
use super::super::value::{Fields, Value};
use super::super::{EditError, Position};
use super::lines::{last_header, statements};

/// A table, in whichever way it is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Node<'d> {
    /// With a header, with dotted keys, or implied by a table below it.
    Table(&'d Table),
    /// In braces.
    Inline(&'d InlineTable),
}

impl<'d> Node<'d> {
    pub(super) fn get(self, key: &str) -> Option<&'d Item> {
        match self {
            Self::Table(table) => table.get_key_value(key),
            Self::Inline(table) => table.get_key_value(key),
        }
        .map(|(_, item)| item)
    }

    pub(super) fn values(self, text: &str) -> Fields {
        match self {
            Self::Table(table) => fields_of(text, table),
            Self::Inline(table) => inline_fields_of(text, table),
        }
    }

    pub(super) fn as_inline(&self) -> Option<&'d InlineTable> {
        match self {
            Self::Table(_) => None,
            Self::Inline(table) => Some(table),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Document<String>, EditError> {
    Document::parse(text.to_owned()).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        duplicate(text, &error, &span).unwrap_or_else(|| EditError::Unparsable {
            at: Position::of(text, span.start),
            problem: error.message().to_owned(),
        })
    })
}

/// The tables on the path to the container, the root first, as far as they exist.
pub(super) fn chain<'d>(
    text: &str,
    document: &'d Document<String>,
    keys: &[&str],
) -> Result<Vec<Node<'d>>, EditError> {
    let mut nodes = vec![Node::Table(document.as_table())];
    for key in keys {
        let Some(item) = nodes[nodes.len() - 1].get(key) else { break };
        nodes.push(node(text, key, item)?);
    }
    Ok(nodes)
}

/// An item as a table, if it is one that can be edited.
pub(super) fn node<'d>(text: &str, key: &str, item: &'d Item) -> Result<Node<'d>, EditError> {
    let at = || Position::of(text, item.span().map_or(0, |span| span.start));
    let wrong = |found| Err(EditError::WrongType { what: key.to_owned(), found, at: at() });
    match item {
        Item::Table(table) => Ok(Node::Table(table)),
        Item::Value(TomlValue::InlineTable(table)) if table.is_dotted() => {
            Err(EditError::DottedInBraces { key: key.to_owned(), at: at() })
        }
        Item::Value(TomlValue::InlineTable(table)) => Ok(Node::Inline(table)),
        Item::ArrayOfTables(_) => wrong("a list of tables"),
        Item::Value(TomlValue::Datetime(_)) => wrong("a date"),
        Item::Value(other) => wrong(plain_value_of(text, other).kind()),
        Item::None => wrong("nothing"),
    }
}

/// The members of an inline table.
pub(super) fn members<'t>(text: &'t str, table: &InlineTable) -> Members<'t> {
    let range = span(table.span());
    let inner = range.start + 1..range.end - 1;
    let mut values = table.get_values();
    values.sort_unstable_by_key(|(_, value)| span(value.span()).end);
    let mut items = Vec::new();
    let mut from = inner.start;
    for (keys, value) in values {
        let value = span(value.span());
        items.push(Member {
            key: keys[0].get().to_owned(),
            range: skip(text, from, Syntax::Toml)..value.end,
            is_dotted: keys.len() > 1,
            value: value.clone(),
        });
        from = value.end;
    }
    Members { text, syntax: Syntax::Toml, inner, items, margin: text::margin(text, range.start) }
}

pub(super) fn value_of(text: &str, item: &Item) -> Value {
    let map = |table: &Table| Value::Map(fields_of(text, table));
    match item {
        Item::Value(value) => plain_value_of(text, value),
        Item::Table(table) => map(table),
        Item::ArrayOfTables(tables) => Value::List(tables.iter().map(map).collect()),
        Item::None => Value::Other(String::new()),
    }
}

fn plain_value_of(text: &str, value: &TomlValue) -> Value {
    match value {
        TomlValue::String(string) => Value::Text(string.value().clone()),
        TomlValue::Integer(number) => Value::Number(*number.value()),
        TomlValue::Boolean(flag) => Value::Flag(*flag.value()),
        TomlValue::Array(items) => {
            Value::List(items.iter().map(|item| plain_value_of(text, item)).collect())
        }
        TomlValue::InlineTable(table) => Value::Map(inline_fields_of(text, table)),
        TomlValue::Float(_) | TomlValue::Datetime(_) => {
            Value::Other(text[span(value.span())].to_owned())
        }
    }
}

fn fields_of(text: &str, table: &Table) -> Fields {
    table.iter().map(|(key, item)| (key.to_owned(), value_of(text, item))).collect()
}

fn inline_fields_of(text: &str, table: &InlineTable) -> Fields {
    table.iter().map(|(key, value)| (key.to_owned(), plain_value_of(text, value))).collect()
}

/// The lines of a key that exists twice. `again` is where the parser stopped, at the last segment of the second one.
///
/// The text before it has been parsed without an error, so it is parsed again to find the first one. Nothing inside
/// braces, which do not begin a line; the message then has the position of the second one only.
fn duplicate(text: &str, error: &TomlError, again: &Range<usize>) -> Option<EditError> {
    if error.message() != "duplicate key" {
        return None;
    }
    let line = line_start(text, again.start);
    let before = Document::parse(text[..line].to_owned()).ok()?;
    let statements = statements(&before);
    let written = text[line..again.end].trim_start();
    let header = written.trim_start_matches('[');
    let above: &[String] = if header == written { last_header(&statements) } else { &[] };
    let keys = Key::parse(header.trim()).ok()?;
    let path: Vec<&str> =
        above.iter().map(String::as_str).chain(keys.iter().map(Key::get)).collect();
    let first = statements.iter().find(|statement| statement.is_within(&path))?;
    Some(EditError::Duplicate {
        key: path.join("."),
        first: Position::of(text, first.span.start).line,
        second: Position::of(text, again.start).line,
    })
}

pub(super) fn span(span: Option<Range<usize>>) -> Range<usize> {
    span.expect("a parsed document has spans")
}
