//! Generated JSON, with all that people and programs do to its layout.

use std::ops::Range;

use super::dice::Dice;

pub(super) const NAMES: &[&str] =
    &["ours", "a.b", "a/b", "say \"hi\"", "two words", "ü", "", "mcpServers"];

/// Keys as they are written. None of them is in [`NAMES`], or the document would have two entries of one name.
const KEYS: &[&str] = &[
    r#""k""#,
    r#""a\/c""#,
    r#""\u0061d""#,
    r#""k""#,
    r#""amp.mcpServers""#,
    r#""日本""#,
    r#""our""#,
];

pub(super) struct Document {
    pub(super) text: String,
    /// Where the entry is, from key to end of value.
    pub(super) entry: Option<Range<usize>>,
}

/// A document that may have our container and, if asked for, our entry in it.
pub(super) fn document(dice: &mut Dice, comments: bool, entry: Option<&str>) -> Document {
    let mut writer = Writer {
        text: dice.of(&["", "\u{feff}"]).to_owned(),
        newlines: dice.below(3),
        comments,
        entry: None,
    };
    let has_value = entry.is_some() || !dice.one_in(12);
    writer.gap(dice);
    if has_value {
        writer.root(dice, entry);
        writer.gap(dice);
    }
    Document { text: writer.text, entry: writer.entry }
}

struct Writer {
    text: String,
    newlines: usize,
    comments: bool,
    entry: Option<Range<usize>>,
}

/// A member that is there on purpose.
#[derive(Clone, Copy)]
enum Special<'a> {
    Container { entry: Option<&'a str> },
    Entry { name: &'a str },
    Url,
    HttpUrl,
}

impl Special<'_> {
    fn key(self) -> String {
        serde_json::Value::from(match self {
            Self::Container { .. } => "mcpServers",
            Self::Entry { name } => name,
            Self::Url => "url",
            Self::HttpUrl => "httpUrl",
        })
        .to_string()
    }
}

impl Writer {
    fn root(&mut self, dice: &mut Dice, entry: Option<&str>) {
        let has_container = entry.is_some() || !dice.one_in(3);
        self.object(dice, 0, has_container.then_some(Special::Container { entry }));
    }

    fn object(&mut self, dice: &mut Dice, depth: usize, special: Option<Special>) {
        let count = dice.below(4);
        let at = special.map(|_| dice.below(count + 1));
        let total = count + usize::from(special.is_some());
        self.text.push('{');
        for index in 0..total {
            self.gap(dice);
            match special {
                Some(special) if at == Some(index) => self.special(dice, special),
                Some(_) | None => {
                    let key = dice.of(KEYS);
                    self.key(dice, key);
                    self.value(dice, depth + 1);
                }
            }
            self.gap(dice);
            if index + 1 < total || (self.comments && dice.one_in(3)) {
                self.text.push(',');
            }
        }
        self.gap(dice);
        self.text.push('}');
    }

    fn special(&mut self, dice: &mut Dice, special: Special) {
        let start = self.text.len();
        self.key(dice, &special.key());
        match special {
            Special::Container { entry } => {
                self.object(dice, 1, entry.map(|name| Special::Entry { name }));
            }
            Special::Entry { .. } => {
                let old = [None, Some(Special::Url), Some(Special::HttpUrl)][dice.below(3)];
                self.object(dice, 2, old);
                self.entry = Some(start..self.text.len());
            }
            Special::Url | Special::HttpUrl => self.value(dice, 3),
        }
    }

    fn key(&mut self, dice: &mut Dice, key: &str) {
        self.text.push_str(key);
        if dice.one_in(4) {
            self.gap(dice);
        }
        self.text.push(':');
        self.gap(dice);
    }

    fn value(&mut self, dice: &mut Dice, depth: usize) {
        match dice.below(if depth < 4 { 9 } else { 7 }) {
            0 => self.text.push('1'),
            1 => self.text.push_str(r#""// no comment, {} []""#),
            2 => self.text.push_str(r#""\ud83d\ude00 \\\" \/* ""#),
            3 => self.text.push_str("-1.5e3"),
            4 => self.text.push_str("null"),
            5 => self.text.push_str("true"),
            6 => self.text.push_str(r#""é""#),
            7 => self.list(dice, depth),
            _ => self.object(dice, depth + 1, None),
        }
    }

    fn list(&mut self, dice: &mut Dice, depth: usize) {
        let count = dice.below(3);
        self.text.push('[');
        for index in 0..count {
            self.gap(dice);
            self.value(dice, depth + 1);
            self.gap(dice);
            if index + 1 < count || (self.comments && dice.one_in(3)) {
                self.text.push(',');
            }
        }
        self.gap(dice);
        self.text.push(']');
    }

    fn gap(&mut self, dice: &mut Dice) {
        loop {
            match dice.below(if self.comments { 9 } else { 6 }) {
                0 => return,
                1 => return self.text.push(' '),
                2 => {
                    let newline = dice.newline(self.newlines);
                    let indent = dice.of(&["  ", "\t", "    ", "", "      "]);
                    self.text.push_str(newline);
                    return self.text.push_str(indent);
                }
                3 => self.text.push_str("  "),
                4 => self.text.push('\t'),
                5 => self.text.push_str(dice.newline(self.newlines)),
                6 => self.text.push_str("/* \"a\": {}, */"),
                7 => {
                    let newline = dice.newline(self.newlines);
                    self.text.push_str("// it's \"a\" } ,");
                    self.text.push_str(newline);
                }
                _ => {
                    let newline = dice.newline(self.newlines);
                    self.text.push_str("/* one");
                    self.text.push_str(newline);
                    self.text.push_str("two */");
                }
            }
        }
    }
}

/// The same tree in strict JSON, found without the parser under test.
pub(super) fn strict(text: &str) -> String {
    let mut strict = String::new();
    let mut rest = text.trim_start_matches('\u{feff}');
    while let Some(next) = rest.chars().next() {
        let len = match next {
            '"' => string_len(rest),
            '/' if rest.starts_with("//") => {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                continue;
            }
            '/' => {
                rest = &rest[rest.find("*/").expect("a comment ends") + 2..];
                continue;
            }
            '}' | ']' => {
                strict.truncate(strict.trim_end_matches([' ', '\t', '\n', '\r', ',']).len());
                1
            }
            _ => next.len_utf8(),
        };
        strict.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    strict
}

fn string_len(text: &str) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            '\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    text.len()
}
