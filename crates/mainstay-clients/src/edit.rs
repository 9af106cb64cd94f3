//! Edits of a client's config file: pure functions from text to text that change one entry and no other byte.
//!
//! The parsers (`jsonc-parser`, `toml_edit`) only say where things are; the change itself is a splice of byte
//! ranges, so what lies outside of them is kept because it is never written anew. Guarantees, each with a property test:
//!
//! - what is not ours survives byte for byte: comments, order, white space, line ends, a byte order mark;
//! - [`upsert`](ParsedText::upsert) twice equals once;
//! - [`to_create`](ParsedText::to_create), [`upsert`](ParsedText::upsert), [`remove`](ParsedText::remove) in this order give back the
//!   text that was there before;
//! - a text that cannot be read without doubt is refused with its place, and nothing is made up.
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

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Strict JSON: comments and trailing commas are refused, because the client would refuse them.
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
    /// The way from the root to the container, one literal key per segment.
    pub keys: &'a [&'a str],
}

/// What an upsert has to create around its entry, and what was there instead, so that a removal can take it back.
///
/// Belongs to the upsert that adds the entry; one that only changes it creates nothing. It is kept in our ledger: unknown
/// fields are ignored and missing ones mean "nothing", so older and newer versions read each other's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Created {
    /// How many of the last segments of [`Place::keys`] were missing.
    #[serde(skip_serializing_if = "is_zero")]
    containers: usize,
    /// The white space between the braces that were empty before.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<String>,
    /// The whole text, if it held no value at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<String>,
    /// Whether an empty line was put above a new TOML table.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    spaced: bool,
}

impl Created {
    /// Takes over what was created for another entry of the same place, which goes while this one stays: whichever goes
    /// last takes all of it back.
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

    /// The same, of an entry that was put back at its place.
    #[must_use]
    pub(crate) fn put_back(self, before: Self) -> Self {
        let spaced = before.spaced;
        Self { spaced, ..self.inherit(before) }
    }

    /// What of it goes with an entry that is taken out for a while: white space, but no containers.
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

/// A text that has been read, once for all questions and edits.
pub struct ParsedText<'t> {
    /// The byte order mark, if there is one, which no parser here needs to see.
    bom: &'t str,
    body: Body<'t>,
}

enum Body<'t> {
    Json(json::ParsedText<'t>),
    Toml(Box<toml::ParsedText<'t>>),
}

impl<'t> ParsedText<'t> {
    /// Reads a text, unless it cannot be read without doubt.
    pub fn parse(text: &'t str, place: &Place<'t>) -> Result<Self, EditError> {
        let body = text.strip_prefix('\u{feff}').unwrap_or(text);
        let bom = &text[..text.len() - body.len()];
        let body = match place.format {
            format @ (Format::Json | Format::Jsonc) => {
                Body::Json(json::ParsedText::parse(body, format, place.keys)?)
            }
            Format::Toml => Body::Toml(Box::new(toml::ParsedText::parse(body, place.keys)?)),
        };
        Ok(Self { bom, body })
    }

    /// The text with an entry in place.
    ///
    /// A new entry gets exactly `fields`. Of an existing one only the `owned` fields are set, or removed if `fields`
    /// lacks them; everything else in it stays. A field that already says the same is left as it is written.
    pub fn upsert(&self, name: &str, fields: &Fields, owned: &[&str]) -> Result<String, EditError> {
        let edited = match &self.body {
            Body::Json(body) => body.upsert(name, fields, owned),
            Body::Toml(body) => body.upsert(name, fields, owned),
        };
        edited.map(|edited| self.with_bom(edited))
    }

    /// The text without an entry and what belongs to it: its comma, its lines, the comments on and between them.
    ///
    /// `created` is what [`ParsedText::to_create`] said before the entry was added; it goes too if it is empty now.
    pub fn remove(&self, name: &str, created: &Created) -> Result<String, EditError> {
        let edited = match &self.body {
            Body::Json(body) => body.remove(name, created),
            Body::Toml(body) => body.remove(name, created),
        };
        edited.map(|edited| self.with_bom(edited))
    }

    /// As [`ParsedText::remove`], and with what it takes to put the entry back, if that is possible. `absent` are entries of the
    /// same container that have been taken out and not put back, so that the order of all of them is known.
    pub fn extract(
        &self,
        name: &str,
        created: &Created,
        absent: &[&Removed],
    ) -> Result<(String, Option<Removed>), EditError> {
        let (left, removed) = match &self.body {
            Body::Json(body) => {
                let left = body.remove(name, created)?;
                let removed = body.removed(name, &left, absent)?;
                (left, removed)
            }
            Body::Toml(body) => {
                let left = body.remove(name, created)?;
                let removed = body.removed(name, &left, absent);
                (left, removed)
            }
        };
        Ok((self.with_bom(left), removed))
    }

    /// The text with an entry that was taken out, as it was written and at its place among the neighbours that are left.
    /// `absent` are the others that are still out. Nothing if that does not make a text that differs in this entry alone.
    pub fn restore(
        &self,
        name: &str,
        removed: &Removed,
        absent: &[&Removed],
        place: &Place,
    ) -> Result<Option<String>, EditError> {
        let restored = self.with_bom(match &self.body {
            Body::Json(body) => body.restore(name, removed, absent)?,
            Body::Toml(body) => body.restore(removed, absent),
        });
        let Ok(reading) = ParsedText::parse(&restored, place) else { return Ok(None) };
        let mut entries = reading.entries()?;
        let is_back = entries.extract_if(.., |(key, _)| key == name).count() == 1;
        // TOML tells entries by where their first table is, so only what they say is compared.
        let others = self.entries()?;
        let is_same =
            entries.len() == others.len() && others.iter().all(|one| entries.contains(one));
        Ok((is_back && is_same).then_some(restored))
    }

    /// The entry as it is.
    pub fn find(&self, name: &str) -> Result<Option<Value>, EditError> {
        match &self.body {
            Body::Json(body) => body.find(name),
            Body::Toml(body) => body.find(name),
        }
    }

    /// All entries by their names, in the order of the file.
    pub fn entries(&self) -> Result<Fields, EditError> {
        match &self.body {
            Body::Json(body) => Ok(body.entries()),
            Body::Toml(body) => body.entries(),
        }
    }

    /// What has to be created around a new entry: nothing, containers, or the whole document.
    pub fn to_create(&self) -> Result<Created, EditError> {
        match &self.body {
            Body::Json(body) => Ok(body.to_create()),
            Body::Toml(body) => body.to_create(),
        }
    }

    fn with_bom(&self, edited: String) -> String {
        if self.bom.is_empty() { edited } else { [self.bom, &edited].concat() }
    }
}

/// A place in a text, for people: both numbers count from 1, the column in characters.
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

/// Why a text is not edited. The file stays as it is in every case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("{at}: {problem}")]
    Unparsable { at: Position, problem: String },
    #[error("{at}: a comment, which strict JSON does not allow")]
    Comment { at: Position },
    #[error("{at}: a trailing comma, which strict JSON does not allow")]
    TrailingComma { at: Position },
    #[error("`{key}` is there twice, in line {first} and in line {second}")]
    Duplicate { key: String, first: usize, second: usize },
    /// Something that has to hold other things (the document, a container, our entry) is something else.
    #[error("{at}: `{what}` is {found}, not a table of keys and values")]
    WrongType { what: String, found: &'static str, at: Position },
    #[error("{at}: `{key}` is written with dots inside of braces; write it as a table of its own")]
    DottedInBraces { key: String, at: Position },
}
