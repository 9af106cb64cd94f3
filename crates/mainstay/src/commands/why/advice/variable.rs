//! Finds the name of a missing environment variable in the last lines of a server.

use mainstay_core::ServerName;

use crate::text::plain_line;

/// Texts about something that is missing, in lower case.
const CUES: [&str; 12] = [
    "keyerror",
    "not set",
    "unset",
    "must be set",
    "is required",
    "is missing",
    "missing",
    "not defined",
    "undefined",
    "not provided",
    "not found",
    "is not present",
];

/// Texts about the environment, in lower case. With one of them, a name needs no underscore.
const ENVIRONMENT: [&str; 4] = ["keyerror", "environment", "env var", "process.env"];

/// What to do about a variable that is not set, if the last lines name one.
pub(super) fn advice(server: &ServerName, lines: &[String]) -> Option<String> {
    let name = lines.iter().rev().find_map(|line| unset(line))?;
    Some(format!(
        "it seems to need the variable `{name}`: set it, and pass it on with `-e {name}` \
         (`mainstay run {server} --replace -e {name} ...`)"
    ))
}

/// The variable that a line complains about.
fn unset(line: &str) -> Option<String> {
    let line = plain_line(line);
    let lower = line.to_lowercase();
    if !CUES.iter().any(|cue| lower.contains(cue)) {
        return None;
    }
    let of_environment = ENVIRONMENT.iter().any(|word| lower.contains(word));
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.find(|word| is_variable(word, of_environment)).map(str::to_owned)
}

fn is_variable(word: &str, of_environment: bool) -> bool {
    let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let level = ["ERROR", "WARN", "WARNING", "INFO", "DEBUG", "FATAL", "CRITICAL", "MCP"];
    word.len() > 2
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(upper)
        && (word.trim_matches('_').contains('_') || of_environment)
        && !level.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_missing_is_named() {
        let check = |line: &str, expected: Option<&str>| {
            assert_eq!(unset(line).as_deref(), expected, "{line}");
        };
        check("KeyError: 'API_KEY'", Some("API_KEY"));
        check("KeyError: 'TOKEN'", Some("TOKEN"));
        check("Error: API_KEY is not set", Some("API_KEY"));
        check("ERROR missing environment variable: GITHUB_TOKEN", Some("GITHUB_TOKEN"));
        check("BRAVE_API_KEY environment variable is required", Some("BRAVE_API_KEY"));
        check("thread 'main': environment variable not found: HOME_DIR", Some("HOME_DIR"));
        check("KeyError: 'name'", None);
        check("ERROR: file not found", None);
        check("API_KEY accepted", None);
        check("ERROR_CODE 5", None);
    }

    #[test]
    fn the_last_line_with_a_variable_wins() {
        let lines = ["A_KEY is not set", "B_KEY is not set", "bye"].map(str::to_owned);
        let advice = advice(&"time".parse().unwrap(), &lines).unwrap();
        assert!(advice.contains("`-e B_KEY`"), "{advice}");
        assert_eq!(super::advice(&"time".parse().unwrap(), &[]), None);
    }
}
