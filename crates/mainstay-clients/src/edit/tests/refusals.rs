//! Texts that are rejected, and the messages.

use super::{
    JSON, JSONC, OWNED, Place, TOML, fields, find, names, place, remove, to_create, upsert,
};
use crate::edit::{Created, Format};

/// Asserts that every function rejects a text with the same message.
#[track_caller]
fn check(place: &Place, text: &str, expected: &str) {
    check_edits(place, text, expected);
    for refused in [to_create(text, place).map(drop), names(text, place).map(drop)] {
        assert_eq!(refused.unwrap_err().to_string(), expected);
    }
}

/// Asserts that a text is refused as far as the entry `ours` is concerned.
#[track_caller]
fn check_edits(place: &Place, text: &str, expected: &str) {
    for refused in [
        upsert(text, place, "ours", &fields(), OWNED).map(drop),
        remove(text, place, "ours", &Created::default()).map(drop),
        find(text, place, "ours").map(drop),
    ] {
        assert_eq!(refused.unwrap_err().to_string(), expected);
    }
}

#[track_caller]
fn check_upsert(place: &Place, text: &str, expected: &str) {
    let refused = upsert(text, place, "ours", &fields(), OWNED).unwrap_err();
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn invalid_json_is_rejected() {
    check(&JSON, "{\n  \"ü\": \"é\" \"b\"\n}", "line 2, column 11: expected `,`");
    check(&JSON, "\u{feff}{\"a\" 1}", "line 1, column 6: expected `:` after a key");
    check(&JSON, "{\r\n  a: 1}", "line 2, column 3: expected a key in double quotes or `}`");
    check(&JSON, "{\"a\": }", "line 1, column 7: expected a value");
    check(&JSON, "{} {}", "line 1, column 4: expected the end of the file");
    check(&JSON, "\n{\"a\": [1", "line 2, column 7: unclosed `[`, expected `]`");
    check(&JSON, "{\"a\": 'x'}", "line 1, column 7: single-quoted strings are not allowed");
    check(&JSONC, "{ /* ", "line 1, column 3: unclosed `/*`, expected `*/`");
    for odd in ["\u{b}", "\u{c}", "\u{a0}", "\u{2028}", "\u{feff}", "\0"] {
        check(&JSONC, &format!("{{{odd}}}"), "line 1, column 2: unexpected character");
        check(&JSONC, &format!("{{}} {odd}"), "line 1, column 4: unexpected character");
    }
    let escape = "line 1, column 4: a control character in a string; write it as an escape";
    for control in ["\0", "\t", "\n", "\r", "\u{1f}"] {
        check(&JSON, &format!("{{\"a{control}\": 1}}"), escape);
    }
    check(&JSONC, "{,}", "line 1, column 2: expected a key in double quotes or `}`");
}

#[test]
fn comments_and_trailing_commas_in_strict_json() {
    check(&JSON, "{\n  // c\n}", "line 2, column 3: strict JSON does not allow comments");
    check(&JSON, "{\"a\": 1,}", "line 1, column 8: strict JSON does not allow trailing commas");
}

#[test]
fn invalid_toml_is_rejected() {
    check(
        &TOML,
        "a = 1\nb = \n",
        "line 2, column 5: string values must be quoted, expected literal string",
    );
    for text in ["a = 1\r", "a = 1\rb = 2\n", "\r"] {
        let refused = upsert(text, &TOML, "ours", &fields(), OWNED).unwrap_err();
        assert!(refused.to_string().contains("carriage return"), "{refused}");
    }
    check(&TOML, "\u{feff}[a", "line 1, column 3: unclosed table, expected `]`");
}

#[test]
fn invalid_toml_is_rejected_anywhere_in_the_file() {
    for text in [
        "a = 1\na = 2\n",
        "a = 1\na.b = 2\n",
        "a.b = 1\n[a]\n",
        "a = { b = 1 }\n[a.c]\n",
        "a = [1]\n[[a]]\n",
        "x = [{ a = 1, a.b = 2 }]\n",
        "[a]\n[b]\n[a]\n",
        "[a.b]\n[a]\nb.c = 1\n",
        "[[a]]\n[a]\n",
        "[a]\n[[a]]\n",
        "a = 99999999999999999999\n",
        "a = 1e999\n",
        "a = 2020-13-45\n",
        "a = \"\\q\"\n",
    ] {
        let refused = upsert(text, &TOML, "ours", &fields(), OWNED).unwrap_err();
        let place = refused.to_string();
        assert!(place.contains("line "), "{text}: {place}");
    }
    let deep = vec!["a"; 100].join(".");
    for text in [format!("{deep} = 1\n"), format!("[{deep}]\n"), format!("x = {{ {deep} = 1 }}\n")]
    {
        assert!(upsert(&text, &TOML, "ours", &fields(), OWNED).is_err());
    }
    for text in [
        "[a.b]\n[a]\n",
        "[[a]]\n[a.b]\n[[a]]\n[a.b]\n",
        "a.b = 1\na.c = inf\n",
        "[a]\nb.c = 1\n[a.b.d]\n",
        "x = [{ a.b = 1, a.c = 2 }, { a = 1 }]\n",
    ] {
        assert!(upsert(text, &TOML, "ours", &fields(), OWNED).is_ok(), "{text}");
    }
}

#[test]
fn containers_of_the_wrong_type() {
    let wrong = |found| {
        format!("line 1, column 16: `mcpServers` is {found}, not a table of keys and values")
    };
    for (value, found) in [
        ("[]", "a list"),
        ("null", "null"),
        ("\"x\"", "a text"),
        ("1", "a number"),
        ("true", "a flag"),
    ] {
        check(&JSON, &format!("{{\"mcpServers\": {value}}}"), &wrong(found));
    }
    check(
        &JSON,
        "[]",
        "line 1, column 1: `the document` is a list, not a table of keys and values",
    );
    check(
        &TOML,
        "\n[[mcp_servers]]\nname = 'a'",
        "line 2, column 1: `mcp_servers` is a list of tables, not a table of keys and values",
    );
    check(
        &TOML,
        "mcp_servers = 2020-01-01",
        "line 1, column 15: `mcp_servers` is a date, not a table of keys and values",
    );
}

#[test]
fn entries_of_the_wrong_type() {
    check_upsert(
        &JSON,
        r#"{"mcpServers": {"ours": "x"}}"#,
        "line 1, column 25: `ours` is a text, not a table of keys and values",
    );
    check_upsert(
        &TOML,
        "[[mcp_servers.ours]]",
        "line 1, column 1: `ours` is a list of tables, not a table of keys and values",
    );
}

#[test]
fn duplicate_keys_are_rejected() {
    check(
        &JSON,
        "{\"mcpServers\": {},\n\"mcpServers\": {}}",
        "`mcpServers` is defined twice, in line 1 and line 2",
    );
    check_edits(
        &JSON,
        "{\"mcpServers\": {\"ours\": 1,\n\n\"\\u006furs\": {}}}",
        "`ours` is defined twice, in line 1 and line 3",
    );
    check_upsert(
        &JSON,
        "{\"mcpServers\": {\"ours\": {\n\"url\": 1,\n\"url\": 2}}}",
        "`url` is defined twice, in line 2 and line 3",
    );
    check(
        &TOML,
        "a = 1\n[mcp_servers.ours]\nurl = 1\n[mcp_servers.ours]\n",
        "`mcp_servers.ours` is defined twice, in line 2 and line 4",
    );
    check(
        &TOML,
        "[mcp_servers.ours]\nurl = 1\n\nurl = 1",
        "`mcp_servers.ours.url` is defined twice, in line 2 and line 4",
    );
}

#[test]
fn foreign_keys_may_be_duplicated() {
    let text = r#"{"a": 1, "a": 2, "mcpServers": {"b": 1, "b": 2}}"#;
    assert!(upsert(text, &JSON, "ours", &fields(), OWNED).is_ok());
}

#[test]
fn dots_in_braces() {
    let expected =
        "line 1, column 17: `ours` is a dotted key inside braces; write it as a table of its own";
    check_upsert(&TOML, "mcp_servers = { ours.url = 1 }", expected);
}

#[test]
fn nesting_depth_is_limited() {
    for depth in [100, 511, 512, 100_000] {
        for (format, open, close) in [
            (Format::Json, "[", "]"),
            (Format::Jsonc, "{\"a\": ", "}"),
            (Format::Toml, "[", "]"),
            (Format::Toml, "{a = ", "}"),
        ] {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let (text, keys) = if format == Format::Toml {
                (format!("a = {nested}\n"), ["mcp_servers"])
            } else {
                (format!("{{\"mcpServers\": {{\"x\": {nested}}}}}"), ["mcpServers"])
            };
            let place = place(format, &keys);
            match upsert(&text, &place, "ours", &fields(), OWNED) {
                Ok(after) => assert!(depth < 512 && after.contains(&nested)),
                Err(error) => assert!(depth >= 80 && error.to_string().starts_with("line 1")),
            }
        }
    }
}

#[test]
fn lone_surrogates_are_accepted() {
    let before =
        "{\n  \"history\": \"\\ud83d\\ude00 \\\\ud83d \\udE00\\uD83D x\",\n  \"mcpServers\": {}\n}";
    let after = upsert(before, &JSON, "ours", &fields(), OWNED).unwrap();
    assert!(after.starts_with(before.split("{}").next().unwrap()));
    assert_eq!(remove(&after, &JSON, "ours", &to_create(before, &JSON).unwrap()).unwrap(), before);
}
