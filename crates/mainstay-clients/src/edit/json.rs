//! Entries in JSON, strict or with comments.

mod tree;
mod write;

use std::ops::Range;

use self::tree::{Keep, Node, Object, parse};
use super::braces::Members;
use super::layout::{self, Layout, Style};
use super::removed::Removed;
use super::splice::{Splice, apply};
use super::trivia::{Comments, Kind, pieces};
use super::value::{Changes, Fields, Value};
use super::{Created, EditError, Format, Position};

/// A text that has been read.
pub(super) struct Reading<'t> {
    text: &'t str,
    format: Format,
    keys: &'t [&'t str],
    /// Nothing if the text holds no value at all.
    root: Option<Node<'t>>,
}

impl<'t> Reading<'t> {
    pub(super) fn of(
        text: &'t str,
        format: Format,
        keys: &'t [&'t str],
    ) -> Result<Self, EditError> {
        let root = parse(text, format, Keep::Way(keys))?;
        let reading = Self { text, format, keys, root };
        reading.chain()?;
        Ok(reading)
    }

    pub(super) fn upsert(
        &self,
        name: &str,
        fields: &Fields,
        owned: &[&str],
    ) -> Result<String, EditError> {
        let text = self.text;
        let entry = || Value::Map(fields.clone());
        let Some(chain) = self.chain()? else {
            return Ok(new_document(text, &entry().within(&[name]).within(self.keys)));
        };
        let (anchor, missing) = chain.split(self.keys);
        let layout = layout_of(text, chain.root());
        if let [first, rest @ ..] = missing {
            let value = entry().within(&[name]).within(rest);
            return Ok(add(text, anchor, first, &value, &layout));
        }
        match member(text, anchor, name)? {
            None => Ok(add(text, anchor, name, &entry(), &layout)),
            Some(index) => {
                let entry = object(text, name, &anchor.members[index].value)?;
                for field in owned {
                    member(text, &entry, field)?;
                }
                let range = entry.range;
                let margin = layout::margin(text, range.start);
                let changes = Changes::of(fields, owned);
                let edited = update(&text[range.clone()], margin, self.format, &layout, &changes)?;
                Ok(apply(text, vec![Splice::replace(range, edited)]))
            }
        }
    }

    pub(super) fn remove(&self, name: &str, created: &Created) -> Result<String, EditError> {
        let text = self.text;
        let Some(chain) = self.chain()? else { return Ok(text.to_owned()) };
        let (anchor, missing) = chain.split(self.keys);
        let found = if missing.is_empty() { member(text, anchor, name)? } else { None };
        let Some(mut index) = found else {
            return Ok(text.to_owned());
        };
        let mut level = chain.objects.len() - 1;
        let last = level.saturating_sub(created.containers);
        while level > last && members(text, &chain.objects[level]).holds_only(index) {
            level -= 1;
            index = member(text, &chain.objects[level], self.keys[level])?
                .expect("the chain came this way");
        }
        let members = members(text, &chain.objects[level]);
        if !members.holds_only(index) {
            return Ok(apply(text, members.remove(index)));
        }
        if level == 0
            && let Some(document) = &created.document
            && stands_alone(text, &chain.root().range, document)
        {
            return Ok(document.clone());
        }
        let gap = created.gap.as_deref().unwrap_or("");
        Ok(apply(text, vec![Splice::replace(members.inner, gap)]))
    }

    /// What there is to know of an entry for it to be put back into the text that is `left` without it.
    pub(super) fn removed(
        &self,
        name: &str,
        left: &str,
        out: &[&Removed],
    ) -> Result<Option<Removed>, EditError> {
        let Some(chain) = self.chain()? else { return Ok(None) };
        let (container, []) = chain.split(self.keys) else { return Ok(None) };
        let Some(index) = member(self.text, container, name)? else { return Ok(None) };
        let names = names(container);
        Ok(members(self.text, container).removed(index, &names, left, out))
    }

    /// The text with an entry that was taken out. A container that is gone is made again, with the entry in it.
    pub(super) fn restore(
        &self,
        name: &str,
        removed: &Removed,
        out: &[&Removed],
    ) -> Result<String, EditError> {
        if let Some(chain) = self.chain()?
            && let (container, []) = chain.split(self.keys)
        {
            let slot = removed.slot(&names(container));
            return Ok(apply(self.text, members(self.text, container).restore(slot, removed, out)));
        }
        let made = self.upsert(name, &Fields::new(), &[])?;
        let reading = Reading::of(&made, self.format, self.keys)?;
        let chain = reading.chain()?.expect("the entry is there");
        let (container, _) = chain.split(self.keys);
        let index = member(&made, container, name)?.expect("the entry is there");
        let range = container.members[index].range.clone();
        Ok(apply(&made, vec![Splice::replace(range, &removed.text)]))
    }

    pub(super) fn find(&self, name: &str) -> Result<Option<Value>, EditError> {
        let Some(chain) = self.chain()? else { return Ok(None) };
        match chain.split(self.keys) {
            (container, []) => Ok(member(self.text, container, name)?
                .map(|index| container.members[index].value.value())),
            (_, [_, ..]) => Ok(None),
        }
    }

    pub(super) fn entries(&self) -> Result<Fields, EditError> {
        let Some(chain) = self.chain()? else { return Ok(Vec::new()) };
        Ok(match chain.split(self.keys) {
            (container, []) => container.fields(),
            (_, [_, ..]) => Vec::new(),
        })
    }

    pub(super) fn outline(&self) -> Result<Created, EditError> {
        let Some(chain) = self.chain()? else {
            return Ok(Created {
                containers: self.keys.len(),
                document: Some(self.text.to_owned()),
                ..Created::default()
            });
        };
        let (anchor, missing) = chain.split(self.keys);
        Ok(Created {
            containers: missing.len(),
            gap: members(self.text, anchor).gap().map(str::to_owned),
            ..Created::default()
        })
    }

    fn chain(&self) -> Result<Option<Chain<'_>>, EditError> {
        self.root.as_ref().map(|root| chain(self.text, root, self.keys)).transpose()
    }
}

