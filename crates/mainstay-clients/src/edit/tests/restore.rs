//! Entries that are taken out and put back, while others edit the text.

use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use super::dice::Dice;
use super::json_documents::{self, NAMES};
use super::{
    Created, Format, JSON, JSONC, OWNED, ParsedText, Place, TOML, fields, names, remove, upsert,
};
use super::{toml_documents, toml_documents::Document};
use crate::edit::Removed;

fn extract(
    text: &str,
    place: &Place,
    name: &str,
    absent: &[&Removed],
) -> (String, Option<Removed>) {
    let reading = ParsedText::parse(text, place).unwrap();
    let spaced = Created { spaced: true, ..Created::default() };
    let (left, removed) = reading.extract(name, &spaced, absent).unwrap();
    // It is kept in a file meanwhile.
    let kept = serde_json::to_string(&removed).unwrap();
    (left, serde_json::from_str(&kept).unwrap())
}

fn restore(text: &str, place: &Place, name: &str, removed: &Removed) -> Option<String> {
    restore_beside(text, place, name, removed, &[])
}

fn restore_beside(
    text: &str,
    place: &Place,
    name: &str,
    removed: &Removed,
    absent: &[&Removed],
) -> Option<String> {
    ParsedText::parse(text, place).unwrap().restore(name, removed, absent, place).unwrap()
}

/// Takes `ours` out of `before`, which others then change to `edited`, and asserts what comes of putting it back.
#[track_caller]
fn check(place: &Place, before: &str, edit: impl Fn(&str) -> String, expected: &str) {
    let (left, removed) = extract(before, place, "ours", &[]);
    let edited = edit(&left);
    assert_eq!(restore(&edited, place, "ours", &removed.unwrap()).as_deref(), Some(expected));
}

#[test]
fn an_entry_is_restored_with_its_comments_beside_its_neighbours() {
    let before = "{\n  \"mcpServers\": {\n    \"a\": {},\n    // About ours.\n    \"ours\": {\n      // its address\n      \"url\": \"u\" /* here */\n    }, // the end\n    \"b\": {}\n  }\n}\n";
    let edit = |text: &str| text.replace("\"b\": {}", "\"b\": {\"x\": 1}");
    check(&JSONC, before, edit, &edit(before));
    // Its neighbours are others now.
    let edit = |text: &str| {
        text.replace("\n    \"a\": {},", "").replace("\"b\": {}", "\"b\": {},\n    \"c\": {}")
    };
    check(&JSONC, before, edit, &edit(before));
    let edit = |text: &str| text.replace("\"a\": {},", "\"a\": {}, // edited");
    check(&JSONC, before, edit, &edit(before));
}

#[test]
fn an_entry_without_neighbours_is_restored_as_written() {
    let before = "{\"mcpServers\": {\"ours\": { \"url\":\"u\" }}}";
    check(
        &JSON,
        before,
        |_| "{\"new\": 1}".into(),
        "{\"new\": 1, \"mcpServers\": { \"ours\": { \"url\":\"u\" } }}",
    );
    check(
        &JSON,
        before,
        |_| "{\n  \"mcpServers\": {}\n}".into(),
        "{\n  \"mcpServers\": {\"ours\": { \"url\":\"u\" }}\n}",
    );
    check(
        &JSON,
        before,
        |_| String::new(),
        "{\n  \"mcpServers\": {\n    \"ours\": { \"url\":\"u\" }\n  }\n}\n",
    );
}

#[test]
fn a_restored_entry_does_not_become_part_of_a_comment() {
    let before = "{\"mcpServers\": {\"a\": {},\n\"ours\": {} // mine\n}}";
    check(
        &JSONC,
        before,
        |_| "{\"mcpServers\": {\"a\": {}}}".into(),
        "{\"mcpServers\": {\"a\": {},\n\"ours\": {} // mine\n}}",
    );
    let before = "{\"mcpServers\": {\"a\": {}, \"ours\": {}}}";
    check(
        &JSONC,
        before,
        |_| "{\"mcpServers\": {\"a\": {} // x\n}}".into(),
        "{\"mcpServers\": {\"a\": {}, // x\n \"ours\": {}\n}}",
    );
}

