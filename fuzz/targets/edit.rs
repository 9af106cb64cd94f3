//! The editors of clients' files: a text is rejected, or an entry can be added and removed without a trace. The first
//! byte chooses the format and the place.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_clients::edit::{Created, Fields, Format, ParsedText, Place, Value};
use mainstay_clients::file::only_entry_differs;

const PLACES: &[&[&str]] = &[&["mcpServers"], &["mcp", "servers"], &["a"], &["a", "b"]];
const OWNED: &[&str] = &["type", "url", "args"];
const NAME: &str = "b";

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let choice = usize::from(choice);
    let format = [Format::Json, Format::Jsonc, Format::Toml][choice % 3];
    let place = Place { format, keys: PLACES[choice / 3 % PLACES.len()] };
    let Ok(parsed) = ParsedText::parse(text, &place) else { return };
    if format == Format::Toml {
        let whole = toml::from_str::<toml::Table>(text.trim_start_matches('\u{feff}'));
        assert!(whole.is_ok(), "accepted, but invalid: {whole:?}");
    }
    let found = parsed.find(NAME);
    let Ok(added) = parsed.upsert(NAME, &fields(), OWNED) else { return };
    check_added(text, &added, &place);
    if found == Ok(None) {
        let created = parsed.to_create().expect("a text that an entry can be added to");
        let removed = read(&added, &place).remove(NAME, &created).expect("what was added can go");
        assert_eq!(removed, text, "added and removed");
    }
    let careless = read(&added, &place).remove(NAME, &Created::default());
    let careless = careless.expect("an entry that can be changed can go");
    assert_eq!(read(&careless, &place).find(NAME), Ok(None), "{careless}");
    only_entry_differs(&added, &careless, &place, NAME).expect("only the entry goes");
});

fn check_added(text: &str, added: &str, place: &Place) {
    let parsed = read(added, place);
    let again = parsed.upsert(NAME, &fields(), OWNED).expect("what was added can be changed");
    assert_eq!(again, added, "added twice");
    let Ok(Some(Value::Map(entry))) = parsed.find(NAME) else { panic!("it is there: {added}") };
    for field in OWNED {
        let of = |fields: &Fields| fields.iter().find(|(name, _)| name == field).cloned();
        assert_eq!(of(&entry), of(&fields()), "{field}");
    }
    only_entry_differs(text, added, place, NAME).expect("only the entry differs");
}

fn read<'t>(text: &'t str, place: &Place<'t>) -> ParsedText<'t> {
    match ParsedText::parse(text, place) {
        Ok(parsed) => parsed,
        Err(error) => panic!("an edited text can be read: {error}: {text:?}"),
    }
}

fn fields() -> Fields {
    let text = |text: &str| Value::Text(text.to_owned());
    vec![
        ("url".to_owned(), text("http://h/\\\"é")),
        ("args".to_owned(), Value::List(vec![text("connect"), text("b")])),
    ]
}
