//! From text to a tree with byte ranges, and from its errors to ours.

use std::ops::Range;

use toml_edit::{Document, InlineTable, Item, Key, Table, TomlError, Value as TomlValue};

use super::super::layout::line_start;
use super::super::value::Value;
use super::super::{EditError, Position};
use super::lines::{last_header, statements};
use super::span;

/// A table, whatever way it is written.
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

    pub(super) fn keys(self) -> Vec<String> {
        match self {
            Self::Table(table) => table.iter().map(|(key, _)| key.to_owned()).collect(),
            Self::Inline(table) => table.iter().map(|(key, _)| key.to_owned()).collect(),
        }
    }

    pub(super) fn as_inline(&self) -> Option<&'d InlineTable> {
        match self {
            Self::Table(_) => None,
            Self::Inline(table) => Some(table),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Document<&str>, EditError> {
    Document::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        duplicate(text, &error, &span).unwrap_or_else(|| EditError::Unparsable {
            at: Position::of(text, span.start),
            problem: error.message().to_owned(),
        })
    })
}

/// The tables on the way to the container, the root first, as far as they exist.
pub(super) fn chain<'d>(
    text: &str,
    document: &'d Document<&str>,
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
        Item::Value(TomlValue::Array(_)) => wrong("a list"),
        Item::Value(TomlValue::String(_)) => wrong("a text"),
        Item::Value(TomlValue::Integer(_) | TomlValue::Float(_)) => wrong("a number"),
        Item::Value(TomlValue::Boolean(_)) => wrong("a flag"),
        Item::Value(TomlValue::Datetime(_)) => wrong("a date"),
        Item::None => wrong("nothing"),
    }
}

/// An item as our own value.
pub(super) fn value_of(text: &str, item: &Item) -> Value {
    match item {
        Item::Value(value) => plain_value_of(text, value),
        Item::Table(table) => map_of(text, table.iter()),
        Item::ArrayOfTables(tables) => {
            Value::List(tables.iter().map(|table| map_of(text, table.iter())).collect())
        }
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
        TomlValue::InlineTable(table) => Value::Map(
            table
                .iter()
                .map(|(key, value)| (key.to_owned(), plain_value_of(text, value)))
                .collect(),
        ),
        TomlValue::Float(_) | TomlValue::Datetime(_) => {
            Value::Other(text[span(value.span())].to_owned())
        }
    }
}

fn map_of<'d>(text: &str, items: impl Iterator<Item = (&'d str, &'d Item)>) -> Value {
    Value::Map(items.map(|(key, item)| (key.to_owned(), value_of(text, item))).collect())
}

/// Says where a key is that is there twice. `again` is where the parser stopped, at the last segment of the second one.
///
/// The text before it has been read without complaint, so it is read again to find the first one. None inside of
/// braces, which do not begin a line; then the place of the second one has to do.
fn duplicate(text: &str, error: &TomlError, again: &Range<usize>) -> Option<EditError> {
    if error.message() != "duplicate key" {
        return None;
    }
    let line = line_start(text, again.start);
    let before = Document::parse(&text[..line]).ok()?;
    let statements = statements(&before);
    let written = text[line..again.end].trim_start();
    let header = written.trim_start_matches('[');
    let above: &[&str] = if header == written { last_header(&statements) } else { &[] };
    let keys = Key::parse(header.trim()).ok()?;
    let path: Vec<&str> = above.iter().copied().chain(keys.iter().map(Key::get)).collect();
    let first = statements.iter().find(|statement| statement.is_within(&path))?;
    Some(EditError::Duplicate {
        key: path.join("."),
        first: Position::of(text, first.start()).line,
        second: Position::of(text, again.start).line,
    })
}
