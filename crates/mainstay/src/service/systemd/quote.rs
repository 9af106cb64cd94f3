//! Words of a unit, written so that systemd reads them back as they were.
//!
//! systemd takes a setting apart at blanks, honours quotes and the escapes of C, replaces specifiers
//! (`%h`) and, in commands, variables (`$HOME`). It refuses a program whose own path contains quotes or
//! backslashes, so such a one is started by a shell. The texts must be free of control characters.

/// A word as it stands in `Environment=` or among the arguments of a command without variables.
pub(super) fn word(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '%' => quoted.push_str("%%"),
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A command as it stands in `ExecStart=`: the program at an absolute path, and plain words.
pub(super) fn command(program: &str, args: &[&str]) -> String {
    // The colon turns variables off, so a dollar is a dollar.
    let starter = if program.contains(['"', '\'', '\\']) {
        // The shell becomes the program, so the process that systemd watches is the right one.
        format!(":/bin/sh -c {} ", word(r#"exec "$0" "$@""#))
    } else {
        ":".to_owned()
    };
    format!("{starter}{} {}", word(program), args.join(" "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes a setting apart as systemd does (`extract_first_word` with unquoting and unescaping).
    fn words(setting: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        let mut chars = setting.chars();
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('\\', _) => {
                    let next = chars.next().expect("no backslash at the end");
                    assert!(matches!(next, '\\' | '"'), "no other escapes are written");
                    word.get_or_insert_default().push(next);
                }
                (c, Some(open)) if c == open => quote = None,
                ('"' | '\'', None) => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (' ' | '\t' | '\n' | '\r', None) => words.extend(word.take()),
                (c, Some(_) | None) => word.get_or_insert_default().push(c),
            }
        }
        assert_eq!(quote, None, "no quote is left open");
        words.extend(word);
        words
    }

    /// Replaces specifiers, of which only the one for a percent sign may occur.
    fn specifiers(word: &str) -> String {
        assert!(!word.replace("%%", "").contains('%'), "{word}");
        word.replace("%%", "%")
    }

    fn read(setting: &str) -> Vec<String> {
        words(setting).iter().map(|word| specifiers(word)).collect()
    }

    proptest! {
        #[test]
        fn a_word_is_read_back_as_it_was(text in "[^\\p{Cc}]{0,40}") {
            prop_assert_eq!(read(&word(&text)), [text]);
        }

        #[test]
        fn a_command_is_read_back_as_it_was(path in r#"/[a-z %$'"\\;#=@:+!é-]{0,20}"#) {
            let words = read(&command(&path, &["daemon", "run"]));
            let plain = !path.contains(['"', '\'', '\\']);
            let (program, rest) = words.split_first().expect("there is a program");
            let program = program.strip_prefix(':').expect("variables are off");
            if plain {
                prop_assert_eq!(program, &path);
                prop_assert_eq!(rest, ["daemon", "run"]);
            } else {
                prop_assert_eq!(program, "/bin/sh");
                prop_assert_eq!(rest, ["-c", r#"exec "$0" "$@""#, &path, "daemon", "run"]);
            }
        }
    }
}
