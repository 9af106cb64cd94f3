//! Values of fields, independent of the format.

use serde::{Deserialize, Serialize};

/// The value of a field. Stored with its type; maps keep their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    Text(String),
    Flag(bool),
    Number(i64),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    /// Any other value (null, a fraction, a date), as it is written in the file.
    Other(String),
}

/// Fields in the order of the file.
pub type Fields = Vec<(String, Value)>;

impl Value {
    /// For display. A value that JSON lacks, such as a date, becomes a string.
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

    /// The type, for error messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Flag(_) => "a flag",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
            Self::Other(written) if written == "null" => "null",
            Self::Number(_) | Self::Other(_) => "a number",
        }
    }

    /// Compares values. The order of keys in a map is ignored.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(ours), Self::List(theirs)) => {
                ours.len() == theirs.len()
                    && ours.iter().zip(theirs).all(|(a, b)| a.is_equivalent(b))
            }
            (Self::Map(ours), Self::Map(theirs)) => {
                ours.len() == theirs.len()
                    && ours.iter().all(|(key, a)| {
                        theirs.iter().any(|(other, b)| other == key && a.is_equivalent(b))
                    })
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

    /// An object with the entry `name`, inside one object per key, the first key outermost.
    pub(super) fn object_at(keys: &[&str], name: &str, fields: &Fields) -> Self {
        let entry = Self::Map(vec![(name.to_owned(), Self::Map(fields.clone()))]);
        keys.iter().rev().fold(entry, |inner, key| Self::Map(vec![((*key).to_owned(), inner)]))
    }
}

/// How the owned fields of an entry that contains `found` have to change, so that they are as in `fields`: the new value
/// of each, or nothing for a field to remove.
pub(super) fn changes<'a>(
    found: &Fields,
    fields: &'a Fields,
    owned: &[&'a str],
) -> Vec<(&'a str, Option<&'a Value>)> {
    let is_owned = |name: &str| owned.contains(&name);
    let set = fields.iter().filter(|(name, _)| is_owned(name));
    let unset = owned.iter().filter(|name| fields.iter().all(|(field, _)| field != *name));
    let mut changes: Vec<(&str, Option<&Value>)> =
        set.map(|(name, value)| (name.as_str(), Some(value))).collect();
    changes.extend(unset.map(|name| (*name, None)));
    changes.retain(|(name, new)| {
        let mut old = found.iter().filter(|(field, _)| field == name).map(|(_, value)| value);
        // A field that exists twice is left to the edit, which refuses it.
        match (old.next(), old.next(), new) {
            (None, None, None) => false,
            (Some(old), None, Some(new)) => !old.is_equivalent(new),
            _ => true,
        }
    });
    changes
}
