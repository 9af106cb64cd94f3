//! Edits of a client's config file: pure functions from text to text that change one entry and no other byte.
//!
//! The parsers (`jsonc-parser`, `toml_edit`) only say where things are; the change itself is a splice of byte
//! ranges, so what lies outside of them is kept because it is never written anew. Guarantees, each with a property test:
//!
//! - what is not ours survives byte for byte: comments, order, white space, line ends, a byte order mark;
//! - [`upsert`] twice equals [`upsert`] once;
//! - [`outline`], [`upsert`], [`remove`] in this order give back the text that was there before;
//! - a text that cannot be read without doubt is refused with its place, and nothing is made up.
//!
//! The order of use: [`outline`] and [`upsert`] on the same text when an entry is added, and [`remove`] later with what
//! the outline said. An entry is found by the literal segments of [`Place::keys`]; a dot in one is part of its name.

mod braces;
mod error;
mod json;
mod layout;
mod splice;
mod toml;
mod trivia;
mod value;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::error::{EditError, Position};
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
    pub shape: Shape,
}

/// How a container holds its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One key per entry.
    Map,
    /// A list of entries, told apart by the field `id`. No function here edits one yet: each refuses it.
    List { id: &'static str },
}

/// What an [`upsert`] has to create around its entry, and what was there instead, so that [`remove`] can take it back.
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
    /// Whether the entry can be taken out alone.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Takes over what was created for another entry of the same place, which goes while this one stays: whichever goes
    /// last takes all of it back.
    #[must_use]
    pub fn inherit(self, gone: Self) -> Self {
        Self {
            containers: self.containers.max(gone.containers),
            gap: self.gap.or(gone.gap),
            document: self.document.or(gone.document),
            spaced: self.spaced,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Puts an entry in place.
///
/// A new entry gets exactly `fields`. Of an existing one only the `owned` fields are set, or removed if `fields` lacks
/// them; everything else in it stays. A field that already says the same is left as it is written.
pub fn upsert(
    text: &str,
    place: &Place,
    name: &str,
    fields: &Fields,
    owned: &[&str],
) -> Result<String, EditError> {
    edit(text, place, |body| match place.format {
        Format::Json | Format::Jsonc => json::upsert(body, place, name, fields, owned),
        Format::Toml => toml::upsert(body, place, name, fields, owned),
    })
}

/// Removes an entry, if it is there, with what belongs to it: its comma, its lines, the comments on and between them.
///
/// `created` is what [`outline`] said before the entry was added; it goes too if it is empty now.
#[expect(clippy::needless_pass_by_value, reason = "a removal uses the record up")]
pub fn remove(
    text: &str,
    place: &Place,
    name: &str,
    created: Created,
) -> Result<String, EditError> {
    edit(text, place, |body| match place.format {
        Format::Json | Format::Jsonc => json::remove(body, place, name, &created),
        Format::Toml => toml::remove(body, place, name, &created),
    })
}

/// The entry as it is.
pub fn find(text: &str, place: &Place, name: &str) -> Result<Option<Value>, EditError> {
    let body = readable(text, place)?;
    match place.format {
        Format::Json | Format::Jsonc => json::find(body, place, name),
        Format::Toml => toml::find(body, place, name),
    }
}

/// The names of all entries, in the order of the file.
pub fn names(text: &str, place: &Place) -> Result<Vec<String>, EditError> {
    let body = readable(text, place)?;
    match place.format {
        Format::Json | Format::Jsonc => json::names(body, place),
        Format::Toml => toml::names(body, place),
    }
}

/// What an [`upsert`] of a new entry would have to create: nothing, containers, or the whole document.
pub fn outline(text: &str, place: &Place) -> Result<Created, EditError> {
    let body = readable(text, place)?;
    match place.format {
        Format::Json | Format::Jsonc => json::outline(body, place),
        Format::Toml => toml::outline(body, place),
    }
}

fn edit(
    text: &str,
    place: &Place,
    change: impl FnOnce(&str) -> Result<String, EditError>,
) -> Result<String, EditError> {
    let body = readable(text, place)?;
    let edited = change(body)?;
    let mark = &text[..text.len() - body.len()];
    Ok(if mark.is_empty() { edited } else { [mark, &edited].concat() })
}

/// The text without its byte order mark, which no parser here needs to see.
fn readable<'t>(text: &'t str, place: &Place) -> Result<&'t str, EditError> {
    match place.shape {
        Shape::Map => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Shape::List { .. } => Err(EditError::List),
    }
}
