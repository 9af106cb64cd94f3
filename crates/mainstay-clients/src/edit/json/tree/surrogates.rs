//! Escaped halves of surrogate pairs.
//!
//! JavaScript writes such halves where it cut a text in the middle of an emoji, and reads them back, so a file with them
//! is sound for its client. The scanner refuses them.

/// A text of the same length in which each escaped half is a replacement character. The ranges found in it hold for
/// the true text, which is the one that is spliced.
pub(super) fn mend(text: &str) -> String {
    let mut mended = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        let (len, is_half) = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, false),
            (Some(0xd800..=0xdfff), _) => (6, true),
            (Some(_), _) => (6, false),
            (None, _) => (1 + escape[1..].chars().next().map_or(0, char::len_utf8), false),
        };
        mended.push_str(plain);
        mended.push_str(if is_half { "\\ufffd" } else { &escape[..len] });
        rest = &escape[len..];
    }
    mended + rest
}

/// The code unit of the escape (`\u` and four digits) that a text begins with.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}
