//! What an entry says.

use super::{Client, Slot, Template};
use crate::edit::{Fields, Value};
use crate::ledger::differing;

/// What an entry leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A streamable HTTP endpoint.
    Http {
        /// Its URL.
        url: String,
    },
    /// A command that speaks MCP on its standard input and output.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
    },
}

/// Our part of an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The fields, in order.
    pub fields: Fields,
    /// The fields that are ours, whether written or not.
    pub owned: &'static [&'static str],
}

/// A URL was to be given to a client that takes only commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{product} speaks only stdio")]
pub struct OnlyStdio {
    product: &'static str,
}

impl Client {
    /// Our part of the entry that leads to a target.
    pub fn entry(&self, target: &Target) -> Result<Entry, OnlyStdio> {
        let template = match target {
            Target::Http { .. } => self.http.ok_or(OnlyStdio { product: self.product })?,
            Target::Stdio { .. } => self.stdio,
        };
        Ok(Entry { fields: fill(template, target), owned: self.owned })
    }

    /// Whether an entry leads to a target as one of ours would, whoever wrote it.
    pub fn leads_to(&self, entry: &Value, target: &Target) -> bool {
        let ours = self.entry(target);
        ours.is_ok_and(|ours| differing(&ours.fields, entry, self.owned).is_empty())
    }
}

fn fill(template: Template, target: &Target) -> Fields {
    template.iter().map(|(name, slot)| ((*name).to_owned(), value(*slot, target))).collect()
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
    fn templates_hold_no_slot_of_the_other_transport() {
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
        assert_eq!(entry.fields, expected);
    }
}
