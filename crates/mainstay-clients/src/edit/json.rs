//! Entries in JSON, strict or with comments.

mod parse;
pub(super) mod write;

use jsonc_parser::ast::{Object, ObjectProp};
use jsonc_parser::common::Ranged;

use self::parse::{fields_of, parse, replace_lone_surrogates, value_of};
use super::braces::{self, Layout, Member, Members, Style, Syntax};
use super::removed::Removed;
use super::text::{self, Kind, Splice, apply, first_newline, newline_of, pieces};
use super::value::{Fields, Value, changes};
use super::{Created, EditError, Editor, Format, Position};

pub(super) struct ParsedText<'t> {
    text: &'t str,
    format: Format,
    keys: &'t [&'t str],
    /// The objects on the path to the container, the root first, as far as they exist. Empty if the text has no value.
    levels: Vec<Members<'t>>,
    /// What the container holds.
    entries: Fields,
}

impl<'t> ParsedText<'t> {
    pub(super) fn parse(
        text: &'t str,
        format: Format,
        keys: &'t [&'t str],
    ) -> Result<Self, EditError> {
        let (levels, entries) = levels(text, format, keys)?;
        Ok(Self { text, format, keys, levels, entries })
    }

    fn container(&self) -> Option<&Members<'t>> {
        self.levels.get(self.keys.len())
    }

    /// The index of an entry in the container.
    fn index(&self, name: &str) -> Result<Option<usize>, EditError> {
        self.container().map_or(Ok(None), |container| container.position(name))
    }

    fn layout(&self) -> Layout {
        let root = &self.levels[0];
        let is_spaced = |member: &Member| self.text[..member.value.start].ends_with([' ', '\t']);
        Layout {
            newline: newline_of(self.text),
            unit: first_indent(self.text).unwrap_or("  ").to_owned(),
            flat: !root.items.is_empty() && first_newline(&self.text[root.inner.clone()]).is_none(),
            spaced: root.items.first().is_none_or(is_spaced),
        }
    }
}

impl Editor for ParsedText<'_> {
    fn upsert(&self, name: &str, fields: &Fields, owned: &[&str]) -> Result<String, EditError> {
        let text = self.text;
        let [.., last] = self.levels.as_slice() else {
            return Ok(new_document(text, &Value::object_at(self.keys, name, fields)));
        };
        let layout = self.layout();
        if let [first, rest @ ..] = &self.keys[self.levels.len() - 1..] {
            let value = Value::object_at(rest, name, fields);
            return Ok(apply(text, last.append(&layout, first, &value)));
        }
        let Some(index) = last.position(name)? else {
            return Ok(apply(text, last.append(&layout, name, &Value::Map(fields.clone()))));
        };
        match &self.entries[index].1 {
            Value::Map(found) => {
                let path: Vec<_> = self.keys.iter().copied().chain([name]).collect();
                braces::update(text, &layout, &changes(found, fields, owned), |text| {
                    let (mut levels, _) = levels(text, self.format, &path)?;
                    Ok(levels.pop().expect("the entry exists"))
                })
            }
            other => Err(wrong_type(text, name, other, last.items[index].value.start)),
        }
    }

    fn remove(&self, name: &str, created: &Created) -> Result<String, EditError> {
        if self.index(name)?.is_none() {
            return Ok(self.text.to_owned());
        }
        let splices = braces::remove_nested(&self.levels, self.keys, name, created)?;
        let left = apply(self.text, splices);
        // An object that was written for the first entry, and is empty, is removed unless something was added around it.
        let is_unused = |document: &String| {
            let object = left.strip_prefix(&opening(document)).filter(|one| one.starts_with('{'));
            object.is_some_and(|object| object.split_whitespace().collect::<String>() == "{}")
        };
        Ok(created.document.clone().filter(is_unused).unwrap_or(left))
    }

    fn removed(
        &self,
        name: &str,
        left: &str,
        absent: &[&Removed],
    ) -> Result<Option<Removed>, EditError> {
        let index = self.index(name)?;
        let container = self.container();
        Ok(container.zip(index).and_then(|(members, index)| members.removed(index, left, absent)))
    }

    /// A container that is missing is created with it.
    fn restore(
        &self,
        name: &str,
        removed: &Removed,
        absent: &[&Removed],
    ) -> Result<String, EditError> {
        if let Some(container) = self.container() {
            let slot = removed.slot(&container.keys());
            return Ok(apply(self.text, container.restore(slot, removed, absent)));
        }
        let created = self.upsert(name, &Fields::new(), &[])?;
        let parsed = ParsedText::parse(&created, self.format, self.keys)?;
        let (container, index) = (parsed.container(), parsed.index(name)?);
        let (container, index) = container.zip(index).expect("the entry was just added");
        let range = container.items[index].range.clone();
        Ok(apply(&created, vec![Splice::replace(range, &removed.text)]))
    }

    fn find(&self, name: &str) -> Result<Option<Value>, EditError> {
        Ok(self.index(name)?.map(|index| self.entries[index].1.clone()))
    }

    fn entries(&self) -> Result<Fields, EditError> {
        Ok(self.entries.clone())
    }

    fn to_create(&self) -> Result<Created, EditError> {
        Ok(match self.levels.as_slice() {
            [] => Created {
                containers: self.keys.len(),
                document: Some(self.text.to_owned()),
                ..Created::default()
            },
            [.., last] => Created {
                containers: self.keys.len() + 1 - self.levels.len(),
                gap: last.gap().map(str::to_owned),
                ..Created::default()
            },
        })
    }
}

