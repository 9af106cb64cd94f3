//! New entries in TOML, and entries that go, by example.

use super::{TOML, check_add, check_remove, names, place};
use crate::edit::Format;

const OURS: &str = "[mcp_servers.ours]\ntype = \"http\"\nurl = \"http://h/mcp\"\n";

#[test]
fn a_new_entry_is_a_table_at_the_end() {
    for before in ["", "\n", "  "] {
        check_add(&TOML, "ours", before, OURS);
    }
    check_add(&TOML, "ours", "\u{feff}", &format!("\u{feff}{OURS}"));
    check_add(&TOML, "ours", "a = 1\n", &format!("a = 1\n\n{OURS}"));
    check_add(&TOML, "ours", "a = 1", format!("a = 1\n\n{OURS}").trim_end());
    check_add(&TOML, "ours", "# only this\n\n", &format!("# only this\n\n{OURS}"));
    check_add(&TOML, "ours", "a = 1\r\n", &format!("a = 1\n\n{OURS}").replace('\n', "\r\n"));
}

#[test]
fn a_new_entry_follows_its_siblings() {
    check_add(
        &TOML,
        "ours",
        "[mcp_servers.a]\nurl = \"x\"\n# timeout = 3\n\n# about b\n[b]\n",
        &format!("[mcp_servers.a]\nurl = \"x\"\n# timeout = 3\n\n{OURS}\n# about b\n[b]\n"),
    );
    check_add(
        &TOML,
        "ours",
        "[mcp_servers.a.env]\nA = 1\n# about b\n[b]\n",
        &format!("[mcp_servers.a.env]\nA = 1\n\n{OURS}# about b\n[b]\n"),
    );
}

#[test]
fn a_container_in_braces_gets_the_entry_in_braces() {
    let ours = r#"ours = { type = "http", url = "http://h/mcp" }"#;
    check_add(&TOML, "ours", "mcp_servers = {}", &format!("mcp_servers = {{ {ours} }}"));
    check_add(
        &TOML,
        "ours",
        "mcp_servers = { a.b = 1 }\nz = 1\n",
        &format!("mcp_servers = {{ a.b = 1, {ours} }}\nz = 1\n"),
    );
    check_add(
        &TOML,
        "ours",
        "mcp_servers = {\n  a = {}, # a\n}\n",
        &format!("mcp_servers = {{\n  a = {{}}, # a\n  {ours},\n}}\n"),
    );
    check_add(
        &place(Format::Toml, &["mcp", "servers"]),
        "ours",
        "mcp = { x = 1 }\n",
        &format!("mcp = {{ x = 1, servers = {{ {ours} }} }}\n"),
    );
}

#[test]
fn names_are_quoted_where_they_must_be() {
    let before = "[mcp_servers.\"a.b\"]\nurl = \"x\"\n\n[mcp_servers.'c d']\n";
    assert_eq!(names(before, &TOML).unwrap(), ["a.b", "c d"]);
    for name in ["a/b", "x.y", "say \"hi\"", "ü", "", "tab\there", "\u{7f}"] {
        let key = serde_json::Value::from(name).to_string().replace('\u{7f}', "\\u007F");
        let ours = OURS.replace("ours", &key);
        check_add(&TOML, name, "a = 1\n", &format!("a = 1\n\n{ours}"));
    }
}

#[test]
fn an_entry_is_removed_with_all_its_tables() {
    check_remove(
        &TOML,
        "a = 1\n\n# above\n[mcp_servers.ours]\n# in it\nurl = \"x\" # on it\n\n[mcp_servers.ours.env]\nA = 1\n\n[z]\n",
        "a = 1\n\n# above\n\n[z]\n",
    );
    check_remove(
        &TOML,
        "[mcp_servers.ours]\nurl = \"x\"\n[z]\nz = 1\n[mcp_servers.ours.env]\nA = 1",
        "[z]\nz = 1",
    );
    check_remove(
        &TOML,
        "mcp_servers.a.b = 1\nmcp_servers.ours.url = \"x\"\n",
        "mcp_servers.a.b = 1\n",
    );
    check_remove(&TOML, "mcp_servers = { ours = 1, a = 2 }", "mcp_servers = { a = 2 }");
    check_remove(
        &TOML,
        "[mcp_servers]\nours = { url = \"\"\"\nx\"\"\" } # c\nb = {}\n",
        "[mcp_servers]\nb = {}\n",
    );
}
