//! Redacts possible secrets in the commands and URLs of an exported file.
//!
//! Every local user can read command lines, but many servers take secrets there. Secrets are recognized by
//! their names; in doubt, a value is redacted.

use std::borrow::Cow;

/// Written in place of a value. A file that contains it is not imported.
pub(super) const PLACEHOLDER: &str = "HIDDEN-BY-MAINSTAY";

/// Words in the names of secrets.
const SECRET_WORDS: [&str; 16] = [
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "key",
    "passphrase",
    "passwd",
    "password",
    "pat",
    "pwd",
    "secret",
    "secrets",
    "token",
];

/// Prefixes of the tokens of well-known services, and the minimum length of such a token.
const TOKEN_PREFIXES: [&str; 10] =
    ["sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "mst_"];
const MIN_TOKEN_LENGTH: usize = 20;

/// A name that ends with one of these words refers to a secret, but does not hold it.
const NON_SECRET_SUFFIXES: [&str; 9] =
    ["dir", "env", "file", "id", "name", "path", "type", "uri", "url"];

/// Redacts the arguments of a command.
pub(super) fn arguments(arguments: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    let mut is_value = false;
    for argument in arguments {
        let is_option = argument.starts_with('-');
        if is_value && !is_option {
            shown.push(PLACEHOLDER.to_owned());
            is_value = false;
            continue;
        }
        is_value = is_option && !argument.contains('=') && is_secret(argument);
        if argument.len() >= MIN_TOKEN_LENGTH
            && TOKEN_PREFIXES.iter().any(|start| argument.starts_with(start))
        {
            shown.push(PLACEHOLDER.to_owned());
            continue;
        }
        shown.push(assignment(argument).unwrap_or_else(|| url(argument).into_owned()));
    }
    shown
}

/// Redacts the user, the password and the query values of a URL. Other text is unchanged.
pub(super) fn url(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return Cow::Borrowed(text) };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let (path, query) =
        rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    let mut shown = format!("{scheme}://");
    match authority.rsplit_once('@') {
        Some((_, host)) => shown.extend([PLACEHOLDER, "@", host]),
        None => shown.push_str(authority),
    }
    shown.push_str(path);
    let values = query.map(|query| {
        query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) => format!("{name}={PLACEHOLDER}"),
            None => PLACEHOLDER.to_owned(),
        })
    });
    if let Some(values) = values {
        shown.push('?');
        shown.push_str(&values.collect::<Vec<_>>().join("&"));
    }
    Cow::Owned(shown)
}

/// Redacts `NAME=VALUE` and `Name: value`, if the name is a secret's.
fn assignment(argument: &str) -> Option<String> {
    let at = argument.find(['=', ':'])?;
    let (name, rest) = argument.split_at(at);
    if rest.starts_with("://") || rest.len() == 1 || !is_secret(name) {
        return None;
    }
    let blank = if rest[1..].starts_with(' ') { " " } else { "" };
    Some(format!("{name}{}{blank}{PLACEHOLDER}", &rest[..1]))
}

fn is_secret(name: &str) -> bool {
    let name = separated(name).to_ascii_lowercase();
    let words: Vec<&str> =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let names_no_value = words.last().is_some_and(|last| NON_SECRET_SUFFIXES.contains(last));
    !names_no_value && words.iter().any(|word| SECRET_WORDS.contains(word))
}

/// `accessToken` as `access Token`.
fn separated(name: &str) -> String {
    let mut separated = String::new();
    let mut was_lower = false;
    for c in name.chars() {
        if was_lower && c.is_ascii_uppercase() {
            separated.push(' ');
        }
        was_lower = c.is_ascii_lowercase();
        separated.push(c);
    }
    separated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &[&str], expected: &[&str]) {
        let given: Vec<String> = given.iter().map(|&text| text.to_owned()).collect();
        assert_eq!(arguments(&given), expected);
    }

    #[test]
    fn values_with_the_name_of_a_secret_are_redacted() {
        check(&["--token", "s3", "x"], &["--token", PLACEHOLDER, "x"]);
        check(
            &["--api-key=s3", "API_TOKEN=s3"],
            &["--api-key=HIDDEN-BY-MAINSTAY", "API_TOKEN=HIDDEN-BY-MAINSTAY"],
        );
        check(
            &["--header", "Authorization: Bearer s3"],
            &["--header", "Authorization: HIDDEN-BY-MAINSTAY"],
        );
        check(&["--accessToken", "s3"], &["--accessToken", PLACEHOLDER]);
        check(&["--authToken=s3"], &["--authToken=HIDDEN-BY-MAINSTAY"]);
        check(
            &["ghp_abcdefghijklmnopqrstuvwxyz0123456789", "sk-short"],
            &[PLACEHOLDER, "sk-short"],
        );
        check(&["--password", "--verbose"], &["--password", "--verbose"]);
        check(
            &["postgres://me:s3@host/db?sslkey=s3"],
            &["postgres://HIDDEN-BY-MAINSTAY@host/db?sslkey=HIDDEN-BY-MAINSTAY"],
        );
    }

    #[test]
    fn other_arguments_stay() {
        let plain = [
            "-y",
            "@scope/server",
            "--key-file",
            "/k",
            "--port=80",
            "C:/x",
            "--keyboard",
            "us",
            "a=b",
            "http://h/p",
        ];
        check(&plain, &plain);
    }

    #[test]
    fn a_url_keeps_the_names_of_its_query() {
        let check = |given: &str, shown: &str| assert_eq!(url(given), shown);
        check(
            "https://h/mcp?key=s3&v=1&flag",
            "https://h/mcp?key=HIDDEN-BY-MAINSTAY&v=HIDDEN-BY-MAINSTAY&HIDDEN-BY-MAINSTAY",
        );
        check("https://h/mcp", "https://h/mcp");
        check("https://h?x=a@b", "https://h?x=HIDDEN-BY-MAINSTAY");
        check("not a url?x=1", "not a url?x=1");
    }
}
