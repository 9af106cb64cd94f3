//! How values of entries are stored: with their kind and in their order.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::edit::{Fields, Value};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Stored {
    Text(String),
    Flag(bool),
    Number(i64),
    List(Vec<Stored>),
    Map(Vec<(String, Stored)>),
    Other(String),
}

/// For `#[serde(with)]` on fields.
pub(super) mod fields {
    use super::{Deserialize, Deserializer, Fields, Serialize, Serializer, load, store};

    pub(in super::super) fn serialize<S: Serializer>(
        fields: &Fields,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        store(fields).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Fields, D::Error> {
        Vec::deserialize(from).map(load)
    }
}

/// For `#[serde(with)]` on fields that may be missing.
pub(super) mod maybe_fields {
    use super::{Deserialize, Deserializer, Fields, Serialize, Serializer, load, store};

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(in super::super) fn serialize<S: Serializer>(
        fields: &Option<Fields>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        fields.as_ref().map(store).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Fields>, D::Error> {
        Option::<Vec<_>>::deserialize(from).map(|fields| fields.map(load))
    }
}

fn store(fields: &Fields) -> Vec<(String, Stored)> {
    fields.iter().map(|(name, value)| (name.clone(), Stored::from(value))).collect()
}

fn load(fields: Vec<(String, Stored)>) -> Fields {
    fields.into_iter().map(|(name, value)| (name, Value::from(value))).collect()
}

impl From<&Value> for Stored {
    fn from(value: &Value) -> Self {
        match value {
            Value::Text(text) => Self::Text(text.clone()),
            Value::Flag(flag) => Self::Flag(*flag),
            Value::Number(number) => Self::Number(*number),
            Value::List(values) => Self::List(values.iter().map(Self::from).collect()),
            Value::Map(fields) => Self::Map(store(fields)),
            Value::Other(text) => Self::Other(text.clone()),
        }
    }
}

impl From<Stored> for Value {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Text(text) => Self::Text(text),
            Stored::Flag(flag) => Self::Flag(flag),
            Stored::Number(number) => Self::Number(number),
            Stored::List(values) => Self::List(values.into_iter().map(Self::from).collect()),
            Stored::Map(fields) => Self::Map(load(fields)),
            Stored::Other(text) => Self::Other(text),
        }
    }
}
