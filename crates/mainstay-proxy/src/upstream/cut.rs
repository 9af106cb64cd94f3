//! Answers that were too long to keep: their two ends still tell which request they are for.

use serde_json::{Map, Value};

const KEY: &[u8] = b"\"id\"";

/// The id in the outermost object of a message of which these are the beginning and the end. An
/// unescaped `"id"` is never part of a longer string, so whatever completes it to an object is right.
pub(super) fn id(head: &[u8], tail: &[u8]) -> Option<u64> {
    places(head)
        .find_map(|place| id_in_head(head, place))
        .or_else(|| places(tail).find_map(|place| id_in_tail(tail, place)))
}

/// The members before it make an object, so it is the key of that object.
fn id_in_head(head: &[u8], place: usize) -> Option<u64> {
    let before = head[..place].trim_ascii_end();
    let before = before.strip_suffix(b",").unwrap_or(before);
    object(&[before, b"}"].concat())?;
    let value = head[place + KEY.len()..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let end = value.iter().position(|byte| !byte.is_ascii_digit())?;
    str::from_utf8(&value[..end]).ok()?.parse().ok()
}

/// The members from it on make an object, and with it the message ends.
fn id_in_tail(tail: &[u8], place: usize) -> Option<u64> {
    object(&[b"{", &tail[place..]].concat())?.get("id")?.as_u64()
}

fn object(text: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(text).ok()
}

fn places(text: &[u8]) -> impl Iterator<Item = usize> {
    text.windows(KEY.len()).enumerate().filter(|(_, bytes)| *bytes == KEY).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    fn check(head: &str, tail: &str, expected: Option<u64>) {
        assert_eq!(super::id(head.as_bytes(), tail.as_bytes()), expected, "{head} ... {tail}");
    }

    #[test]
    fn an_id_is_found_at_either_end() {
        check(r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"te"#, r#"xxx"}]}}"#, Some(7));
        check(r#"{ "id" : 7 , "result": "xxx"#, r#"xxx"}"#, Some(7));
        check(r#"{"result":{"content":[{"te"#, r#"xxx"}]},"jsonrpc":"2.0","id":7}"#, Some(7));
        check(r#"{"result":{"content":[{"te"#, r#"xxx"}]},"id":7, "jsonrpc":"2.0" }"#, Some(7));
    }

    #[test]
    fn an_inner_id_is_none_of_ours() {
        check(r#"{"result":{"id":7,"text":"xxx"#, r#"xxx","id":7}}"#, None);
        check(r#"{"result":"\"id\":7,xxx"#, r#"xxx,\"id\":7}"}"#, None);
        check(r#"{"result":["id",7,"xxx"#, r#"xxx","id",7]}"#, None);
        check(r#"{"jsonrpc":"2.0","id":"7","result":"xxx"#, r#"xxx"}"#, None);
        check("junk", "more junk", None);
    }
}
