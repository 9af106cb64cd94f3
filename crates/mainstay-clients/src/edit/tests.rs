//! Tests of the editors: by example, by refusal, and on generated documents.

mod dice;
mod examples;
mod json_documents;
mod properties;
mod refusals;
mod restore;
mod toml_documents;
mod toml_examples;
mod updates;

use super::{Created, EditError, Fields, Format, ParsedText, Place, Value};

const JSON: Place = place(Format::Json, &["mcpServers"]);
const JSONC: Place = place(Format::Jsonc, &["mcpServers"]);
const TOML: Place = place(Format::Toml, &["mcp_servers"]);

const fn place<'a>(format: Format, keys: &'a [&'a str]) -> Place<'a> {
    Place { format, keys }
}

/// The fields of most tests; both are owned.
fn fields() -> Fields {
    vec![("type".to_owned(), text("http")), ("url".to_owned(), text("http://h/mcp"))]
}

const OWNED: &[&str] = &["type", "url", "httpUrl"];

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn upsert(
    text: &str,
    place: &Place,
    name: &str,
    fields: &Fields,
    owned: &[&str],
) -> Result<String, EditError> {
    ParsedText::parse(text, place)?.upsert(name, fields, owned)
}

fn remove(text: &str, place: &Place, name: &str, created: &Created) -> Result<String, EditError> {
    ParsedText::parse(text, place)?.remove(name, created)
}

fn find(text: &str, place: &Place, name: &str) -> Result<Option<Value>, EditError> {
    ParsedText::parse(text, place)?.find(name)
}

fn to_create(text: &str, place: &Place) -> Result<Created, EditError> {
    ParsedText::parse(text, place)?.to_create()
}

fn names(text: &str, place: &Place) -> Result<Vec<String>, EditError> {
    let entries = ParsedText::parse(text, place)?.entries()?;
    Ok(entries.into_iter().map(|(name, _)| name).collect())
}

/// Adds an entry to a text that lacks it, and asserts what comes out and that all of it can be taken back.
#[track_caller]
fn check_add(place: &Place, name: &str, before: &str, expected: &str) {
    let created = to_create(before, place).unwrap();
    let after = upsert(before, place, name, &fields(), OWNED).unwrap();
    assert_eq!(after, expected, "the entry added");
    assert_eq!(upsert(&after, place, name, &fields(), OWNED).unwrap(), after, "added twice");
    assert_eq!(find(&after, place, name).unwrap(), Some(Value::Map(fields())), "read back");
    assert_eq!(remove(&after, place, name, &created).unwrap(), before, "removed again");
}

/// Removes the entry `ours` of which nothing is known.
#[track_caller]
fn check_remove(place: &Place, before: &str, expected: &str) {
    let after = remove(before, place, "ours", &Created::default()).unwrap();
    assert_eq!(after, expected);
    assert_eq!(find(&after, place, "ours").unwrap(), None);
    assert_eq!(remove(&after, place, "ours", &Created::default()).unwrap(), after, "removed twice");
}

/// Sets the owned fields of the entry `ours`.
#[track_caller]
fn check_update(place: &Place, before: &str, expected: &str) {
    let after = upsert(before, place, "ours", &fields(), OWNED).unwrap();
    assert_eq!(after, expected);
    assert_eq!(upsert(&after, place, "ours", &fields(), OWNED).unwrap(), after, "updated twice");
}
