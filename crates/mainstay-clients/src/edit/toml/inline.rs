//! Entries inside of an inline table.

use toml_edit::{InlineTable, Item};

use super::super::braces::Members;
use super::super::layout::{self, Layout};
use super::super::splice::{Splice, apply};
use super::super::trivia::{Comments, skip};
use super::super::value::{Changes, Value};
use super::super::{Created, EditError};
use super::parse::{node, tree, value_of};
use super::{span, write};

/// What an entry is named while it is edited alone.
const ALONE: &str = "x = ";

/// Adds a member.
pub(super) fn add(text: &str, table: &InlineTable, key: &str, value: &Value) -> Vec<Splice> {
    members(text, table).append(&layout(text), |_| write::field(key, value))
}

/// Sets and takes out fields of an entry.
pub(super) fn update(
    text: &str,
    entry: &InlineTable,
    changes: &Changes,
) -> Result<Splice, EditError> {
    for field in changes.set.iter().map(|(field, _)| field).chain(&changes.unset) {
        entry.get_key_value(field).map(|(_, item)| undotted(text, field, item)).transpose()?;
    }
    let range = span(entry.span());
    let margin = layout::margin(text, range.start);
    let set = changes.set.iter().map(|(field, value)| (*field, Some(*value)));
    let mut alone = format!("{ALONE}{}", &text[range.clone()]);
    for (field, value) in set.chain(changes.unset.iter().map(|field| (*field, None))) {
        let splices = change(&alone, margin, field, value)?;
        alone = apply(&alone, splices);
    }
    Ok(Splice::replace(range, &alone[ALONE.len()..]))
}

/// Takes out an entry, with those of the `tables` around it that were created for it and hold nothing else.
pub(super) fn remove(
    text: &str,
    tables: &[&InlineTable],
    keys: &[&str],
    name: &str,
    created: &Created,
) -> Result<Vec<Splice>, EditError> {
    let outermost = tables.len().saturating_sub(1 + created.containers);
    let above = keys.len() - tables.len();
    let mut level = tables.len() - 1;
    let mut key = name;
    loop {
        let members = members(text, tables[level]);
        let index = position(text, tables[level], key)?.expect("the way leads through this member");
        if !members.holds_only(index) {
            return Ok(members.remove(index));
        }
        if level == outermost {
            return Ok(vec![Splice::replace(members.inner, created.gap.as_deref().unwrap_or(""))]);
        }
        key = keys[above + level];
        level -= 1;
    }
}

pub(super) fn members<'t>(text: &'t str, table: &InlineTable) -> Members<'t> {
    let range = span(table.span());
    let inner = range.start + 1..range.end - 1;
    let mut items = Vec::new();
    let mut from = inner.start;
    for end in ends(table) {
        items.push(skip(text, from, Comments::Hash)..end);
        from = end;
    }
    let margin = layout::margin(text, range.start).to_owned();
    Members { text, comments: Comments::Hash, inner, items, margin }
}

/// Where the values of the members end, in the order of the text.
fn ends(table: &InlineTable) -> Vec<usize> {
    let mut ends: Vec<_> =
        table.get_values().iter().map(|(_, value)| span(value.span()).end).collect();
    ends.sort_unstable();
    ends
}

/// Which member has this key.
fn position(text: &str, table: &InlineTable, key: &str) -> Result<Option<usize>, EditError> {
    let Some((_, item)) = table.get_key_value(key) else { return Ok(None) };
    undotted(text, key, item)?;
    let end = span(item.span()).end;
    Ok(ends(table).iter().position(|one| *one == end))
}

/// Refuses a member whose parts stand in several places.
fn undotted(text: &str, key: &str, item: &Item) -> Result<(), EditError> {
    match node(text, key, item) {
        Err(error @ EditError::DottedInBraces { .. }) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn change(
    alone: &str,
    margin: &str,
    field: &str,
    value: Option<&Value>,
) -> Result<Vec<Splice>, EditError> {
    let document = tree(alone.to_owned(), alone)?;
    let (_, item) = document.iter().next().expect("an entry alone is one value");
    let table = item.as_inline_table().expect("an entry is an inline table from brace to brace");
    let mut members = members(alone, table);
    margin.clone_into(&mut members.margin);
    let old = table.get_key_value(field).map(|(_, item)| item);
    Ok(match (position(alone, table, field)?, old, value) {
        (Some(index), Some(_), None) => members.remove(index),
        (Some(_), Some(old), Some(value)) if value_of(alone, old).means(value) => Vec::new(),
        (Some(_), Some(old), Some(value)) => {
            vec![Splice::replace(span(old.span()), write::value(value))]
        }
        (_, _, Some(value)) => members.append(&layout(alone), |_| write::field(field, value)),
        (_, _, None) => Vec::new(),
    })
}

/// What is added to braces in TOML stays in one line unless the members around it do not.
fn layout(text: &str) -> Layout {
    Layout {
        newline: layout::newline_of(text).unwrap_or("\n"),
        unit: "  ".to_owned(),
        flat: true,
        spaced: true,
    }
}