/// The objects along `keys` as far as they exist, and what the last of them contains if all exist.
fn levels<'t>(
    text: &'t str,
    format: Format,
    keys: &[&str],
) -> Result<(Vec<Members<'t>>, Fields), EditError> {
    let readable = replace_lone_surrogates(text);
    let root = parse(&readable, format)?;
    let (mut levels, mut entries) = (Vec::new(), Fields::new());
    let (mut value, mut name, mut rest) = (root.as_ref(), "the document", keys.iter());
    while let Some(found) = value {
        let Some(object) = found.as_object() else {
            return Err(wrong_type(text, name, &value_of(found), found.start()));
        };
        let level = members(text, object);
        if let Some(key) = rest.next() {
            name = key;
            value = level.position(key)?.map(|index| &object.properties[index].value);
        } else {
            entries = fields_of(object);
            value = None;
        }
        levels.push(level);
    }
    Ok((levels, entries))
}

fn members<'t>(text: &'t str, object: &Object) -> Members<'t> {
    let item = |property: &ObjectProp| Member {
        key: property.name.as_str().to_owned(),
        range: property.start()..property.end(),
        value: property.value.start()..property.value.end(),
        is_dotted: false,
    };
    Members {
        text,
        syntax: Syntax::Json,
        inner: object.start() + 1..object.end() - 1,
        items: object.properties.iter().map(item).collect(),
        margin: text::margin(text, object.start()),
    }
}

fn wrong_type(text: &str, what: &str, found: &Value, at: usize) -> EditError {
    let at = Position::of(text, at);
    EditError::WrongType { what: what.to_owned(), found: found.kind(), at }
}

fn new_document(text: &str, value: &Value) -> String {
    let newline = newline_of(text);
    let style = Style::Lines { newline, indent: String::new(), unit: "  ".to_owned() };
    format!("{}{}{newline}", opening(text), write::value(value, &style))
}

/// What stays before the object that is written into a text without a value: the comments, up to a line end.
fn opening(text: &str) -> String {
    let pieces = pieces(text, 0..text.len(), Syntax::Json);
    if !pieces.iter().any(|piece| piece.kind.is_comment()) {
        return String::new();
    }
    let is_ended = pieces.last().is_some_and(|piece| piece.kind == Kind::Newline);
    format!("{text}{}", if is_ended { "" } else { newline_of(text) })
}

/// The indentation of the first line that begins with a key, if it has any.
fn first_indent(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start_matches([' ', '\t']);
        let indent = &line[..line.len() - rest.len()];
        (rest.starts_with('"') && !indent.is_empty()).then_some(indent)
    })
}
