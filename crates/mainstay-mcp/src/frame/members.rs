//! Single members of a JSON object, found in one pass without looking into the others.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Deserializer;
use serde_json::de::Read;
use serde_json::value::RawValue;

/// The values of the members with these names.
///
/// The whole text must be one JSON object. A name that stands there twice is an error: the two sides
/// of a conversation may disagree on which one counts.
pub fn members<'a, const N: usize>(
    object: &'a [u8],
    names: [&'static str; N],
) -> Result<[Option<&'a RawValue>; N], serde_json::Error> {
    read(Deserializer::from_slice(object), names)
}

/// As [`members`], of a text that is known to be UTF-8.
pub(super) fn members_of_str<'a, const N: usize>(
    object: &'a str,
    names: [&'static str; N],
) -> Result<[Option<&'a RawValue>; N], serde_json::Error> {
    read(Deserializer::from_str(object), names)
}

/// The string that a JSON value is, if it is one.
pub(crate) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let inner = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        return serde_json::from_str(value.get()).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

fn read<'a, R: Read<'a>, const N: usize>(
    mut text: Deserializer<R>,
    names: [&'static str; N],
) -> Result<[Option<&'a RawValue>; N], serde_json::Error> {
    let found = text.deserialize_map(Members(names))?;
    text.end()?;
    Ok(found)
}

struct Members<const N: usize>([&'static str; N]);

impl<'de, const N: usize> Visitor<'de> for Members<N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(place) = map.next_key_seed(Place(&self.0))? {
            let Some(place) = place else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if found[place].replace(map.next_value()?).is_some() {
                return Err(A::Error::duplicate_field(self.0[place]));
            }
        }
        Ok(found)
    }
}

/// A key's place among the names looked for.
struct Place<'a>(&'a [&'static str]);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'de>>(self, key: D) -> Result<Self::Value, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Place<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|name| *name == key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<[Option<&str>; 2]>) {
        let found = members(text.as_bytes(), ["a", "b"]).ok();
        assert_eq!(found.map(|found| found.map(|value| value.map(RawValue::get))), expected);
    }

    #[test]
    fn members_are_found_at_the_outer_level_only() {
        check(r#" {"x":{"a":1},"b": [ 2 ] ,"a":null} "#, Some([Some("null"), Some("[ 2 ]")]));
        check(r#"{"\u0061":1}"#, Some([Some("1"), None]));
        check(r#"{"x":"\"a\":1"}"#, Some([None, None]));
        check("{}", Some([None, None]));
    }

    #[test]
    fn what_is_no_object_or_ambiguous_is_refused() {
        for text in ["", "[1,2]", "null", r#"{"a":1} x"#, r#"{"a":1,"a":1}"#, r#"{"a":1"#, "{a:1}"]
        {
            check(text, None);
        }
    }

    #[test]
    fn strings_are_decoded() {
        let string = |text: &str| {
            let raw = RawValue::from_string(text.to_owned()).unwrap();
            super::string(&raw).map(Cow::into_owned)
        };
        assert_eq!(string(r#""a b""#).as_deref(), Some("a b"));
        assert_eq!(string(r#""a\u0062\"""#).as_deref(), Some("ab\""));
        assert_eq!(string(r#""""#).as_deref(), Some(""));
        for other in ["1", "null", "[]", r#""\ud800""#] {
            assert_eq!(string(other), None, "{other}");
        }
    }
}
