//! What fields hold, whatever the format.

/// What a field holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Flag(bool),
    Number(i64),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    /// What none of the others can hold (null, a fraction, a date), as it is written in the file.
    Other(String),
}

/// Fields of an entry that are ours, in the order in which they are written.
pub type Fields = Vec<(String, Value)>;

impl Value {
    /// The value as JSON, to be shown.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) | Self::Other(text) => text.as_str().into(),
            Self::Flag(flag) => (*flag).into(),
            Self::Number(number) => (*number).into(),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Map(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), value.to_json())).collect()
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
