//! Makes untrusted text safe for a terminal.
//!
//! The output and the names of a server may contain sequences that move the cursor, rename the window, type
//! into the shell or reorder text. These functions remove or replace them.

use std::borrow::Cow;

/// Replaces a character that is not shown.
const REPLACEMENT: &str = "\u{fffd}";

/// Resets all colours.
const RESET: &str = "\u{1b}[0m";

/// One line without escape sequences, control characters (but tabs), and characters that hide or reorder text.
pub(crate) fn plain_line(text: &str) -> String {
    plain(text).replace('\n', REPLACEMENT)
}

/// As [`plain_line`], but keeps line ends and colours, which are reset at the end of each line.
pub(crate) fn colored_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        colored_line(line, &mut shown);
        shown.push_str(end);
    }
    shown
}

fn colored_line(line: &str, shown: &mut String) {
    let (mut rest, mut colored) = (line, false);
    while let Some((before, color, after)) = next_color(rest) {
        shown.push_str(&plain(before));
        shown.push_str(color);
        // `ESC[m` and `ESC[0m` end all colours.
        colored = color.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
        rest = after;
    }
    shown.push_str(&plain(rest));
    if colored {
        shown.push_str(RESET);
    }
}

/// The first sequence that sets colours, `ESC [ digits ; m`, with what is before and after it.
fn next_color(text: &str) -> Option<(&str, &str, &str)> {
    let starts = text.match_indices("\u{1b}[");
    starts.into_iter().find_map(|(start, introducer)| {
        let parameters = &text[start + introducer.len()..];
        let length = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
        let end = start + introducer.len() + length + 1;
        parameters[length..]
            .starts_with('m')
            .then(|| (&text[..start], &text[start..end], &text[end..]))
    })
}

/// Strips escape sequences, and replaces other harmful characters.
fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let text = anstream::adapter::strip_str(text).to_string();
    Cow::Owned(text.replace(is_harmful, REPLACEMENT))
}

/// Whether a character affects the terminal or the text around it. The joiners U+200C and U+200D are allowed,
/// because words and emoji need them.
fn is_harmful(c: char) -> bool {
    // Marks, embeddings, overrides and isolates of bidirectional text.
    let reorders = matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    // Zero-width characters and other line separators.
    let hides = matches!(c, '\u{00ad}' | '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    let is_invisible_ascii = matches!(c, '\u{e0000}'..='\u{e007f}');
    let is_control = c.is_control() && c != '\n' && c != '\t';
    is_control || reorders || hides || is_invisible_ascii
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Text of which much is harmful.
    fn foreign() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<char>().prop_map(String::from),
            "[\u{0}-\u{1f}\u{7f}-\u{9f}]",
            "\u{1b}[\\[\\]PX^_()#c78][0-9;?]{0,4}[a-zA-Z\u{7}]?",
            "\u{1b}\\[[0-9;]{0,6}m",
            "[\u{200b}-\u{200f}\u{202a}-\u{202e}\u{2066}-\u{2069}\u{feff}]",
            "[a-z\n\t]{0,4}",
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    /// What is left when the colours are taken out.
    fn uncolored(mut text: &str) -> String {
        let mut left = String::new();
        while let Some((before, _, after)) = next_color(text) {
            left.push_str(before);
            text = after;
        }
        left + text
    }

    proptest! {
        #[test]
        fn a_line_has_nothing_harmful(text in foreign()) {
            let shown = plain_line(&text);
            prop_assert!(!shown.contains(is_harmful) && !shown.contains('\n'), "{shown:?}");
            prop_assert_eq!(plain_line(&shown), shown.clone());
        }

        #[test]
        fn lines_have_nothing_but_colors_which_end_with_their_line(text in foreign()) {
            let shown = colored_lines(&text);
            prop_assert!(!uncolored(&shown).contains(is_harmful), "{shown:?}");
            prop_assert_eq!(shown.matches('\n').count(), text.matches('\n').count());
            for line in shown.lines() {
                let last = line.rfind("\u{1b}[").map(|at| &line[at..]);
                let ended = last.is_none_or(|last| !last.split('m').next().unwrap().contains(|c| ('1'..='9').contains(&c)));
                prop_assert!(ended, "{line:?}");
            }
            prop_assert_eq!(colored_lines(&shown), shown.clone());
        }

        #[test]
        fn ordinary_text_stays_as_it_is(text in "[ -~\u{a1}-\u{ac}\u{ae}-\u{2ff}\u{4e00}-\u{4eff}\n\t]{0,40}") {
            prop_assert_eq!(colored_lines(&text), text.clone());
        }
    }

    #[test]
    fn escape_sequences_are_shown_as_text() {
        let check = |text: &str, shown: &str| assert_eq!(colored_lines(text), shown, "{text:?}");
        check("a\u{1b}[31mred\u{1b}[0m b", "a\u{1b}[31mred\u{1b}[0m b");
        check("\u{1b}[1;31mred\nnext", "\u{1b}[1;31mred\u{1b}[0m\nnext");
        check("a\u{1b}[2Jb\u{1b}[1;1Hc", "abc");
        check("\u{1b}]0;title\u{7}x", "x");
        check("\u{1b}]52;c;ZXZpbA==\u{1b}\\x", "x");
        check("50 %\rdone\u{8}\u{7}", "50 %\u{fffd}done");
        check("\u{9b}31mred", "\u{fffd}31mred");
        check("exe.\u{202e}gpj", "exe.\u{fffd}gpj");
        check("\u{1b}[31", "");
        check("\u{1b}[3\u{1b}[31mx", "\u{1b}[31mx\u{1b}[0m");
        check("👩\u{200d}💻 می\u{200c}خواهم", "👩\u{200d}💻 می\u{200c}خواهم");
        assert_eq!(
            plain_line("a\u{1b}[31mred\u{1b}[0m\u{7}b\tc\rd\ne"),
            "aredb\tc\u{fffd}d\u{fffd}e"
        );
    }
}