#[test]
fn a_table_is_restored_between_its_neighbours() {
    let before = "model = \"o3\"\n\n[mcp_servers.a]\nurl = \"a\"\n\n# About ours.\n[mcp_servers.ours] # mine\nurl = \"u\" # here\n\n[mcp_servers.ours.env]\nX = \"1\"\n\n[other]\nx = 1\n";
    let edit = |text: &str| text.replace("x = 1", "x = 2").replace("o3", "o4");
    check(&TOML, before, edit, &edit(before));
    let edit = |text: &str| text.replace("url = \"a\"\n", "url = \"a\"\nnew = 1\n");
    check(&TOML, before, edit, &edit(before));
    let edit = |text: &str| text.replace("[other]\nx = 1\n", "");
    let restored = "model = \"o3\"\n\n[mcp_servers.a]\nurl = \"a\"\n\n# About ours.\n[mcp_servers.ours] # mine\nurl = \"u\" # here\n\n[mcp_servers.ours.env]\nX = \"1\"\n\n";
    check(&TOML, before, edit, restored);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_unchanged_text_is_restored_exactly(mut dice in Dice::strategy()) {
        let (place, text, name) = any_document(&mut dice);
        let (left, removed) = extract(&text, &place, name, &[]);
        let is_toml = place.format == Format::Toml;
        let is_mixed = text.contains("\r\n") && text.replace("\r\n", "").contains('\n');
        // Only of TOML with one kind of line ends it is known what the last line would end with.
        if let Some(removed) = removed.filter(|_| !(is_toml && is_mixed)) {
            let restored = restore(&left, &place, name, &removed).unwrap();
            let end = |text: &str| if is_toml { text.trim_end().to_owned() } else { text.to_owned() };
            prop_assert_eq!(end(&restored), end(&text));
        } else {
            prop_assert!(is_toml);
        }
    }

    #[test]
    fn an_entry_is_restored_verbatim_into_an_edited_text(mut dice in Dice::strategy()) {
        let (place, text, name) = any_document(&mut dice);
        let (mut edited, removed) = extract(&text, &place, name, &[]);
        let mut unique = names(&text, &place).unwrap();
        unique.sort();
        unique.dedup();
        // Neighbours with the same name cannot be distinguished.
        let is_clear = unique.len() == names(&text, &place).unwrap().len();
        if let Some(removed) = removed.filter(|_| is_clear) {
            for _ in 0..=dice.below(3) {
                edited = edit(&mut dice, &edited, &place);
            }
            let restored = restore(&edited, &place, name, &removed);
            let restored = restored.expect("it has a place");
            let ours = [&removed.lead, &removed.text, &removed.tail].map(String::as_str).concat();
            prop_assert!(restored.contains(removed.text.trim_end()), "{}", restored);
            prop_assert!(is_inserted(&bare(&restored), &bare(&edited), &bare(&ours)), "{}\n---\n{}", edited, restored);
            let order = names(&text, &place).unwrap();
            let now: Vec<_> = names(&restored, &place).unwrap().into_iter().filter(|one| order.contains(one)).collect();
            let order: Vec<_> = order.into_iter().filter(|one| now.contains(one)).collect();
            prop_assert_eq!(now, order, "{}\n---\n{}\n---\n{:?}", text, restored, removed);
        }
    }

    #[test]
    fn entries_removed_together_are_restored_in_any_order(mut dice in Dice::strategy()) {
        let (place, text, count) = tidy(&mut dice);
        let mut all: Vec<String> = (0..count).map(|at| format!("e{at}")).collect();
        let mut left = text.clone();
        let mut absent: Vec<(String, Removed)> = Vec::new();
        for _ in 0..2 + dice.below(2) {
            let name = all.remove(dice.below(all.len()));
            let others: Vec<_> = absent.iter().map(|(_, removed)| removed).collect();
            let (without, removed) = extract(&left, &place, &name, &others);
            left = without;
            absent.push((name, removed.unwrap()));
        }
        while !absent.is_empty() {
            let (name, removed) = absent.remove(dice.below(absent.len()));
            let others: Vec<_> = absent.iter().map(|(_, removed)| removed).collect();
            left = restore_beside(&left, &place, &name, &removed, &others).expect("it has a place");
        }
        prop_assert_eq!(left, text);
    }
}

