//! Settings of an instance: `config.toml` in its config directory.
//!
//! ```toml
//! listen = ["127.0.0.1:7433", "172.17.0.1:7433"]
//! allowed-hosts = ["box.lan"]
//! admit-root = true
//! allow-other-users = false
//! refresh = "auto"
//! ```
//!
//! The file is optional. Unknown keys and invalid values are errors with line and column. A daemon reads it when it
//! starts.

use std::io::{
    self,
    ErrorKind::{NotADirectory, NotFound},
};
use std::path::{Path, PathBuf};

use mainstay_api::{Listen, ListenError};
use mainstay_core::RefreshMode;
use serde::de::{self, Deserialize, Deserializer};

/// The content of the file; missing keys have defaults.
#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// Where the daemon listens for MCP clients.
    #[serde(deserialize_with = "listen")]
    pub(crate) listen: Option<Listen>,
    /// Hosts that requests with a token may name.
    pub(crate) allowed_hosts: Vec<String>,
    /// Whether root may call servers.
    pub(crate) admit_root: Option<bool>,
    /// Whether all local users may call servers.
    pub(crate) allow_other_users: Option<bool>,
    /// When entries in clients' files are removed and added again.
    pub(crate) refresh: Option<RefreshMode>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("`{}` cannot be read: {problem}", file.display())]
    Unreadable { file: PathBuf, problem: io::Error },
    #[error("`{}` cannot be used: {problem}", file.display())]
    Malformed {
        file: PathBuf,
        /// What is wrong, with the line it is in.
        problem: String,
        /// The same in one line.
        brief: String,
    },
}

impl SettingsError {
    /// The error in one line.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Unreadable { .. } => self.to_string(),
            Self::Malformed { file, brief, .. } => {
                format!("`{}` cannot be used: {brief}", file.display())
            }
        }
    }
}

impl Settings {
    /// Reads a file; none if there is none.
    pub(crate) fn read(file: &Path) -> Result<Option<Self>, SettingsError> {
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse(file, &text).map(Some),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
            Err(problem) => Err(SettingsError::Unreadable { file: file.to_owned(), problem }),
        }
    }

    fn parse(file: &Path, text: &str) -> Result<Self, SettingsError> {
        toml::from_str(text).map_err(|error| SettingsError::Malformed {
            file: file.to_owned(),
            problem: error.to_string().trim_end().to_owned(),
            brief: brief(text, &error),
        })
    }
}

/// What is wrong with a text, and where, in one line.
fn brief(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return message };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}: {message}")
}

/// One address, or several.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "expected an address in quotes, or a list of them")]
enum Addresses {
    One(String),
    Several(Vec<String>),
}

fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Listen>, D::Error> {
    let listen = match Addresses::deserialize(from)? {
        Addresses::One(text) => Listen::parse([&*text]),
        Addresses::Several(texts) => Listen::parse(texts.iter().map(String::as_str)),
    };
    let message = |error: ListenError| de::Error::custom(format!("{error}: {}", error.help()));
    listen.map(Some).map_err(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(Path::new("/c/config.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn all_settings_are_read() {
        assert_eq!(parse(""), Ok(Settings::default()));
        let both = "# where\nlisten = \"[::1]:7000\"\nrefresh = \"never\"\n";
        let expected = Settings {
            listen: Some("[::1]:7000".parse().unwrap()),
            refresh: Some(RefreshMode::Never),
            ..Settings::default()
        };
        assert_eq!(parse(both), Ok(expected));
        let access = "listen = ['127.0.0.1:1', '0.0.0.0:2']\nallowed-hosts = ['box.lan']\n\
                      admit-root = false\nallow-other-users = true\n";
        let expected = Settings {
            listen: Some("127.0.0.1:1,0.0.0.0:2".parse().unwrap()),
            allowed_hosts: vec!["box.lan".to_owned()],
            admit_root: Some(false),
            allow_other_users: Some(true),
            refresh: None,
        };
        assert_eq!(parse(access), Ok(expected));
    }

    #[test]
    fn errors_name_line_and_column() {
        insta::assert_snapshot!(parse("listen = '0.0.0.0:7433'").unwrap_err(), @"
        `/c/config.toml` cannot be used: TOML parse error at line 1, column 10
          |
        1 | listen = '0.0.0.0:7433'
          |          ^^^^^^^^^^^^^^
        `0.0.0.0:7433` may be reached by other machines: put a loopback address such as 127.0.0.1:7433 first; further addresses may be public, and requests there need a token (`mainstay token create`)
        ");
        insta::assert_snapshot!(parse("\nlisten = 7433").unwrap_err(), @"
        `/c/config.toml` cannot be used: TOML parse error at line 2, column 10
          |
        2 | listen = 7433
          |          ^^^^
        expected an address in quotes, or a list of them
        ");
        insta::assert_snapshot!(parse("refresh = 'often'").unwrap_err(), @"
        `/c/config.toml` cannot be used: TOML parse error at line 1, column 11
          |
        1 | refresh = 'often'
          |           ^^^^^^^
        unknown variant `often`, expected one of `auto`, `always`, `never`
        ");
        insta::assert_snapshot!(parse("refresh = 'auto'\nlisten-at = ''").unwrap_err(), @"
        `/c/config.toml` cannot be used: TOML parse error at line 2, column 1
          |
        2 | listen-at = ''
          | ^^^^^^^^^
        unknown field `listen-at`, expected one of `listen`, `allowed-hosts`, `admit-root`, `allow-other-users`, `refresh`
        ");
        insta::assert_snapshot!(parse("refresh =").unwrap_err(), @"
        `/c/config.toml` cannot be used: TOML parse error at line 1, column 10
          |
        1 | refresh =
          |          ^
        string values must be quoted, expected literal string
        ");
    }

    #[test]
    fn an_error_fits_into_one_line() {
        let line = |text| Settings::parse(Path::new("/c"), text).unwrap_err().line();
        assert_eq!(
            line("\nlisten = 7433"),
            "`/c` cannot be used: line 2, column 10: expected an address in quotes, or a list of them"
        );
        assert!(line("a = 'ü").starts_with("`/c` cannot be used: line 1, column "));
        let dir = tempfile::tempdir().unwrap();
        let unreadable = Settings::read(dir.path()).unwrap_err();
        assert_eq!(unreadable.line(), unreadable.to_string());
    }

    #[test]
    fn a_missing_file_has_no_settings() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Settings::read(&dir.path().join("config.toml")).unwrap(), None);
        let error = Settings::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("cannot be read: "), "{error}");
    }
}
