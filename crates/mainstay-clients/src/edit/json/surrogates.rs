//! Escaped surrogates without their other half, such as `\ud83d`.
//!
//! JavaScript writes them where it cut a string in the middle of an emoji, and reads them back, so a file with them is
//! valid for its client. `jsonc-parser` rejects them.

/// A text of the same length in which each lone surrogate is a replacement character. Byte ranges in it are those of the
/// original text.
pub(super) fn replace_lone(text: &str) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        let (len, is_lone) = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, false),
            (Some(0xd800..=0xdfff), _) => (6, true),
            (Some(_), _) => (6, false),
            (None, _) => (1 + escape[1..].chars().next().map_or(0, char::len_utf8), false),
        };
        replaced.push_str(plain);
        replaced.push_str(if is_lone { "\\ufffd" } else { &escape[..len] });
        rest = &escape[len..];
    }
    replaced + rest
}

/// The code unit of the escape (`\u` and four digits) at the start of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}
