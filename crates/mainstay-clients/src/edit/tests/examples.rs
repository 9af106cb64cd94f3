//! New entries in JSON, by example: they look like the file around them.

use super::{JSON, JSONC, check_add, check_remove, names, place, remove, to_create, upsert};
use crate::edit::{Created, Format, Value};

#[test]
fn an_empty_document_is_created_and_removed() {
    let made = r#"{
  "mcpServers": {
    "ours": {
      "type": "http",
      "url": "http://h/mcp"
    }
  }
}
"#;
    for before in ["", " ", "\n", "{}", "{ }"] {
        let expected = if before.starts_with('{') { made.trim_end() } else { made };
        check_add(&JSON, "ours", before, expected);
    }
    check_add(&JSON, "ours", "\u{feff}", &format!("\u{feff}{made}"));
    check_add(&JSON, "ours", "\r\n", &made.replace('\n', "\r\n"));
    check_add(&JSONC, "ours", "// mine", &format!("// mine\n{made}"));
}

#[test]
fn indent_and_line_ends_are_those_of_the_file() {
    let before =
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {\r\n\t\t\t\"url\": \"x\"\r\n\t\t}\r\n\t}\r\n}";
    let added = ",\r\n\t\t\"ours\": {\r\n\t\t\t\"type\": \"http\",\r\n\t\t\t\"url\": \"http://h/mcp\"\r\n\t\t}";
    check_add(
        &JSON,
        "ours",
        before,
        &before.replace("\t\t}\r\n\t}", &format!("\t\t}}{added}\r\n\t}}")),
    );
    check_add(
        &JSON,
        "ours",
        "{\n    \"theme\": \"dark\"\n}\n",
        r#"{
    "theme": "dark",
    "mcpServers": {
        "ours": {
            "type": "http",
            "url": "http://h/mcp"
        }
    }
}
"#,
    );
}

#[test]
fn one_line_stays_one_line() {
    check_add(
        &JSON,
        "ours",
        r#"{"a":1,"mcpServers":{}}"#,
        r#"{"a":1,"mcpServers":{"ours":{"type":"http","url":"http://h/mcp"}}}"#,
    );
    check_add(
        &JSON,
        "ours",
        r#"{ "mcpServers": { "a": { "url": "x" } } }"#,
        r#"{ "mcpServers": { "a": { "url": "x" }, "ours": { "type": "http", "url": "http://h/mcp" } } }"#,
    );
    check_add(
        &JSONC,
        "ours",
        r#"{ "mcpServers": { "a": 1 /* a */, } }"#,
        r#"{ "mcpServers": { "a": 1 /* a */, "ours": { "type": "http", "url": "http://h/mcp" }, } }"#,
    );
}

#[test]
fn comments_and_trailing_commas_stay_where_they_are() {
    check_add(
        &JSONC,
        "ours",
        r#"// settings
{
  "mcpServers": {
    "a": {}, // the first
    // more to come
  },
  "z": 1, /* last */
}
"#,
        r#"// settings
{
  "mcpServers": {
    "a": {}, // the first
    "ours": {
      "type": "http",
      "url": "http://h/mcp"
    },
    // more to come
  },
  "z": 1, /* last */
}
"#,
    );
    check_add(
        &JSONC,
        "ours",
        "{\n  \"mcpServers\": {\n    \"a\": {} // no comma\n  }\n}",
        "{\n  \"mcpServers\": {\n    \"a\": {}, // no comma\n    \"ours\": {\n      \"type\": \"http\",\n      \"url\": \"http://h/mcp\"\n    }\n  }\n}",
    );
    check_add(
        &JSONC,
        "ours",
        "{\n  \"mcpServers\": {\n    // none yet\n  }\n}",
        "{\n  \"mcpServers\": {\n    // none yet\n    \"ours\": {\n      \"type\": \"http\",\n      \"url\": \"http://h/mcp\"\n    }\n  }\n}",
    );
}

#[test]
fn comments_are_delimited_correctly() {
    check_add(
        &JSONC,
        "ours",
        r#"{ "mcpServers": { /*/ not yet */ } }"#,
        r#"{ "mcpServers": { /*/ not yet */ "ours": { "type": "http", "url": "http://h/mcp" } } }"#,
    );
}

