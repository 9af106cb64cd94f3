//! Checks that an edit changed only one entry. Both texts are parsed with other parsers than the editor's.
//!
//! JSON is compared as it is written, which is strict (`1.0` differs from `1`) and fast.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use toml::{Table, Value};

use crate::edit::{EditError, Format, Place};

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("the servers could not be located in the file")]
    Place(#[source] EditError),
    #[error("the {which} text is not valid JSON")]
    Json {
        /// `old` or `new`.
        which: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the {which} text is not valid TOML: {problem}")]
    Toml {
        /// `old` or `new`.
        which: &'static str,
        /// Without the line, which may contain a secret.
        problem: String,
    },
    #[error("something other than the entry changed")]
    OtherChange,
}

/// Checks that two texts differ only in the entry `name` at `place`. Maps on the path to it may be created and removed
/// with it; an empty text counts as an empty map.
pub fn only_entry_differs(
    before: &str,
    after: &str,
    place: &Place<'_>,
    name: &str,
) -> Result<(), VerifyError> {
    let path: Vec<&str> = place.keys.iter().copied().chain([name]).collect();
    let same = match place.format {
        Format::Json => same_json(skip_mark(before), skip_mark(after), &path)?,
        Format::Jsonc => same_json(&plain(skip_mark(before)), &plain(skip_mark(after)), &path)?,
        Format::Toml => same_toml(skip_mark(before), skip_mark(after), &path)?,
    };
    if same { Ok(()) } else { Err(VerifyError::OtherChange) }
}

fn skip_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn same_json(before: &str, after: &str, path: &[&str]) -> Result<bool, VerifyError> {
    let Some((key, rest)) = path.split_first() else { return Ok(true) };
    let (before, after) = (Members::of(before, "old")?, Members::of(after, "new")?);
    if !before.others(key).eq(after.others(key)) {
        return Ok(false);
    }
    if rest.is_empty() {
        return Ok(true);
    }
    same_json(before.get(key), after.get(key), rest)
}

/// The keys and values of a JSON map as they are written.
struct Members<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Members<'a> {
    fn of(text: &'a str, which: &'static str) -> Result<Self, VerifyError> {
        if text.trim_ascii().is_empty() {
            return Ok(Self(Vec::new()));
        }
        serde_json::from_str(text).map_err(|source| VerifyError::Json { which, source })
    }

    fn others(&self, key: &str) -> impl Iterator<Item = &(&'a str, &'a str)> {
        self.0.iter().filter(move |(written, _)| !is_key(written, key))
    }

    fn get(&self, key: &str) -> &'a str {
        self.0.iter().find(|(written, _)| is_key(written, key)).map_or("", |(_, value)| value)
    }
}

/// Whether a key, as it is written, equals `key`. A key with a lone surrogate equals none.
fn is_key(written: &str, key: &str) -> bool {
    match written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => plain == key,
        Some(_) | None => serde_json::from_str::<String>(written).is_ok_and(|name| name == key),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
                    members.push((name.get(), value.get()));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

/// Compares values. Order and comments are left to the tests of the editor.
fn same_toml(before: &str, after: &str, path: &[&str]) -> Result<bool, VerifyError> {
    let (mut before, mut after) = (parse_toml(before, "old")?, parse_toml(after, "new")?);
    remove_toml(&mut before, path);
    remove_toml(&mut after, path);
    // As text, because `nan` does not equal itself.
    Ok(before.to_string() == after.to_string())
}

fn parse_toml(text: &str, which: &'static str) -> Result<Table, VerifyError> {
    let problem = |error: toml::de::Error| error.message().to_owned();
    text.parse().map_err(|error| VerifyError::Toml { which, problem: problem(error) })
}

/// Removes what is at a path, and tables on the path that become empty.
fn remove_toml(table: &mut Table, path: &[&str]) {
    let [key, rest @ ..] = path else { return };
    if !rest.is_empty() {
        let Some(inner) = table.get_mut(*key).and_then(Value::as_table_mut) else { return };
        remove_toml(inner, rest);
        if !inner.is_empty() {
            return;
        }
    }
    table.remove(*key);
}

/// Replaces comments and trailing commas by spaces.
fn plain(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    let mut comma = None;
    while at < bytes.len() {
        let end = match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => end_of_string(&bytes, at),
            (b'/', Some(b'/')) => blank_line(&mut bytes, at),
            (b'/', Some(b'*')) => blank_block(&mut bytes, at),
            _ => at + 1,
        };
        match bytes[at] {
            b',' => comma = Some(at),
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    bytes[comma] = b' ';
                }
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => comma = None,
        }
        at = end;
    }
    String::from_utf8(bytes).expect("only whole characters were replaced")
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Blanks a line comment. Returns its end.
fn blank_line(bytes: &mut [u8], start: usize) -> usize {
    let length = bytes[start..].iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    let stop = length.map_or(bytes.len(), |length| start + length);
    bytes[start..stop].fill(b' ');
    stop
}

