//! Entries that are there: only owned fields change.

use super::{JSON, JSONC, TOML, check_update, find};
use crate::edit::Value;

#[test]
fn equivalent_values_are_not_rewritten() {
    let before = r#"{ "mcpServers" : { "ours":{"url" : "http:\/\/h/mcp","type":"\u0068ttp" } } }"#;
    check_update(&JSON, before, before);
}

#[test]
fn the_users_fields_comments_and_order_stay() {
    check_update(
        &JSONC,
        r#"{
  "mcpServers": {
    "ours": {
      "disabled": true, // not now
      "url": "old", // moved
      "httpUrl": "gone",
      /* mine */
      "autoApprove": ["a",
        "b"],
    },
  },
}
"#,
        r#"{
  "mcpServers": {
    "ours": {
      "disabled": true, // not now
      "url": "http://h/mcp", // moved
      /* mine */
      "autoApprove": ["a",
        "b"],
      "type": "http",
    },
  },
}
"#,
    );
}

#[test]
fn an_empty_entry_is_filled() {
    check_update(
        &JSON,
        "{\n\t\"mcpServers\": {\n\t\t\"ours\": {}\n\t}\n}",
        "{\n\t\"mcpServers\": {\n\t\t\"ours\": {\n\t\t\t\"type\": \"http\",\n\t\t\t\"url\": \"http://h/mcp\"\n\t\t}\n\t}\n}",
    );
}

#[test]
fn entries_are_found_with_their_values() {
    let found =
        find(r#"{"mcpServers": {"ours": {"a": null, "b": 1.50, "c": [1, "x"]}}}"#, &JSON, "ours")
            .unwrap();
    let list = Value::List(vec![Value::Number(1), Value::Text("x".to_owned())]);
    let expected = vec![
        ("a".to_owned(), Value::Other("null".to_owned())),
        ("b".to_owned(), Value::Other("1.50".to_owned())),
        ("c".to_owned(), list),
    ];
    assert_eq!(found, Some(Value::Map(expected)));
}

#[test]
fn a_toml_table_keeps_foreign_keys() {
    check_update(
        &TOML,
        "[mcp_servers.ours] # mine\n  url = 'old' # moved\n  httpUrl = \"x\"\n  # slow\n  timeout = 5\n\n[mcp_servers.ours.env]\nA = \"b\"\n",
        "[mcp_servers.ours] # mine\n  url = \"http://h/mcp\" # moved\n  # slow\n  timeout = 5\n  type = \"http\"\n\n[mcp_servers.ours.env]\nA = \"b\"\n",
    );
}

#[test]
fn toml_in_braces_and_with_dots_is_changed_as_it_is_written() {
    check_update(
        &TOML,
        "[mcp_servers]\nours = { httpUrl = \"x\", enabled = true } # c\n",
        "[mcp_servers]\nours = { enabled = true, type = \"http\", url = \"http://h/mcp\" } # c\n",
    );
    check_update(
        &TOML,
        "mcp_servers.ours.url = \"old\"\nmcp_servers.ours.env.A = 1\nz = 1",
        "mcp_servers.ours.url = \"http://h/mcp\"\nmcp_servers.ours.env.A = 1\nmcp_servers.ours.type = \"http\"\nz = 1",
    );
    check_update(
        &TOML,
        "[mcp_servers]\nours.enabled = true",
        "[mcp_servers]\nours.enabled = true\nours.type = \"http\"\nours.url = \"http://h/mcp\"",
    );
}

#[test]
fn a_toml_entry_that_is_only_implied_gets_its_table() {
    check_update(
        &TOML,
        "a = 1\n\n[mcp_servers.ours.env]\nA = \"b\"\n",
        "a = 1\n\n[mcp_servers.ours]\ntype = \"http\"\nurl = \"http://h/mcp\"\n\n[mcp_servers.ours.env]\nA = \"b\"\n",
    );
}

#[test]
fn an_owned_toml_field_that_is_a_table_becomes_a_value() {
    check_update(
        &TOML,
        "[mcp_servers.ours]\nenabled = true\n\n[mcp_servers.ours.url]\nA = \"b\"\n\n[z]\n",
        "[mcp_servers.ours]\nenabled = true\ntype = \"http\"\nurl = \"http://h/mcp\"\n\n\n[z]\n",
    );
    check_update(
        &TOML,
        "a = 1\n\n[mcp_servers.ours.url]\nA = \"b\"\n\n[z]\n",
        "a = 1\n\n[mcp_servers.ours]\ntype = \"http\"\nurl = \"http://h/mcp\"\n\n\n[z]\n",
    );
}