/// A document with all that people and programs do to its layout, and an entry in it.
fn any_document(dice: &mut Dice) -> (Place<'static>, String, &'static str) {
    let name = dice.of(&NAMES[..7]);
    match dice.below(3) {
        0 => (JSON, json_documents::document(dice, false, Some(name)).text, name),
        1 => (JSONC, json_documents::document(dice, true, Some(name)).text, name),
        _ => {
            let Document { text, .. } = toml_documents::document(dice, Some(name));
            (TOML, text, name)
        }
    }
}

/// What others do to a text: they add an entry, change one, take one out, or write something above everything.
fn edit(dice: &mut Dice, text: &str, place: &Place) -> String {
    let known = names(text, place).unwrap();
    let one = known.get(dice.below(known.len().max(1)));
    let edited = match (dice.below(4), one) {
        (0, _) => upsert(text, place, "new", &fields(), OWNED),
        (1, Some(name)) => upsert(text, place, name, &fields(), OWNED),
        (2, Some(name)) => remove(text, place, name, &Created::default()),
        _ if place.format == Format::Toml => Ok(text.replacen('\n', "\n# new\n", 1)),
        _ => Ok(text.replacen('{', "{ ", 1)),
    };
    // What cannot be edited is left as it is.
    let sound = edited.ok().filter(|edited| ParsedText::parse(edited, place).is_ok());
    sound.unwrap_or_else(|| text.to_owned())
}

/// A document as people and formatters write it, with entries `e0`, `e1` and so on.
fn tidy(dice: &mut Dice) -> (Place<'static>, String, usize) {
    let count = 3 + dice.below(3);
    let newline = dice.of(&["\n", "\r\n"]);
    if dice.one_in(3) {
        let mut text = dice.of(&["", "model = \"o3\"\n\n", "# mine\n"]).to_owned();
        for at in 0..count {
            let above = dice.of(&["", "# above\n"]);
            let beside = dice.of(&["", " # beside"]);
            let inner = dice.of(&["", "# inside\nx = 1\n", "\n[mcp_servers.eX.env]\nA = \"1\"\n"]);
            let inner = inner.replace('X', &at.to_string());
            let above = above.replace("above", &format!("above {at}"));
            let blank = if at == 0 { "" } else { "\n" };
            text.extend([format!(
                "{blank}{above}[mcp_servers.e{at}]{beside}\nurl = \"u\"\n{inner}"
            )]);
        }
        text.push_str(dice.of(&["", "\n[other]\nx = 1\n"]));
        return (TOML, text.replace('\n', newline), count);
    }
    let comments = dice.one_in(2);
    let in_lines = !dice.one_in(3);
    let unit = dice.of(&["  ", "    ", "\t"]);
    let trailing = comments && in_lines && dice.one_in(2);
    let mut text = "{\"mcpServers\": {".to_owned();
    for at in 0..count {
        let is_last = at + 1 == count;
        let comma = if !is_last || trailing { "," } else { "" };
        let inside = if comments { dice.of(&["", "/* inside */"]) } else { "" };
        if in_lines {
            let (mut above, mut beside) = (String::new(), "");
            if comments {
                above = dice.of(&["", "X// above"]).replace('X', &format!("\n{unit}"));
                beside = dice.of(&["", " // beside", " /* beside */"]);
            }
            if !above.is_empty() {
                above.extend([format!(" {at}")]);
            }
            text.extend([format!(
                "{above}\n{unit}\"e{at}\": {{{inside}\"url\": \"u\"}}{comma}{beside}"
            )]);
        } else {
            text.extend([format!(" \"e{at}\": {{{inside}\"url\": \"u\"}}{comma}")]);
        }
    }
    text.push_str(if in_lines { "\n}}\n" } else { " }}" });
    (if comments { JSONC } else { JSON }, text.replace('\n', newline), count)
}

/// A text without white space and commas.
fn bare(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != ',').collect()
}

/// Whether `whole` is `part` with `new` put into it once.
fn is_inserted(whole: &str, part: &str, new: &str) -> bool {
    let mut places = (0..=whole.len()).filter(|at| whole.is_char_boundary(*at));
    places.any(|at| {
        whole[at..].strip_prefix(new).is_some_and(|rest| [&whole[..at], rest].concat() == part)
    })
}