#[test]
fn names_and_keys_are_taken_literally() {
    for name in ["a.b", "a/b", "~1", "say \"hi\"", "two words", "ü\n", ""] {
        let key = serde_json::Value::from(name).to_string();
        check_add(
            &place(Format::Json, &["amp.mcpServers"]),
            name,
            r#"{"amp":{"mcpServers":{}},"amp.mcpServers":{"a":1}}"#,
            &format!(
                r#"{{"amp":{{"mcpServers":{{}}}},"amp.mcpServers":{{"a":1,{key}:{{"type":"http","url":"http://h/mcp"}}}}}}"#
            ),
        );
    }
    let escaped = r#"{"mcpServers": {"a\/b": {}, "\u0061": {}}}"#;
    assert_eq!(names(escaped, &JSON).unwrap(), ["a/b", "a"]);
}

#[test]
fn only_the_missing_containers_are_made() {
    let place = place(Format::Jsonc, &["mcp", "servers"]);
    check_add(
        &place,
        "ours",
        "{\n  \"mcp\": {\n    \"timeout\": 5\n  }\n}\n",
        r#"{
  "mcp": {
    "timeout": 5,
    "servers": {
      "ours": {
        "type": "http",
        "url": "http://h/mcp"
      }
    }
  }
}
"#,
    );
    let created = |text| to_create(text, &place).unwrap();
    assert_eq!(created(r#"{"mcp": {"servers": {"a": 1}}}"#), Created::default());
    assert_ne!(created(r#"{"mcp": {}}"#), Created::default());
}

#[test]
fn created_containers_stay_if_others_use_them() {
    let created = to_create("{}", &JSON).unwrap();
    let shared = r#"{"mcpServers": {"ours": {}, "theirs": {}}}"#;
    let left = remove(shared, &JSON, "ours", &created).unwrap();
    assert_eq!(left, r#"{"mcpServers": { "theirs": {}}}"#);
    let noted = "{\n  \"mcpServers\": {\n    // mine\n    \"ours\": {}\n  }\n}";
    let left = remove(noted, &JSONC, "ours", &created).unwrap();
    assert_eq!(left, "{\n  \"mcpServers\": {\n    // mine\n  }\n}");
}

#[test]
fn an_entry_is_removed_with_its_comma_line_and_comment() {
    let entries = |lines: &str| format!("{{\n  \"mcpServers\": {{{lines}\n  }}\n}}\n");
    check_remove(
        &JSONC,
        &entries("\n    // above\n    \"ours\": {}, // on it\n    \"b\": {}"),
        &entries("\n    // above\n    \"b\": {}"),
    );
    check_remove(
        &JSONC,
        &entries("\n    \"a\": {}, // a\n    \"ours\": {} // on it"),
        &entries("\n    \"a\": {} // a"),
    );
    check_remove(
        &JSONC,
        &entries("\n    \"a\": {},\n    \"ours\": {},"),
        &entries("\n    \"a\": {},"),
    );
    check_remove(
        &JSONC,
        &entries("\n    \"a\": {}, // a\n    \"ours\": {}, \"b\": {}"),
        &entries("\n    \"a\": {}, // a\n    \"b\": {}"),
    );
    check_remove(&JSON, r#"{"mcpServers":{"a":1,"ours":2}}"#, r#"{"mcpServers":{"a":1}}"#);
    check_remove(&JSON, &entries("\n    \"ours\": {}"), "{\n  \"mcpServers\": {}\n}\n");
}

#[test]
fn values_of_every_kind_are_written() {
    let list = |items: Vec<Value>| Value::List(items);
    let long = "x".repeat(50);
    let fields = vec![
        ("args".to_owned(), list(vec![super::text("a\\b"), Value::Number(-1), Value::Flag(true)])),
        ("long".to_owned(), list(vec![super::text(&long), super::text(&long)])),
        ("env".to_owned(), Value::Map(vec![("K".to_owned(), Value::Other("1.5".to_owned()))])),
        ("none".to_owned(), Value::Map(vec![])),
    ];
    let after = upsert("{\n}", &place(Format::Json, &[]), "n", &fields, &[]).unwrap();
    assert_eq!(
        after,
        format!(
            r#"{{
  "n": {{
    "args": ["a\\b", -1, true],
    "long": [
      "{long}",
      "{long}"
    ],
    "env": {{
      "K": 1.5
    }},
    "none": {{}}
  }}
}}"#
        )
    );
}
