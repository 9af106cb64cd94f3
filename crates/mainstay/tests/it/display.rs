//! What people see: tables that fit their terminal.

use crate::env::{TestEnv, fixture};

#[test]
fn a_table_fits_the_terminal_and_a_pipe_gets_all_of_it() {
    let env = TestEnv::new();
    let name = "a-server-with-quite-a-long-name";
    env.run_server(name, &[], &[&fixture()]);
    let shown = env.on_terminal(&["ls"]);
    let lines = without_colors(&shown);
    assert_eq!(lines.len(), 2, "{shown}");
    for line in &lines {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(lines[1].contains(name) && lines[1].ends_with('…'), "{shown}");
    let piped = env.ok(["ls"]);
    assert!(piped.contains("TRANSPORT") && piped.contains(&format!("/{name}/mcp\n")), "{piped}");
}

/// Lines without their colours.
fn without_colors(text: &str) -> Vec<String> {
    let mut plain = String::new();
    for (number, piece) in text.split("\u{1b}[").enumerate() {
        let rest =
            if number == 0 { piece } else { piece.split_once('m').map_or("", |(_, rest)| rest) };
        plain.push_str(rest);
    }
    plain.lines().map(str::to_owned).collect()
}
