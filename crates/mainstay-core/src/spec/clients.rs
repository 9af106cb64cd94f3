//! Which clients get an entry for a server, and when entries are refreshed.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings for a server's entries in clients' files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientSettings {
    /// The ids of the clients that get an entry. Null for those that were chosen for all servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only: Option<BTreeSet<String>>,
    /// When entries are removed and added again. Null for the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<RefreshMode>,
}

/// When a server's entry is removed and added again, so that its clients reconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RefreshMode {
    /// When its sessions cannot be kept.
    #[default]
    Auto,
    /// Around every restart.
    Always,
    /// Never.
    Never,
}

impl RefreshMode {
    pub const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// The mode as the word that flags, files and JSON carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

impl fmt::Display for RefreshMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` must be `auto`, `always` or `never`")]
pub struct NoSuchMode(String);

impl FromStr for RefreshMode {
    type Err = NoSuchMode;

    fn from_str(word: &str) -> Result<Self, NoSuchMode> {
        let found = Self::ALL.into_iter().find(|mode| mode.as_str() == word);
        found.ok_or_else(|| NoSuchMode(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_written() {
        for mode in RefreshMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        let error = "often".parse::<RefreshMode>().unwrap_err();
        assert_eq!(error.to_string(), "`often` must be `auto`, `always` or `never`");
    }

    #[test]
    fn no_client_is_not_the_same_as_the_chosen_ones() {
        let read = |json: &str| serde_json::from_str::<ClientSettings>(json).unwrap();
        assert_eq!(read("{}").only, None);
        assert_eq!(read(r#"{"only":[]}"#).only, Some(BTreeSet::new()));
        let none = ClientSettings { only: Some(BTreeSet::new()), refresh: None };
        assert_eq!(serde_json::to_string(&none).unwrap(), r#"{"only":[]}"#);
    }
}
