//! From text to a tree with byte ranges, and from its errors to ours.
//!
//! Only what is near the container gets a tree: the rest is blanked before the full parser sees it, which keeps every
//! byte range what it is in the true text.

use std::ops::Range;

use toml_edit::{Document, InlineTable, Item, Key, Table, TomlError, Value as TomlValue};

use super::super::layout::line_start;
use super::super::value::{Fields, Value};
use super::super::{EditError, Position};
use super::lines::{Statement, last_header};
use super::scan::scan;
use super::span;

/// A text that could be read.
pub(super) struct Parsed {
    /// What is near the container.
    pub(super) document: Document<String>,
    /// All statements, in the order of the text.
    pub(super) statements: Vec<Statement>,
}

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

    /// What it holds, in the order of the text.
    pub(super) fn values(self, text: &str) -> Fields {
        match self {
            Self::Table(table) => fields_of(text, table.iter()),
            Self::Inline(table) => table
                .iter()
                .map(|(key, value)| (key.to_owned(), plain_value_of(text, value)))
                .collect(),
        }
    }

    pub(super) fn as_inline(&self) -> Option<&'d InlineTable> {
        match self {
            Self::Table(_) => None,
            Self::Inline(table) => Some(table),
        }
    }
}

/// Reads a text. The way to the container begins with `root`.
pub(super) fn parse(text: &str, root: Option<&str>) -> Result<Parsed, EditError> {
    let scan = scan(text, root);
    if scan.as_ref().is_none_or(|scan| scan.is_doubtful) {
        tree(text.to_owned(), text)?;
    }
    let scan = scan.ok_or_else(|| EditError::Unparsable {
        at: Position::of(text, text.len()),
        problem: "not valid TOML".to_owned(),
    })?;
    let document = tree(blanked(text, &scan.statements), text)?;
    Ok(Parsed { document, statements: scan.statements })
}

/// The tree of `source`, which is `text` or a part of it in its place.
pub(super) fn tree(source: String, text: &str) -> Result<Document<String>, EditError> {
    Document::parse(source).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        duplicate(text, &error, &span).unwrap_or_else(|| EditError::Unparsable {
            at: Position::of(text, span.start),
            problem: error.message().to_owned(),
        })
    })
}

/// A text of the same length without the lines that are not near the container.
fn blanked(text: &str, statements: &[Statement]) -> String {
    let mut blanked = Vec::with_capacity(text.len());
    for near in statements.iter().filter(|statement| !statement.path.is_empty()) {
        let lines = near.lines(text);
        blanked.resize(lines.start, b' ');
        blanked.extend_from_slice(text[lines].as_bytes());
    }
    blanked.resize(text.len(), b' ');
    String::from_utf8(blanked).expect("lines of a text and spaces are a text")
}

/// The tables on the way to the container, the root first, as far as they exist.
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
    let map = |table: &Table| Value::Map(fields_of(text, table.iter()));
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

fn fields_of<'d>(text: &str, items: impl Iterator<Item = (&'d str, &'d Item)>) -> Fields {
    items.map(|(key, item)| (key.to_owned(), value_of(text, item))).collect()
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
    let statements = scan(&text[..line], None)?.statements;
    let written = text[line..again.end].trim_start();
    let header = written.trim_start_matches('[');
    let above: &[String] = if header == written { last_header(&statements) } else { &[] };
    let keys = Key::parse(header.trim()).ok()?;
    let path: Vec<&str> =
        above.iter().map(String::as_str).chain(keys.iter().map(Key::get)).collect();
    let first = statements.iter().find(|statement| statement.is_within(&path))?;
    Some(EditError::Duplicate {
        key: path.join("."),
        first: Position::of(text, first.start()).line,
        second: Position::of(text, again.start).line,
    })
}
