//! Names of servers and runs.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::text_newtype;

/// The name of a server: a DNS label, because it becomes part of a URL and of container names.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct ServerName(#[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))] String);

/// Why a text is not a [`ServerName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is not a valid server name: use 1 to 63 lower-case letters, digits and hyphens, \
     with a letter or digit at both ends"
)]
pub struct NameError {
    given: String,
}

text_newtype!(ServerName, NameError);

impl FromStr for ServerName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let ok = (1..=63).contains(&text.len())
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if ok { Ok(Self(text.to_owned())) } else { Err(NameError { given: text.to_owned() }) }
    }
}

/// A run of a server: its generation number. It increases with every start and is never
/// used twice for the same server, so events of an older run can be recognized.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct RunId(u64);

impl RunId {
    pub const fn new(generation: u64) -> Self {
        Self(generation)
    }

    pub const fn generation(self) -> u64 {
        self.0
    }

    /// The run that follows this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_labels_are_names() {
        for good in ["a", "7", "time", "my-server-2", &"x".repeat(63)] {
            assert_eq!(good.parse::<ServerName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "a/b", "a b", "ä", &"x".repeat(64)] {
            let error = bad.parse::<ServerName>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{bad}` is not a valid server name")), "{error}");
        }
    }
}
