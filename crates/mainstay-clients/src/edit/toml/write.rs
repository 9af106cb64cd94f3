//! Values as TOML text.

use super::super::value::Value;

/// A table with its header, each line with its end.
pub(super) fn table<'a>(
    path: &[&str],
    fields: impl Iterator<Item = (&'a str, &'a Value)>,
    newline: &str,
) -> String {
    format!("[{}]{newline}{}", dotted(path), lines("", fields, newline))
}

/// One line for each field, with its end.
pub(super) fn lines<'a>(
    prefix: &str,
    fields: impl Iterator<Item = (&'a str, &'a Value)>,
    newline: &str,
) -> String {
    let mut lines = String::new();
    for (key, value) in fields {
        lines.push_str(&[prefix, &field(key, value), newline].concat());
    }
    lines
}

pub(in super::super) fn field(name: &str, content: &Value) -> String {
    format!("{} = {}", key(name), value(content))
}

/// A value on one line.
pub(in super::super) fn value(content: &Value) -> String {
    match content {
        Value::Text(text) => quoted(text),
        Value::Flag(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Other(text) => text.clone(),
        Value::List(items) => {
            format!("[{}]", items.iter().map(value).collect::<Vec<_>>().join(", "))
        }
        Value::Map(members) if members.is_empty() => "{}".to_owned(),
        Value::Map(members) => {
            let members: Vec<_> =
                members.iter().map(|(name, content)| field(name, content)).collect();
            format!("{{ {} }}", members.join(", "))
        }
    }
}

/// Keys with dots between them.
pub(super) fn dotted(path: &[&str]) -> String {
    path.iter().map(|name| key(name)).collect::<Vec<_>>().join(".")
}

fn key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !name.is_empty() && name.bytes().all(is_bare) { name.to_owned() } else { quoted(name) }
}

/// A basic string: a JSON string, except for a character that only TOML requires to be escaped.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}