/// The objects on the way to the container, the root first, as far as they exist.
struct Chain<'v> {
    objects: Vec<Object<'v>>,
}

impl<'v> Chain<'v> {
    fn root(&self) -> &Object<'v> {
        &self.objects[0]
    }

    /// The innermost object that exists, and the keys that are missing below it.
    fn split<'k>(&self, keys: &'k [&'k str]) -> (&Object<'v>, &'k [&'k str]) {
        let found = self.objects.len() - 1;
        (&self.objects[found], &keys[found..])
    }
}

fn chain<'v>(text: &str, root: &'v Node, keys: &[&str]) -> Result<Chain<'v>, EditError> {
    let mut objects = vec![object(text, "the document", root)?];
    for key in keys {
        let parent = &objects[objects.len() - 1];
        let Some(index) = member(text, parent, key)? else { break };
        objects.push(object(text, key, &parent.members[index].value)?);
    }
    Ok(Chain { objects })
}

fn object<'v>(text: &str, what: &str, node: &'v Node) -> Result<Object<'v>, EditError> {
    node.as_object().ok_or_else(|| EditError::WrongType {
        what: what.to_owned(),
        found: node.kind(),
        at: Position::of(text, node.range.start),
    })
}

/// Which member has this key, which may be there once only.
fn member(text: &str, object: &Object, key: &str) -> Result<Option<usize>, EditError> {
    let line = |at| Position::of(text, at).line;
    let mut found = object.members.iter().enumerate().filter(|(_, member)| member.key == key);
    match (found.next(), found.next()) {
        (Some((_, first)), Some((_, second))) => Err(EditError::Duplicate {
            key: key.to_owned(),
            first: line(first.range.start),
            second: line(second.range.start),
        }),
        (first, _) => Ok(first.map(|(index, _)| index)),
    }
}

