//! Recognises the same call: the same tool with the same arguments, in whatever order they are written. Numbers are compared as
//! they are written, because different ones may be rounded to the same value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use mainstay_mcp::frame::Parsed;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Arguments that are nested deeper have no fingerprint.
const MAX_DEPTH: usize = 128;

/// Makes fingerprints that are valid in this process only. Two calls have the same one by chance with a probability of
/// 2^-128.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints([RandomState; 2]);

impl Fingerprints {
    /// The fingerprint of the parameters of a request, without `_meta`, which differs from one request to the next. None if
    /// they are ambiguous.
    pub(crate) fn of(&self, request: &Parsed) -> Option<u128> {
        let mut params: Members<'_> = serde_json::from_slice(request.params()?).ok()?;
        params.0.remove("_meta");
        let [high, low] = [&self.0[0], &self.0[1]].map(|state| {
            let mut hasher = state.build_hasher();
            hash_members(&params, MAX_DEPTH, &mut hasher)?;
            Some(hasher.finish())
        });
        Some((u128::from(high?) << 64) | u128::from(low?))
    }
}

/// The members of an object, each of which has another name.
struct Members<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object without repeated names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
            if members.insert(name.0, value).is_some() {
                return Err(A::Error::custom("a name is repeated"));
            }
        }
        Ok(Members(members))
    }
}

/// A text that is borrowed if nothing in it is escaped.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Every value begins with its kind and its length, so that no two values are hashed as the same bytes.
fn hash(value: &RawValue, depth: usize, into: &mut impl Hasher) -> Option<()> {
    let (text, depth) = (value.get(), depth.checked_sub(1)?);
    match text.as_bytes().first() {
        Some(b'{') => hash_members(&serde_json::from_str(text).ok()?, depth, into)?,
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            into.write_u8(b'[');
            into.write_usize(items.len());
            for item in items {
                hash(item, depth, into)?;
            }
        }
        Some(b'"') => {
            let Name(text) = serde_json::from_str(text).ok()?;
            hash_text(b'"', &text, into);
        }
        // A number, or a word.
        Some(_) | None => hash_text(b'0', text, into),
    }
    Some(())
}

fn hash_members(members: &Members<'_>, depth: usize, into: &mut impl Hasher) -> Option<()> {
    into.write_u8(b'{');
    into.write_usize(members.0.len());
    for (name, value) in &members.0 {
        hash_text(b'"', name, into);
        hash(value, depth, into)?;
    }
    Some(())
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
        for (one, other) in
            [("18446744073709551617", "18446744073709551618"), ("0.1", "0.10"), ("1e-400", "0.0")]
        {
            let of = |number: &str| format!(r#"{{"name":"a","arguments":{{"x":[{number}]}}}}"#);
            check(&of(one), &of(one), true);
            check(&of(one), &of(other), false);
        }
        let repeated = r#"{"name":"a","arguments":{"x":1,"x":2}}"#;
        assert_eq!(all.of(&call(repeated)), None, "it is ambiguous");
        let deep =
            format!(r#"{{"name":"a","arguments":{}1{}}}"#, "[".repeat(9999), "]".repeat(9999));
        assert_eq!(all.of(&call(&deep)), None);
    }
}