/// Blanks a block comment. Returns its end.
fn blank_block(bytes: &mut [u8], start: usize) -> usize {
    let body = start + 2;
    let length = bytes[body..].windows(2).position(|window| window == b"*/");
    let stop = length.map_or(bytes.len(), |length| body + length + 2);
    bytes[start..stop].fill(b' ');
    stop
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_sound(format: Format, before: &str, after: &str) -> bool {
        let place = Place { format, keys: &["mcpServers"] };
        match only_entry_differs(before, after, &place, "time") {
            Ok(()) => true,
            Err(VerifyError::OtherChange) => false,
            Err(error) => panic!("{error}: {before} {after}"),
        }
    }

    #[test]
    fn an_entry_may_be_added_changed_and_removed() {
        for (before, after) in [
            ("", r#"{"mcpServers": {"time": {}}}"#),
            ("{}", r#"{"mcpServers": {"time": {}}}"#),
            (r#"{"a": 1, "mcpServers": {"time": 1}}"#, r#"{"a": 1}"#),
            (r#"{"mcpServers": {"time": 1, "b": 2}}"#, r#"{"mcpServers": {"b": 2, "time": {}}}"#),
            ("\u{feff}{}", "\u{feff}{\"mcpServers\": {\"time\": {}}}"),
            (r#"{"cut": "\ud83d"}"#, r#"{"cut": "\ud83d", "mcpServers": {"time": 1}}"#),
            (r#"{"cut\ud83d": 1}"#, r#"{"cut\ud83d": 1, "mcpServers": {"\u0074ime": 1}}"#),
        ] {
            assert!(is_sound(Format::Json, before, after), "{before} {after}");
            assert!(is_sound(Format::Jsonc, before, after), "{before} {after}");
        }
    }

    #[test]
    fn other_changes_are_rejected() {
        for (before, after) in [
            (r#"{"a": 1}"#, r#"{"a": 2, "mcpServers": {"time": {}}}"#),
            (r#"{"a": 1}"#, r#"{"a": 1.0, "mcpServers": {"time": {}}}"#),
            (r#"{"a": 1}"#, r#"{"mcpServers": {"time": {}}}"#),
            ("{}", r#"{"b": 1, "mcpServers": {"time": {}}}"#),
            (r#"{"mcpServers": {"b": 2}}"#, r#"{"mcpServers": {"time": {}}}"#),
            (r#"{"mcpServers": {"b": 2, "time": 1}}"#, "{}"),
            (r#"{"a": 1, "b": 2}"#, r#"{"b": 2, "a": 1, "mcpServers": {"time": {}}}"#),
        ] {
            assert!(!is_sound(Format::Json, before, after), "{before} {after}");
            assert!(!is_sound(Format::Jsonc, before, after), "{before} {after}");
        }
    }

    #[test]
    fn comments_and_trailing_commas_are_ignored() {
        let text = r#"{ // "a": 1,
            "url": "http://x/*no comment*/", /* , } */
            "mcpServers": {"time": [1, 2, /* last */ ], },
        }"#;
        let json: serde_json::Value = serde_json::from_str(&plain(text)).unwrap();
        let expected = serde_json::json!({
            "url": "http://x/*no comment*/",
            "mcpServers": {"time": [1, 2]},
        });
        assert_eq!(json, expected);
        assert_eq!(plain(r#"{"a\\": "\"//", "b": ",]"}"#), r#"{"a\\": "\"//", "b": ",]"}"#);
    }

    #[test]
    fn a_text_without_a_map_is_rejected() {
        let place = Place { format: Format::Json, keys: &["mcpServers"] };
        for after in ["[]", "{", r#"{"mcpServers": []}"#, r#"{"mcpServers": {}}, 1"#] {
            let result = only_entry_differs("{}", after, &place, "time");
            assert!(matches!(result, Err(VerifyError::Json { which: "new", .. })), "{after}");
        }
    }

    #[test]
    fn toml_is_compared_by_value() {
        let before = "model = \"x\"\n[mcp_servers.other]\nurl = \"o\"\n";
        let ours = "[mcp_servers.time]\nurl = \"t\"\n";
        let place = Place { format: Format::Toml, keys: &["mcp_servers"] };
        let check =
            |before: &str, after: &str| only_entry_differs(before, after, &place, "time").is_ok();
        assert!(check(before, &format!("{before}{ours}")));
        assert!(check(&format!("{before}{ours}"), before));
        assert!(check("", ours));
        assert!(check(before, &before.replace("[mcp_servers.o", &format!("{ours}[mcp_servers.o"))));
        assert!(check("mcp_servers = {}", "mcp_servers = { time = {} }"));
        assert!(check("mcp_servers = { a = 1 }", "mcp_servers = { a = 1, time.url = 1 }"));
        assert!(check("[mcp_servers]\na = 1", "[mcp_servers]\ntime = { url = 1 }\na = 1"));
        let long = "a = \"\"\"\n[mcp_servers.time]\n";
        assert!(check(&format!("{long}x\"\"\""), &format!("{long}x\"\"\"\n{ours}")));
        // Something else is gone, changed, or below another header.
        assert!(!check(&format!("{long}x\"\"\""), &format!("{long}y\"\"\"\n{ours}")));
        assert!(!check(before, &before.replace("\"o\"", "\"p\"")));
        assert!(!check(before, "model = \"x\"\n"));
        assert!(!check(before, &before.replace("url", &format!("{ours}url"))));
        assert!(!check("mcp_servers = { a = 1 }", "mcp_servers = { time = {} }"));
        assert!(!check("mcp_servers = { a = 1 }", "a = 1\nmcp_servers = { time = {} }"));
        assert!(!check("[mcp_servers]\na = 1", "[mcp_servers]\na = 1\nb = 1"));
        // The result is not valid TOML.
        assert!(!check(before, &format!("{before}{ours}{ours}")));
        assert!(!check(before, &format!("{before}{ours}url = 1\n")));
        assert!(!check("mcp_servers = { a = 1 }\n", &format!("mcp_servers = {{ a = 1 }}\n{ours}")));
        assert!(!check(before, &format!("{before}{ours}[")));
    }

    #[test]
    fn errors_do_not_contain_the_content_of_the_file() {
        let place = Place { format: Format::Toml, keys: &["mcp_servers"] };
        for after in [
            "[mcp_servers.time]\nkey = \"s3cret\" oops\n",
            "[mcp_servers.time]\nkey = \"s3cret\"\nkey = \"s3cret\"\n",
        ] {
            let harm = only_entry_differs("", after, &place, "time").unwrap_err();
            assert!(harm.to_string().starts_with("the new text is not valid TOML: "), "{harm}");
            assert!(!format!("{harm:?} {harm}").contains("s3cret"), "{harm}");
        }
    }
}
