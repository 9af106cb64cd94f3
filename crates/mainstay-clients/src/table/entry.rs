//! The content of an entry, and its place in a file.

use super::{Client, Keys, Slot};
use crate::edit::{EditError, Fields, ParsedText, Place, Value};
use crate::ledger::differing;

/// What an entry connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A streamable HTTP endpoint.
    Http { url: String },
    /// A command that speaks MCP on its standard input and output.
    Stdio { command: String, args: Vec<String> },
}

/// A client that supports only stdio cannot have a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{product} speaks only stdio")]
pub struct OnlyStdio {
    product: &'static str,
}

impl Client {
    /// The owned fields of an entry for a target.
    pub fn entry(&self, target: &Target) -> Result<Fields, OnlyStdio> {
        let template = match target {
            Target::Http { .. } => self.http.ok_or(OnlyStdio { product: self.product })?,
            Target::Stdio { .. } => self.stdio,
        };
        let field = |(name, slot): &(&str, Slot)| ((*name).to_owned(), value(*slot, target));
        Ok(template.iter().map(field).collect())
    }

    /// Whether an entry, of Mainstay or not, connects to a target as ours would.
    pub fn leads_to(&self, entry: &Value, target: &Target) -> bool {
        let ours = self.entry(target);
        ours.is_ok_and(|ours| differing(&ours, entry, self.owned).is_empty())
    }

    /// Where in this text the client's servers are, or would be.
    pub fn place(&self, text: &str) -> Result<Place<'static>, EditError> {
        match self.keys {
            Keys::At(keys) => Ok(self.place_at(keys)),
            Keys::Either { .. } => self.read(text).map(|(place, _)| place),
        }
    }

    /// Parses a text, and finds where in it the client's servers are, or would be.
    pub fn read<'t>(&self, text: &'t str) -> Result<(Place<'static>, ParsedText<'t>), EditError> {
        let read = |keys| {
            let place = self.place_at(keys);
            ParsedText::parse(text, &place).map(|parsed| (place, parsed))
        };
        match self.keys {
            Keys::At(keys) => read(keys),
            Keys::Either { flat, nested, markers } => {
                let (place, parsed) = read(flat)?;
                if is_newer(&parsed, markers)? { read(nested) } else { Ok((place, parsed)) }
            }
        }
    }

    fn place_at(&self, keys: &'static [&'static str]) -> Place<'static> {
        Place { format: self.format, keys }
    }
}

fn value(slot: Slot, target: &Target) -> Value {
    let (url, command, args): (_, _, &[String]) = match target {
        Target::Http { url } => (url.as_str(), "", &[]),
        Target::Stdio { command, args } => ("", command.as_str(), args),
    };
    let text = |text: &str| Value::Text(text.to_owned());
    let args = args.iter().map(|arg| text(arg));
    match slot {
        Slot::Url => text(url),
        Slot::Command => text(command),
        Slot::Args => Value::List(args.collect()),
        Slot::CommandLine => Value::List(std::iter::once(text(command)).chain(args).collect()),
        Slot::Text(fixed) => text(fixed),
    }
}

/// Whether a file has the newer format: beside the servers there is a map that is not an entry.
fn is_newer(flat: &ParsedText<'_>, markers: &[&str]) -> Result<bool, EditError> {
    for sign in markers {
        if let Some(Value::Map(fields)) = flat.find(sign)?
            && !is_entry(&fields)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether these are the fields of an entry. An entry may consist of `enabled` alone.
fn is_entry(fields: &[(String, Value)]) -> bool {
    fields.iter().any(|(name, value)| match value {
        Value::Text(_) => name == "type",
        Value::Flag(_) => name == "enabled",
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::super::clients;
    use super::*;

    #[test]
    fn a_client_without_http_gets_no_url() {
        let target = Target::Http { url: "http://127.0.0.1:7433/time/mcp".to_owned() };
        for client in clients() {
            assert_eq!(client.entry(&target).is_err(), client.speaks_only_stdio(), "{}", client.id);
        }
        let desktop = Client::by_id("claude-desktop").unwrap();
        let error = desktop.entry(&target).unwrap_err();
        assert_eq!(error.to_string(), "Claude Desktop speaks only stdio");
    }

    #[test]
    fn templates_have_no_slot_of_the_other_transport() {
        for client in clients() {
            let of_http = client.http.unwrap_or_default().iter();
            for (field, slot) in of_http {
                assert!(matches!(slot, Slot::Url | Slot::Text(_)), "{}: {field}", client.id);
            }
            for (field, slot) in client.stdio {
                assert!(!matches!(slot, Slot::Url), "{}: {field}", client.id);
            }
        }
    }

    #[test]
    fn a_command_line_is_one_list_where_the_client_wants_it() {
        let target = Target::Stdio {
            command: "mainstay".to_owned(),
            args: vec!["connect".to_owned(), "time".to_owned()],
        };
        let entry = Client::by_id("opencode").unwrap().entry(&target).unwrap();
        let text = |text: &str| Value::Text(text.to_owned());
        let line = vec![text("mainstay"), text("connect"), text("time")];
        let expected =
            vec![("type".to_owned(), text("local")), ("command".to_owned(), Value::List(line))];
        assert_eq!(entry, expected);
    }

    #[track_caller]
    fn check(text: &str, keys: &[&str]) {
        let place = Client::by_id("opencode").unwrap().place(text).unwrap();
        assert_eq!(place.keys, keys, "{text}");
    }

    #[test]
    fn newer_files_of_opencode_are_recognized() {
        check("", &["mcp"]);
        check(r#"{"mcp": {"time": {"type": "remote"}}}"#, &["mcp"]);
        check(r#"{"mcp": {"servers": {}}}"#, &["mcp", "servers"]);
        check(r#"{"mcp": {"servers": {"time": {"type": "remote"}}}}"#, &["mcp", "servers"]);
        check(r#"{"mcp": {"timeout": {"startup": 1}}}"#, &["mcp", "servers"]);
        // Servers that happen to be called so.
        check(r#"{"mcp": {"servers": {"type": "local", "command": ["x"]}}}"#, &["mcp"]);
        check(r#"{"mcp": {"timeout": {"enabled": false}}}"#, &["mcp"]);
    }
}
