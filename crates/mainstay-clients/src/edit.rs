//! Edits of a client's config file: pure functions from text to text that change one entry and no other byte.
//!
//! The parsers (`jsonc-parser`, `toml_edit`) only report byte ranges. A change replaces some of them, and all other
//! bytes are copied. Guarantees, each with a property test:
//!
//! - Everything else survives byte for byte: comments, order, white space, line ends, a byte order mark.
//! - [`upsert`](ParsedText::upsert) is idempotent.
//! - [`remove`](ParsedText::remove) after [`to_create`](ParsedText::to_create) and [`upsert`](ParsedText::upsert)
//!   restores the original text.
//! - An invalid or ambiguous text is rejected with the position of the problem.
//!
//! Usage: parse a text once ([`ParsedText::parse`]). To add an entry, call [`ParsedText::to_create`] and
//! [`ParsedText::upsert`] on the same text, and pass what the former returned to [`ParsedText::remove`] later. Entries are
//! found by the literal segments of [`Place::keys`]; a dot in a segment is part of the key.

mod braces;
mod json;
mod removed;
mod text;
mod toml;
mod value;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::removed::Removed;
pub use self::value::{Fields, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Strict JSON: comments and trailing commas are rejected, because the client would reject them.
    Json,
    /// JSON with comments and trailing commas.
    Jsonc,
    /// TOML 1.1.
    Toml,
}

/// Where the entries of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    pub format: Format,
    /// The path from the root to the container of the entries, one literal key per segment.
    pub keys: &'a [&'a str],
}

/// What an upsert has to create around a new entry, and what it replaces, so that a removal can undo it.
///
/// An upsert of an existing entry creates nothing. This is stored in the ledger: unknown fields are ignored and missing
/// ones mean "nothing", so older and newer versions can read each other's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Created {
    /// How many of the last segments of [`Place::keys`] were missing.
    #[serde(skip_serializing_if = "is_zero")]
    containers: usize,
    /// The white space between braces that were empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<String>,
    /// The whole text, if it had no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<String>,
    /// Whether an empty line was added above a new TOML table.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    spaced: bool,
}

impl Created {
    /// Adds what was created for another entry of the same container, which is removed first. The removal of the last
    /// entry undoes all of it.
    #[must_use]
    pub fn inherit(self, gone: Self) -> Self {
        Self {
            // The gap is that of the outermost braces.
            gap: if gone.containers > self.containers { gone.gap } else { self.gap.or(gone.gap) },
            containers: self.containers.max(gone.containers),
            document: self.document.or(gone.document),
            spaced: self.spaced,
        }
    }

    /// The same for an entry that was put back.
    #[must_use]
    pub(crate) fn put_back(self, before: Self) -> Self {
        let spaced = before.spaced;
        Self { spaced, ..self.inherit(before) }
    }

    /// The part that is undone when an entry is removed temporarily: white space, but no containers.
    #[must_use]
    pub fn layout(&self) -> Self {
        let gap = self.gap.clone().filter(|_| self.containers == 0);
        Self { gap, spaced: self.spaced, ..Self::default() }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A parsed text.
pub struct ParsedText<'t> {
    /// The byte order mark, if there is one.
    bom: &'t str,
    body: Box<dyn Editor + 't>,
}

/// What differs between JSON and TOML.
trait Editor {
    fn upsert(&self, name: &str, fields: &Fields, owned: &[&str]) -> Result<String, EditError>;

    fn remove(&self, name: &str, created: &Created) -> Result<String, EditError>;

    /// What [`Editor::restore`] needs to put an entry back, if that is possible; `left` is the text without it.
    fn removed(
        &self,
        name: &str,
        left: &str,
        absent: &[&Removed],
    ) -> Result<Option<Removed>, EditError>;

    /// The text with a removed entry.
    fn restore(
        &self,
        name: &str,
        removed: &Removed,
        absent: &[&Removed],
    ) -> Result<String, EditError>;

    fn find(&self, name: &str) -> Result<Option<Value>, EditError>;

    fn entries(&self) -> Result<Fields, EditError>;

