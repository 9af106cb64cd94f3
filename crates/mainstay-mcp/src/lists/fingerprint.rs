//! One number for the items of a list, the same however they are written.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

/// Collects the items of a list.
#[derive(Debug, Default)]
pub(super) struct Items(Vec<u64>);

impl Items {
    pub(super) fn add(&mut self, item: &Value) {
        let mut hasher = DefaultHasher::new();
        hash(item, &mut hasher);
        self.0.push(hasher.finish());
    }

    /// The fingerprint of all items, in whatever order they came.
    pub(super) fn fingerprint(mut self) -> u64 {
        self.0.sort_unstable();
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }
}

/// Keys are sorted here: whether [`serde_json::Map`] sorts them is for other crates to decide.
fn hash(value: &Value, hasher: &mut DefaultHasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        Value::Null => {}
        Value::Bool(value) => value.hash(hasher),
        Value::Number(value) => value.to_string().hash(hasher),
        Value::String(value) => value.hash(hasher),
        Value::Array(values) => {
            values.len().hash(hasher);
            for value in values {
                hash(value, hasher);
            }
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| *key);
            members.len().hash(hasher);
            for (key, value) in members {
                key.hash(hasher);
                hash(value, hasher);
            }
        }
    }
}
