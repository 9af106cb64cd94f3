//! Environment variables for a server: `-e KEY=VALUE`, `-e KEY` and `--env-file`.

use std::path::Path;

use mainstay_core::EnvVar;

use crate::context::Caller;
use crate::error::CliError;

/// Reads `-e KEY=VALUE`, or `-e KEY`, which takes the value from the caller's environment.
pub(crate) fn from_flag(flag: &str, caller: &Caller) -> Result<(String, EnvVar), CliError> {
    let (key, value) = match flag.split_once('=') {
        Some((key, value)) => (key, value.to_owned()),
        None => (flag, inherited(flag, caller)?),
    };
    check_key(key).map_err(|problem| CliError::usage(format!("-e {key}: {problem}")))?;
    Ok((key.to_owned(), EnvVar::new(value)))
}

/// Reads lines of `KEY=VALUE`. Empty lines and lines that begin with `#` are skipped; a value is
/// taken literally, quotes included, as container engines do.
pub(crate) fn from_file(file: &Path, text: &str) -> Result<Vec<(String, EnvVar)>, CliError> {
    let is_setting = |(_, line): &(usize, &str)| !line.is_empty() && !line.starts_with('#');
    let lines = text.lines().map(str::trim_start).enumerate().filter(is_setting);
    lines
        .map(|(index, line)| {
            let entry = line.split_once('=').ok_or("expected KEY=VALUE");
            entry
                .and_then(|(key, value)| {
                    check_key(key).map(|()| (key.to_owned(), EnvVar::new(value)))
                })
                .map_err(|problem| {
                    let line = index + 1;
                    CliError::usage(format!("`{}`, line {line}: {problem}", file.display()))
                })
        })
        .collect()
}

fn inherited(key: &str, caller: &Caller) -> Result<String, CliError> {
    let value = caller.var(key).ok_or_else(|| {
        let message = format!("-e {key}: the variable is not set in your environment");
        CliError::misuse(message, format!("give its value: `-e {key}=VALUE`"))
    })?;
    let text = value.to_str().map(str::to_owned);
    text.ok_or_else(|| CliError::usage(format!("-e {key}: its value is not valid UTF-8")))
}

fn check_key(key: &str) -> Result<(), &'static str> {
    match key {
        "" => Err("the name of the variable is missing"),
        _ if key.contains(char::is_whitespace) => {
            Err("the name of the variable contains white space")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(result: Result<Vec<(String, EnvVar)>, CliError>) -> String {
        match result {
            Ok(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| format!("{key}={}", value.reveal()));
                pairs.collect::<Vec<_>>().join(";")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_flag_gives_or_inherits_a_value() {
        let caller = Caller { env: vec![("TOKEN".into(), "hush".into())], cwd: None };
        let check = |flag: &str, expected: &str| {
            assert_eq!(shown(from_flag(flag, &caller).map(|pair| vec![pair])), expected);
        };
        check("A=1", "A=1");
        check("A=", "A=");
        check("A=b=c", "A=b=c");
        check("TOKEN", "TOKEN=hush");
        check("NONE", "-e NONE: the variable is not set in your environment");
        check("=1", "-e : the name of the variable is missing");
    }

    #[test]
    fn a_file_is_read_line_by_line() {
        let check = |text: &str, expected: &str| {
            assert_eq!(shown(from_file(Path::new("f.env"), text)), expected);
        };
        check("# comment\n\nA=1\n  B=\"two\"\n", "A=1;B=\"two\"");
        check("A=1\nB", "`f.env`, line 2: expected KEY=VALUE");
        check("export A=1", "`f.env`, line 1: the name of the variable contains white space");
        check("\n\n=x", "`f.env`, line 3: the name of the variable is missing");
    }
}
