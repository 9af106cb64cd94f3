//! Values as JSON text.

use super::super::braces::Style;
use super::super::value::Value;

/// The longest list of scalars that is written on one line.
const LINE_LIMIT: usize = 80;

pub(in super::super) fn member(key: &str, content: &Value, style: &Style) -> String {
    let colon = match style {
        Style::Line { spaced: false } => ":",
        Style::Line { spaced: true } | Style::Lines { .. } => ": ",
    };
    format!("{}{colon}{}", quoted(key), value(content, style))
}

/// A value; its first line is already indented.
pub(in super::super) fn value(content: &Value, style: &Style) -> String {
    match content {
        Value::Text(text) => quoted(text),
        Value::Flag(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Other(text) => text.clone(),
        Value::List(items) => list(items, style),
        Value::Map(members) => {
            let write = |style: &Style| {
                members.iter().map(|(key, content)| member(key, content, style)).collect()
            };
            block('{', '}', style, write)
        }
    }
}

fn list(items: &[Value], style: &Style) -> String {
    let write = |style: &Style| items.iter().map(|item| value(item, style)).collect::<Vec<_>>();
    let short = format!("[{}]", write(&Style::Line { spaced: true }).join(", "));
    let is_plain = items.iter().all(|item| !matches!(item, Value::List(_) | Value::Map(_)));
    match style {
        Style::Line { spaced: false } => format!("[{}]", write(style).join(",")),
        Style::Line { spaced: true } => short,
        Style::Lines { .. } if is_plain && short.chars().count() <= LINE_LIMIT => short,
        Style::Lines { .. } => block('[', ']', style, write),
    }
}

fn block(
    open: char,
    close: char,
    style: &Style,
    write: impl FnOnce(&Style) -> Vec<String>,
) -> String {
    match style {
        Style::Line { spaced } => {
            let parts = write(style);
            match (parts.is_empty(), spaced) {
                (true, _) => format!("{open}{close}"),
                (false, true) => format!("{open} {} {close}", parts.join(", ")),
                (false, false) => format!("{open}{}{close}", parts.join(",")),
            }
        }
        Style::Lines { newline, indent, unit } => {
            let inner = format!("{indent}{unit}");
            let parts = write(&Style::Lines { newline, indent: inner.clone(), unit: unit.clone() });
            if parts.is_empty() {
                return format!("{open}{close}");
            }
            let separator = format!(",{newline}{inner}");
            format!("{open}{newline}{inner}{}{newline}{indent}{close}", parts.join(&separator))
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