fn names<'o>(object: &'o Object) -> Vec<&'o str> {
    object.members.iter().map(|member| member.key.as_ref()).collect()
}

fn members<'t>(text: &'t str, object: &Object) -> Members<'t> {
    Members {
        text,
        comments: Comments::Slashes,
        inner: object.range.start + 1..object.range.end - 1,
        items: object.members.iter().map(|member| member.range.clone()).collect(),
        margin: layout::margin(text, object.range.start).to_owned(),
    }
}

fn add(text: &str, object: &Object, key: &str, value: &Value, layout: &Layout) -> String {
    let splices = members(text, object).append(layout, |style| write::member(key, value, style));
    apply(text, splices)
}

/// Sets and takes out fields of an entry, given its text alone, from brace to brace.
fn update(
    entry: &str,
    margin: &str,
    format: Format,
    layout: &Layout,
    changes: &Changes,
) -> Result<String, EditError> {
    let mut edited = entry.to_owned();
    let set = changes.set.iter().map(|(field, value)| (*field, Some(*value)));
    for (field, value) in set.chain(changes.unset.iter().map(|field| (*field, None))) {
        let root = parse(&edited, format, Keep::All)?;
        let object = root
            .as_ref()
            .and_then(Node::as_object)
            .expect("an entry is an object from brace to brace");
        let mut members = members(&edited, &object);
        margin.clone_into(&mut members.margin);
        let index = member(&edited, &object, field)?;
        let splices = match (index, value) {
            (None, None) => Vec::new(),
            (Some(index), None) => members.remove(index),
            (None, Some(value)) => {
                members.append(layout, |style| write::member(field, value, style))
            }
            (Some(index), Some(value)) => {
                let old = &object.members[index].value;
                if old.value().means(value) {
                    Vec::new()
                } else {
                    let style = members.style_of(index, layout);
                    vec![Splice::replace(old.range.clone(), write::value(value, &style))]
                }
            }
        };
        edited = apply(&edited, splices);
    }
    Ok(edited)
}

fn new_document(text: &str, value: &Value) -> String {
    let newline = layout::newline_of(text).unwrap_or("\n");
    let style = Style::Lines { newline, indent: String::new(), unit: "  ".to_owned() };
    format!("{}{}{newline}", opening(text), write::value(value, &style))
}

/// What stays before a new document of a text without a value: its comments, up to a line end.
fn opening(text: &str) -> String {
    let pieces = pieces(text, 0..text.len(), Comments::Slashes);
    if !pieces.iter().any(|piece| piece.kind.is_comment()) {
        return String::new();
    }
    match pieces.last() {
        Some(last) if last.kind == Kind::Newline => text.to_owned(),
        Some(_) | None => format!("{text}{}", layout::newline_of(text).unwrap_or("\n")),
    }
}

/// Whether nothing but white space came to a document that was made around the first entry.
fn stands_alone(text: &str, root: &Range<usize>, before: &str) -> bool {
    text[..root.start] == opening(before) && text[root.end..].trim().is_empty()
}

fn layout_of(text: &str, root: &Object) -> Layout {
    let within = &text[root.range.clone()];
    Layout {
        newline: layout::newline_of(text).unwrap_or("\n"),
        unit: first_indent(text).unwrap_or("  ").to_owned(),
        flat: !root.members.is_empty() && layout::newline_of(within).is_none(),
        spaced: root
            .members
            .first()
            .is_none_or(|member| text[..member.value.range.start].ends_with([' ', '\t'])),
    }
}

/// The indentation of the first line that begins with a key, if it has any.
fn first_indent(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start_matches([' ', '\t']);
        let indent = &line[..line.len() - rest.len()];
        (rest.starts_with('"') && !indent.is_empty()).then_some(indent)
    })
}
