//! What fields hold, whatever the format.

use serde::{Deserialize, Serialize};

/// What a field holds. It is stored with its kind, and maps in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    Text(String),
    Flag(bool),
    Number(i64),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    /// What none of the others can hold (null, a fraction, a date), as it is written in the file.
    Other(String),
}

/// Fields of an entry, in the order in which they are written.
pub type Fields = Vec<(String, Value)>;

impl Value {
    /// As JSON, to be shown. What JSON does not have, a date for one, becomes a text.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match self {
            Self::Text(text) => Json::from(text.as_str()),
            Self::Flag(flag) => Json::from(*flag),
            Self::Number(number) => Json::from(*number),
            Self::List(values) => values.iter().map(Self::to_json).collect(),
            Self::Map(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), value.to_json())).collect()
            }
            Self::Other(written) => {
                serde_json::from_str(written).unwrap_or_else(|_| Json::from(written.as_str()))
            }
        }
    }

    /// Whether both mean the same: the order of a map's keys does not count.
    pub(super) fn means(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(ours), Self::List(theirs)) => {
                ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a.means(b))
            }
            (Self::Map(ours), Self::Map(theirs)) => {
                ours.len() == theirs.len()
                    && ours
                        .iter()
                        .all(|(key, a)| theirs.iter().any(|(other, b)| other == key && a.means(b)))
            }
            (
                Self::Text(_)
                | Self::Flag(_)
                | Self::Number(_)
                | Self::List(_)
                | Self::Map(_)
                | Self::Other(_),
                _,
            ) => self == other,
        }
    }

    /// The value inside of one map per key, the first key outermost.
    pub(super) fn within(self, keys: &[&str]) -> Self {
        keys.iter().rev().fold(self, |inner, key| Self::Map(vec![((*key).to_owned(), inner)]))
    }
}

/// What to do with the owned fields of an existing entry: those to set, in order, and those to take out.
pub(super) struct Changes<'a> {
    pub(super) set: Vec<(&'a str, &'a Value)>,
    pub(super) unset: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    pub(super) fn of(fields: &'a Fields, owned: &[&'a str]) -> Self {
        let set: Vec<_> = fields
            .iter()
            .filter(|(name, _)| owned.contains(&name.as_str()))
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        let unset = owned
            .iter()
            .copied()
            .filter(|name| set.iter().all(|(field, _)| field != name))
            .collect();
        Self { set, unset }
    }
}
