//! What holds for every document.

use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};
use proptest::sample::Index;

use super::dice::Dice;
use super::json_documents::{self, NAMES, strict};
use super::toml_documents::Document;
use super::{
    Created, Format, OWNED, TOML, fields, find, names, place, remove, to_create, toml_documents,
    upsert,
};

const KEYS: &[&[&str]] =
    &[&["mcpServers"], &["mcp", "servers"], &["amp.mcpServers", "x"], &["mcpServers", "deep"]];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn json_add_and_remove(mut dice in Dice::strategy(), comments: bool) {
        let name = dice.of(NAMES);
        let keys = KEYS[dice.below(KEYS.len())];
        let document = json_documents::document(&mut dice, comments, None);
        let place = place(format_of(comments), keys);
        let before = document.text.as_str();
        // A container that is not an object, or is there twice, is refused; other tests cover that.
        if let Ok(created) = to_create(before, &place) {
            let after = upsert(before, &place, name, &fields(), OWNED).unwrap();
            prop_assert_eq!(&upsert(&after, &place, name, &fields(), OWNED).unwrap(), &after, "added twice");
            prop_assert!(names(&after, &place).unwrap().contains(&name.to_owned()));
            let mut expected = tree(before);
            set(&mut expected, keys, name, serde_json::json!({"type": "http", "url": "http://h/mcp"}));
            prop_assert_eq!(tree(&after), expected, "{}", after);
            prop_assert!(holds_in_order(&after, before), "{}", after);
            let kept: Created = serde_json::from_str(&serde_json::to_string(&created).unwrap()).unwrap();
            prop_assert_eq!(remove(&after, &place, name, &kept).unwrap(), before);
            let careless = remove(&after, &place, name, &Created::default()).unwrap();
            prop_assert_eq!(find(&careless, &place, name).unwrap(), None);
            prop_assert!(holds_in_order(&careless, before), "{}", careless);
        }
    }

    #[test]
    fn json_change_and_remove_what_is_there(mut dice in Dice::strategy(), comments: bool) {
        let name = dice.of(&NAMES[..7]);
        let document = json_documents::document(&mut dice, comments, Some(name));
        let (before, entry) = (document.text.as_str(), document.entry.unwrap());
        let place = place(format_of(comments), &["mcpServers"]);
        let after = upsert(before, &place, name, &fields(), OWNED).unwrap();
        prop_assert!(after.starts_with(&before[..entry.start]), "{}", after);
        prop_assert!(after.ends_with(&before[entry.end..]), "{}", after);
        prop_assert_eq!(&upsert(&after, &place, name, &fields(), OWNED).unwrap(), &after, "changed twice");
        let mut expected = tree(before);
        let ours = expected["mcpServers"][name].as_object_mut().unwrap();
        ours.remove("httpUrl");
        ours.insert("type".into(), "http".into());
        ours.insert("url".into(), "http://h/mcp".into());
        prop_assert_eq!(tree(&after), expected.clone(), "{}", after);
        let removed = remove(&after, &place, name, &Created::default()).unwrap();
        expected["mcpServers"].as_object_mut().unwrap().remove(name);
        prop_assert_eq!(tree(&removed), expected, "{}", removed);
        if !comments {
            let foreign = [&before[..entry.start], &before[entry.end..]].concat();
            prop_assert_eq!(without_layout(&removed), without_layout(&foreign));
        }
    }

    #[test]
    fn toml_add_and_remove(mut dice in Dice::strategy()) {
        let name = dice.of(NAMES);
        let document = toml_documents::document(&mut dice, None).text;
        let created = to_create(&document, &TOML).unwrap();
        let after = upsert(&document, &TOML, name, &fields(), OWNED).unwrap();
        prop_assert_eq!(&upsert(&after, &TOML, name, &fields(), OWNED).unwrap(), &after, "added twice");
        let mut expected = toml_tree(&document);
        let ours = toml::toml! { type = "http"
        url = "http://h/mcp" };
        toml_container(&mut expected).insert(name.to_owned(), toml::Value::Table(ours));
        prop_assert_eq!(toml_tree(&after), expected, "{}", after);
        prop_assert!(holds_in_order(&after, &document), "{}", after);
        prop_assert_eq!(remove(&after, &TOML, name, &created).unwrap(), document);
    }

    #[test]
    fn toml_change_and_remove_what_is_there(mut dice in Dice::strategy()) {
        let name = dice.of(NAMES);
        let Document { text: document, foreign } = toml_documents::document(&mut dice, Some(name));
        let after = upsert(&document, &TOML, name, &fields(), OWNED).unwrap();
        prop_assert_eq!(&upsert(&after, &TOML, name, &fields(), OWNED).unwrap(), &after, "changed twice");
        let mut expected = toml_tree(&document);
        let ours = toml_container(&mut expected)[name].as_table_mut().unwrap();
        ours.remove("httpUrl");
        ours.insert("type".into(), "http".into());
        ours.insert("url".into(), "http://h/mcp".into());
        prop_assert_eq!(toml_tree(&after), expected.clone(), "{}", after);
        let removed = remove(&after, &TOML, name, &Created::default()).unwrap();
        toml_container(&mut expected).remove(name);
        let mut left = toml_tree(&removed);
        toml_container(&mut left);
        prop_assert_eq!(left, expected, "{}", removed);
        for edited in [after, removed] {
            prop_assert!(has_lines(&edited, &foreign), "{}", edited);
        }
    }

    #[test]
    fn two_entries_are_added_and_removed_in_any_order(mut dice in Dice::strategy()) {
        let format = [Format::Json, Format::Jsonc, Format::Toml][dice.below(3)];
        let place = if format == Format::Toml { TOML } else { place(format, KEYS[dice.below(2)]) };
        let before = match format {
            Format::Toml => toml_documents::document(&mut dice, None).text,
            Format::Json | Format::Jsonc => json_documents::document(&mut dice, format == Format::Jsonc, None).text,
        };
        let one = to_create(&before, &place).unwrap();
        let text = upsert(&before, &place, "one", &fields(), OWNED).unwrap();
        let two = to_create(&text, &place).unwrap();
        let text = upsert(&text, &place, "two", &fields(), OWNED).unwrap();
        let text = if dice.one_in(2) {
            let text = remove(&text, &place, "one", &one).unwrap();
            remove(&text, &place, "two", &two.inherit(one)).unwrap()
        } else {
            let text = remove(&text, &place, "two", &two).unwrap();
            remove(&text, &place, "one", &one.inherit(two)).unwrap()
        };
        prop_assert_eq!(text, before);
    }

    #[test]
    fn adding_and_removing_in_an_edited_text_leaves_nothing_behind(mut dice in Dice::strategy(), rounds in 1..4_usize) {
        let format = [Format::Json, Format::Jsonc, Format::Toml][dice.below(3)];
        let place = if format == Format::Toml { TOML } else { place(format, KEYS[dice.below(2)]) };
        let mut expected = match format {
            Format::Toml => toml_documents::document(&mut dice, None).text,
            Format::Json | Format::Jsonc => json_documents::document(&mut dice, format == Format::Jsonc, None).text,
        };
        // A text without anything in it becomes a document, and then an edit beside it is one of a document.
        if !strict(&expected).trim().is_empty() {
            let mut created = to_create(&expected, &place).unwrap();
            let mut text = upsert(&expected, &place, "ours", &fields(), OWNED).unwrap();
            let line = line_of(format, if expected.contains("\r\n") { "\r\n" } else { "\n" });
            for _ in 0..rounds {
                text = below(&line, &remove(&text, &place, "ours", &created.layout()).unwrap());
                expected = below(&line, &expected);
                created = to_create(&text, &place).unwrap().inherit(created);
                text = upsert(&text, &place, "ours", &fields(), OWNED).unwrap();
            }
            prop_assert_eq!(remove(&text, &place, "ours", &created).unwrap(), expected);
        }
    }

    #[test]
    fn a_damaged_text_is_rejected_or_edited_correctly(mut dice in Dice::strategy(), at: Index) {
        let format = [Format::Json, Format::Jsonc, Format::Toml][dice.below(3)];
        let place = if format == Format::Toml { TOML } else { place(format, &["mcpServers"]) };
        let scrap = dice.of(&["", "{", "}", "[", "]", "\"", "'", ",", ":", "=", "\n", "\r", "/*", "//", "#", ".", "\\", "é", "mcp_servers"]);
        let name = Some("ours").filter(|_| dice.one_in(2));
        let mut text = match format {
            Format::Toml => toml_documents::document(&mut dice, name).text,
            Format::Json | Format::Jsonc => json_documents::document(&mut dice, format == Format::Jsonc, name).text,
        };
        let at = text.char_indices().map(|(at, _)| at).nth(at.index(text.chars().count() + 1)).unwrap_or(text.len());
        let end = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
        text.replace_range(at..end, scrap);
        match upsert(&text, &place, "ours", &fields(), OWNED) {
            Err(refused) => prop_assert!(!refused.to_string().is_empty()),
            Ok(after) => {
                prop_assert!(find(&after, &place, "ours").unwrap().is_some(), "{}", after);
                prop_assert_eq!(&upsert(&after, &place, "ours", &fields(), OWNED).unwrap(), &after);
                let removed = remove(&after, &place, "ours", &Created::default()).unwrap();
                prop_assert_eq!(find(&removed, &place, "ours").unwrap(), None, "{}", removed);
            }
        }
    }
}

