//! Messages that were too long to keep: their two ends may still show what they were.

use serde_json::{Map, Value};

use crate::frame::Id;

/// What is known of a message that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The answer to this request.
    Answer(u64),
    /// Maybe an answer, but what it is for was cut out.
    SomeAnswer,
    /// A request or a notification of the server, or no message at all.
    NoAnswer,
}

/// Reads the beginning and the end of a message.
pub fn read(head: &[u8], tail: &[u8]) -> Cut {
    if !matches!(head.trim_ascii_start().first(), Some(b'{' | b'[')) || has_method(head, tail) {
        return Cut::NoAnswer;
    }
    id(head, tail).map_or(Cut::SomeAnswer, Cut::Answer)
}

/// The id in the outermost object.
fn id(head: &[u8], tail: &[u8]) -> Option<u64> {
    let in_head = |text: &[u8]| {
        let end = text.iter().position(|byte| b",} \t\r\n".contains(byte))?;
        number(str::from_utf8(&text[..end]).ok()?)
    };
    members_in_head(head, b"\"id\"").find_map(in_head).or_else(|| {
        members_in_tail(tail, b"\"id\"").find_map(|all| number(&all.get("id")?.to_string()))
    })
}

fn number(json: &str) -> Option<u64> {
    Id::new(json)?.as_u64()
}

/// Whether the outermost object has a method, which no answer has.
fn has_method(head: &[u8], tail: &[u8]) -> bool {
    const KEY: &[u8] = b"\"method\"";
    members_in_head(head, KEY).next().is_some() || members_in_tail(tail, KEY).next().is_some()
}

/// What follows each place where this is a key of the outermost object: there, the members before
/// it make an object. An unescaped quoted word is never part of a longer string, so whatever
/// completes it to an object is right.
fn members_in_head<'a>(head: &'a [u8], key: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    places(head, key).filter_map(move |place| {
        let before = head[..place].trim_ascii_end();
        let before = before.strip_suffix(b",").unwrap_or(before);
        object(&[before, b"}"].concat())?;
        let after = head[place + key.len()..].trim_ascii_start().strip_prefix(b":")?;
        Some(after.trim_ascii_start())
    })
}

/// The members from each place on where this is a key of the outermost object: with those, the
/// message ends.
fn members_in_tail<'a>(
    tail: &'a [u8],
    key: &'a [u8],
) -> impl Iterator<Item = Map<String, Value>> + 'a {
    places(tail, key).filter_map(|place| object(&[b"{", &tail[place..]].concat()))
}

fn object(text: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(text).ok()
}

fn places<'a>(text: &'a [u8], key: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    text.windows(key.len()).enumerate().filter(move |(_, bytes)| *bytes == key).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &str, tail: &str, expected: Cut) {
        assert_eq!(read(head.as_bytes(), tail.as_bytes()), expected, "{head} ... {tail}");
    }

    #[test]
    fn an_id_is_found_at_either_end() {
        let seven = Cut::Answer(7);
        check(r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"te"#, r#"xxx"}]}}"#, seven);
        check(r#"{ "id" : 7 , "result": "xxx"#, r#"xxx"}"#, seven);
        check(r#"{"result":{"content":[{"te"#, r#"xxx"}]},"jsonrpc":"2.0","id":7}"#, seven);
        check(r#"{"result":{"content":[{"te"#, r#"xxx"}]},"id":7, "jsonrpc":"2.0" }"#, seven);
    }

    #[test]
    fn an_id_may_be_written_as_a_floating_point_number() {
        let id = Cut::Answer(1 << 32);
        check(r#"{"id":4.294967296e9,"result":"xxx"#, r#"xxx"}"#, id);
        check(r#"{"result":"xxx"#, r#"xxx","id":4294967296.0}"#, id);
        check(r#"{"id":1.5,"result":"xxx"#, r#"xxx"}"#, Cut::SomeAnswer);
        check(r#"{"id":42"#, r#"xxx"}"#, Cut::SomeAnswer);
    }

    #[test]
    fn an_inner_id_is_none_of_ours() {
        let some = Cut::SomeAnswer;
        check(r#"{"result":{"id":7,"text":"xxx"#, r#"xxx","id":7}}"#, some);
        check(r#"{"result":"\"id\":7,xxx"#, r#"xxx,\"id\":7}"}"#, some);
        check(r#"{"result":["id",7,"xxx"#, r#"xxx","id",7]}"#, some);
        check(r#"{"jsonrpc":"2.0","id":"7","result":"xxx"#, r#"xxx"}"#, some);
        check(r#"{"result":{"method":"x","text":"xxx"#, r#"xxx","method":"x"}}"#, some);
        check(r#"[{"jsonrpc":"2.0","id":7,"result":"xxx"#, r#"xxx"}]"#, some);
    }

    #[test]
    fn what_the_server_asks_or_prints_answers_nothing() {
        let no = Cut::NoAnswer;
        check(r#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","par"#, "xxx\"}}", no);
        check(r#"{"jsonrpc":"2.0","id":7,"params":{"text":"xxx"#, r#"xxx"},"method":"a/b"}"#, no);
        check(r#"{"method":"notifications/message","params":{"te"#, r#"xxx"}}"#, no);
        check("junk", "more junk", no);
    }
}