    fn to_create(&self) -> Result<Created, EditError>;
}

impl<'t> ParsedText<'t> {
    /// Rejects an invalid or ambiguous text.
    pub fn parse(text: &'t str, place: &Place<'t>) -> Result<Self, EditError> {
        let body = text.strip_prefix('\u{feff}').unwrap_or(text);
        let bom = &text[..text.len() - body.len()];
        let body: Box<dyn Editor> = match place.format {
            Format::Toml => Box::new(toml::ParsedText::parse(body, place.keys)?),
            format => Box::new(json::ParsedText::parse(body, format, place.keys)?),
        };
        Ok(Self { bom, body })
    }

    /// Adds or changes an entry.
    ///
    /// A new entry gets exactly `fields`. Of an existing one only the `owned` fields are set, or removed if `fields`
    /// lacks them. A field that has an equivalent value is not rewritten.
    pub fn upsert(&self, name: &str, fields: &Fields, owned: &[&str]) -> Result<String, EditError> {
        Ok(self.with_bom(self.body.upsert(name, fields, owned)?))
    }

    /// Removes an entry with its comma, its lines, and the comments on and between them.
    ///
    /// `created` is what [`ParsedText::to_create`] returned before the entry was added; it is removed, too, if it is
    /// empty now.
    pub fn remove(&self, name: &str, created: &Created) -> Result<String, EditError> {
        Ok(self.with_bom(self.body.remove(name, created)?))
    }

    /// As [`ParsedText::remove`], and also returns what [`ParsedText::restore`] needs, if the entry can be put back.
    /// `absent` are other entries of the container that are removed temporarily; they keep their places in the order.
    pub fn extract(
        &self,
        name: &str,
        created: &Created,
        absent: &[&Removed],
    ) -> Result<(String, Option<Removed>), EditError> {
        let left = self.body.remove(name, created)?;
        let removed = self.body.removed(name, &left, absent)?;
        Ok((self.with_bom(left), removed))
    }

    /// Puts an extracted entry back, as it was written and at its place among its neighbours. `absent` are other
    /// entries that are removed temporarily. Nothing if the result would differ in more than this entry.
    pub fn restore(
        &self,
        name: &str,
        removed: &Removed,
        absent: &[&Removed],
        place: &Place,
    ) -> Result<Option<String>, EditError> {
        let restored = self.with_bom(self.body.restore(name, removed, absent)?);
        let mut entries = match ParsedText::parse(&restored, place) {
            Ok(parsed) => parsed.entries()?,
            Err(_) => return Ok(None),
        };
        let is_back = entries.extract_if(.., |(key, _)| key == name).count() == 1;
        // In TOML the order of entries depends on their first tables, so only values are compared.
        let others = self.entries()?;
        let is_same =
            entries.len() == others.len() && others.iter().all(|one| entries.contains(one));
        Ok((is_back && is_same).then_some(restored))
    }

    pub fn find(&self, name: &str) -> Result<Option<Value>, EditError> {
        self.body.find(name)
    }

    /// All entries, in the order of the file.
    pub fn entries(&self) -> Result<Fields, EditError> {
        self.body.entries()
    }

    /// What has to be created around a new entry: nothing, containers, or the whole document.
    pub fn to_create(&self) -> Result<Created, EditError> {
        self.body.to_create()
    }

    fn with_bom(&self, edited: String) -> String {
        if self.bom.is_empty() { edited } else { [self.bom, &edited].concat() }
    }
}

/// A position in a text. Line and column count from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    fn of(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Why a text is not edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("{at}: {problem}")]
    Unparsable { at: Position, problem: String },
    #[error("{at}: strict JSON does not allow comments")]
    Comment { at: Position },
    #[error("{at}: strict JSON does not allow trailing commas")]
    TrailingComma { at: Position },
    #[error("`{key}` is defined twice, in line {first} and line {second}")]
    Duplicate { key: String, first: usize, second: usize },
    /// The document, a container or an entry has another type.
    #[error("{at}: `{what}` is {found}, not a table of keys and values")]
    WrongType { what: String, found: &'static str, at: Position },
    #[error("{at}: `{key}` is a dotted key inside braces; write it as a table of its own")]
    DottedInBraces { key: String, at: Position },
}