/// A line that may stand above everything else.
fn line_of(format: Format, newline: &str) -> String {
    let line = match format {
        Format::Json => " ",
        Format::Jsonc => "// new",
        Format::Toml => "# new",
    };
    format!("{line}{newline}")
}

/// A text with a new first line.
fn below(line: &str, text: &str) -> String {
    let body = text.trim_start_matches('\u{feff}');
    let mark = &text[..text.len() - body.len()];
    format!("{mark}{line}{body}")
}

fn format_of(comments: bool) -> Format {
    if comments { Format::Jsonc } else { Format::Json }
}

fn tree(text: &str) -> serde_json::Value {
    let strict = strict(text);
    if strict.trim().is_empty() {
        serde_json::json!({})
    } else {
        serde_json::from_str(&strict).unwrap()
    }
}

fn set(tree: &mut serde_json::Value, keys: &[&str], name: &str, entry: serde_json::Value) {
    let container = keys.iter().fold(tree, |node, key| {
        node.as_object_mut().unwrap().entry(*key).or_insert_with(|| serde_json::json!({}))
    });
    container.as_object_mut().unwrap().insert(name.to_owned(), entry);
}

fn toml_tree(text: &str) -> toml::Table {
    text.trim_start_matches('\u{feff}').parse().unwrap()
}

/// The container, which is made if it is missing: TOML cannot tell an empty implied table from none.
fn toml_container(tree: &mut toml::Table) -> &mut toml::Table {
    tree.entry("mcp_servers").or_insert_with(|| toml::Table::new().into()).as_table_mut().unwrap()
}

fn without_layout(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != ',').collect()
}

/// Whether a text has all these lines, in their order.
fn has_lines(text: &str, lines: &[String]) -> bool {
    let mut rest = text;
    lines.iter().all(|line| match rest.split_once(line.as_str()) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// Whether all of `part` but its white space stands in `whole`, in the same order.
fn holds_in_order(whole: &str, part: &str) -> bool {
    let mut whole = whole.chars();
    part.chars().filter(|c| !c.is_whitespace()).all(|c| whole.any(|other| other == c))
}
