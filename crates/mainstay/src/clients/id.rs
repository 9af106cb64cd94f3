//! The command-line parser for ids of clients.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use mainstay_clients::{Client, clients};

/// Shorter texts are part of too many names.
const SHORTEST_PART: usize = 3;

/// Parses the id of a client. Lists all ids for completion, and suggests similar ones in errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdParser;

impl TypedValueParser for IdParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        let word = value.to_string_lossy();
        match Client::by_id(&word) {
            Some(client) => Ok(client.id.to_owned()),
            None => Err(refusal(command, arg, &word)),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |client: &'static Client| PossibleValue::new(client.id).help(client.product);
        Some(Box::new(clients().iter().map(value)))
    }
}

/// clap's own error for a value that is not possible.
fn refusal(command: &Command, arg: Option<&Arg>, word: &str) -> Error {
    let words =
        |ids: Vec<&str>| ContextValue::Strings(ids.into_iter().map(str::to_owned).collect());
    let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
    if let Some(arg) = arg {
        error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
    }
    error.insert(ContextKind::InvalidValue, ContextValue::String(word.to_owned()));
    let all = clients().iter().map(|client| client.id).collect();
    error.insert(ContextKind::ValidValue, words(all));
    let suggested = nearest(word);
    if !suggested.is_empty() {
        error.insert(ContextKind::SuggestedValue, words(suggested));
    }
    error
}

/// The ids of the clients whose id or product name is most similar.
fn nearest(word: &str) -> Vec<&'static str> {
    let word = plain(word);
    let near = |client: &'static Client| {
        let names = [plain(client.id), plain(client.product)];
        Some((names.iter().filter_map(|name| distance(&word, name)).min()?, client.id))
    };
    let found: Vec<(usize, &str)> = clients().iter().filter_map(near).collect();
    let least = found.iter().map(|(far, _)| *far).min();
    found.into_iter().filter(|(far, _)| Some(*far) == least).map(|(_, id)| id).collect()
}

/// The edit distance of two names. None if they are not similar.
fn distance(word: &str, name: &str) -> Option<usize> {
    if word == name {
        return Some(0);
    }
    if word.len() >= SHORTEST_PART && name.contains(word) {
        return Some(1);
    }
    // Every third letter may be wrong.
    let most = word.chars().count().div_ceil(3);
    Some(strsim::osa_distance(word, name)).filter(|far| *far <= most)
}

/// Only the letters and digits of a name, in lower case.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_and_product_names_suggest_the_id() {
        let check = |word: &str, expected: &[&str]| assert_eq!(nearest(word), expected, "{word}");
        check("zde", &["zed"]);
        check("curser", &["cursor"]);
        check("VS Code", &["vscode"]);
        check("Visual Studio Code", &[]);
        check("claude", &["claude-code", "claude-desktop"]);
        check("GitHub Copilot", &["copilot-cli"]);
        check("droid", &["factory"]);
        check("q", &[]);
        check("", &[]);
    }
}
