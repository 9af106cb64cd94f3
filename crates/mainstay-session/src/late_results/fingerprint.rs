//! Recognises the same call: the same tool with the same arguments, in whatever order and form they are written.

use std::hash::{BuildHasher, Hasher, RandomState};

use mainstay_mcp::frame::Parsed;
use serde_json::Value;

/// Makes fingerprints that are valid in this process only. Two calls have the same one by chance with a probability of
/// 2^-128.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints([RandomState; 2]);

impl Fingerprints {
    /// The fingerprint of the parameters of a request, without `_meta`, which differs from one request to the next.
    pub(crate) fn of(&self, request: &Parsed) -> Option<u128> {
        let mut params: Value = serde_json::from_slice(request.params()?).ok()?;
        params.as_object_mut()?.remove("_meta");
        if !is_exact(&params) {
            return None;
        }
        let [high, low] = [&self.0[0], &self.0[1]].map(|state| {
            let mut hasher = state.build_hasher();
            hash(&params, &mut hasher);
            hasher.finish()
        });
        Some((u128::from(high) << 64) | u128::from(low))
    }
}

/// Whether different numbers are different here: large ones are rounded when they are read.
fn is_exact(value: &Value) -> bool {
    const LARGE: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => {
            number.is_u64() || number.is_i64() || number.as_f64().is_some_and(|it| it.abs() < LARGE)
        }
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(members) => members.values().all(is_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// Every value begins with its kind and its length, so that no two values are hashed as the same bytes.
fn hash(value: &Value, into: &mut impl Hasher) {
    match value {
        Value::Null => into.write_u8(0),
        Value::Bool(value) => into.write(&[1, u8::from(*value)]),
        Value::Number(number) => hash_text(2, &number.to_string(), into),
        Value::String(text) => hash_text(3, text, into),
        Value::Array(items) => {
            into.write_u8(4);
            into.write_usize(items.len());
            for item in items {
                hash(item, into);
            }
        }
        Value::Object(members) => {
            into.write_u8(5);
            into.write_usize(members.len());
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| *key);
            for (key, value) in members {
                hash_text(3, key, into);
                hash(value, into);
            }
        }
    }
}

fn hash_text(kind: u8, text: &str, into: &mut impl Hasher) {
    into.write_u8(kind);
    into.write_usize(text.len());
    into.write(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(params: &str) -> Parsed {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        Parsed::read(text.into()).unwrap()
    }

    #[test]
    fn the_same_call_has_the_same_fingerprint_however_it_is_written() {
        let all = Fingerprints::default();
        let check = |one: &str, other: &str, is_same: bool| {
            assert_eq!(all.of(&call(one)) == all.of(&call(other)), is_same, "{one} {other}");
        };
        let plain = r#"{"name":"a","arguments":{"x":1,"y":["b",null]}}"#;
        check(plain, r#"{ "arguments": {"y":["\u0062",null],"x":1}, "name":"a" }"#, true);
        check(
            plain,
            r#"{"name":"a","arguments":{"x":1,"y":["b",null]},"_meta":{"progressToken":1}}"#,
            true,
        );
        check(plain, r#"{"name":"b","arguments":{"x":1,"y":["b",null]}}"#, false);
        check(plain, r#"{"name":"a","arguments":{"x":"1","y":["b",null]}}"#, false);
        check(plain, r#"{"name":"a","arguments":{"x":1,"y":["b"]}}"#, false);
        check(plain, r#"{"name":"a","arguments":{"x":1,"y":[null,"b"]}}"#, false);
        check(
            r#"{"name":"a","arguments":{"x":{"y":1}}}"#,
            r#"{"name":"a","arguments":{"x":{},"y":1}}"#,
            false,
        );
        check(r#"{"name":"a","arguments":{"_meta":1}}"#, r#"{"name":"a","arguments":{}}"#, false);
        check(r#"{"name":"a"}"#, r#"{"name":"a","arguments":{}}"#, false);
        assert_eq!(all.of(&call("[1]")), None);
        let large = r#"{"name":"a","arguments":{"x":[18446744073709551617]}}"#;
        assert_eq!(all.of(&call(large)), None, "it cannot be told from others");
    }
}
