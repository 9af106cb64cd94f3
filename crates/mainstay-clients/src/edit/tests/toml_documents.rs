//! Generated TOML: containers and entries in each way in which they can be written.

use super::dice::Dice;

pub(super) struct Document {
    pub(super) text: String,
    /// Lines that have nothing to do with our entry, in their order.
    pub(super) foreign: Vec<String>,
}

/// A document that may have our container and, if asked for, an entry of this name in it.
pub(super) fn document(dice: &mut Dice, entry: Option<&str>) -> Document {
    let entry = entry.map(|name| serde_json::Value::from(name).to_string());
    let mut writer = Writer {
        text: dice.of(&["", "\u{feff}"]).to_owned(),
        foreign: Vec::new(),
        newlines: dice.below(3),
    };
    if entry.is_none() && dice.one_in(12) {
        writer.noise(dice);
        return Document { text: writer.text, foreign: Vec::new() };
    }
    match dice.below(4) {
        0 => writer.inline_container(dice, entry.as_deref()),
        1 => writer.dotted_container(dice, entry.as_deref()),
        2 => writer.explicit_container(dice, entry.as_deref()),
        _ => writer.implied_container(dice, entry.as_deref()),
    }
    writer.noise(dice);
    if dice.one_in(3) {
        let trimmed = writer.text.trim_end_matches(['\n', '\r']).len();
        writer.text.truncate(trimmed);
    }
    Document { text: writer.text, foreign: writer.foreign }
}

struct Writer {
    text: String,
    foreign: Vec<String>,
    newlines: usize,
}

impl Writer {
    fn inline_container(&mut self, dice: &mut Dice, entry: Option<&str>) {
        self.keys(dice, "top");
        let mut members = vec![];
        if dice.one_in(2) {
            members.push("a = { url = \"x\" }".to_owned());
        }
        if let Some(name) = entry {
            members.push(format!("{name} = {}", dice.of(INLINE)));
        }
        if dice.one_in(2) {
            members.push("b.url.deep = 1".to_owned());
        }
        if dice.one_in(2) {
            members.push("b.more = [1, 2]".to_owned());
        }
        let (open, comma, close) = [
            ("{ ", ", ", " }"),
            ("{", ",", "}"),
            ("{\n  ", ",\n  ", "\n}"),
            ("{ # c\n", " , # d\n", ", # e\n}"),
        ][dice.below(4)];
        let inner = if members.is_empty() {
            dice.of(&["{}", "{ }", "{\n}"]).to_owned()
        } else {
            format!("{open}{}{close}", members.join(comma))
        };
        self.line(dice, &format!("mcp_servers = {inner}"));
        self.keys(dice, "more");
        self.tables(dice, "t1");
    }

    fn dotted_container(&mut self, dice: &mut Dice, entry: Option<&str>) {
        self.keys(dice, "top");
        if dice.one_in(2) {
            self.line(dice, "mcp_servers.a.url = \"x\"");
        }
        if let Some(name) = entry {
            self.line(dice, &format!("mcp_servers.{name}.disabled = true"));
            self.noise(dice);
            if dice.one_in(2) {
                self.line(dice, &format!("mcp_servers . {name}.url = 'old'"));
            }
            if dice.one_in(2) {
                self.line(dice, &format!("mcp_servers.{name}.env.A = 1"));
            }
        }
        self.keys(dice, "more");
        self.tables(dice, "t1");
    }

    fn explicit_container(&mut self, dice: &mut Dice, entry: Option<&str>) {
        self.keys(dice, "top");
        self.tables(dice, "t1");
        self.line(
            dice,
            dice.clone().of(&["[mcp_servers]", "[ mcp_servers ] # all", "[\"mcp_servers\"]"]),
        );
        if dice.one_in(2) {
            self.line(dice, "a = { url = \"x\" }");
        }
        let mut rest = None;
        match (entry, dice.below(3)) {
            (Some(name), 0) => self.line(dice, &format!("{name} = {}", dice.clone().of(INLINE))),
            (Some(name), 1) => {
                self.line(dice, &format!("{name}.headers = {{ A = 1 }}"));
                self.line(dice, &format!("  {name}.url = \"old\" # mine"));
            }
            (Some(name), _) => rest = Some(name),
            (None, _) => {}
        }
        if dice.one_in(2) {
            self.line(dice, "z = { url = \"x\" }");
        }
        if let Some(name) = rest {
            self.entry_tables(dice, name);
        }
        self.tables(dice, "t2");
    }

    fn implied_container(&mut self, dice: &mut Dice, entry: Option<&str>) {
        self.keys(dice, "top");
        if dice.one_in(2) {
            self.line(dice, "[mcp_servers.a]");
            self.keys(dice, "url");
        }
        self.tables(dice, "t1");
        if let Some(name) = entry {
            self.entry_tables(dice, name);
        }
        if dice.one_in(2) {
            self.line(dice, "[mcp_servers.\"z.z\"]");
            self.keys(dice, "url");
        }
        self.tables(dice, "t2");
    }

    fn entry_tables(&mut self, dice: &mut Dice, name: &str) {
        let has_header = dice.one_in(2);
        if has_header {
            self.line(dice, &format!("[mcp_servers.{name}]"));
            self.keys(dice, "timeout");
            for field in
                ["url = 'old'", "httpUrl = \"gone\" # c", "url2.a = 1", "type = \"\"\"\nhttp\"\"\""]
            {
                if dice.one_in(2) {
                    self.line(dice, field);
                }
            }
        }
        if !has_header || dice.one_in(2) {
            self.line(dice, &format!("[mcp_servers.{name}.env]"));
            self.keys(dice, "A");
        }
        if dice.one_in(3) {
            self.line(dice, &format!("[[mcp_servers.{name}.rules]]"));
            self.keys(dice, "A");
            self.line(dice, &format!("[[mcp_servers.{name}.rules]]"));
        }
    }

    /// Foreign tables, all below a name that is used once.
    fn tables(&mut self, dice: &mut Dice, name: &str) {
        for index in 0..dice.below(3) {
            let header = match dice.below(4) {
                0 => format!("[{name}.x{index}]"),
                1 => format!("[[{name}.list]]"),
                2 => format!("[ {name} . \"mcp_servers.{index}\" ]"),
                _ => format!("[{name}.x{index}] # [mcp_servers.ours]"),
            };
            self.foreign.push(header.clone());
            self.line(dice, &header);
            self.keys(dice, "k");
        }
    }

    fn keys(&mut self, dice: &mut Dice, name: &str) {
        for index in 0..dice.below(3) {
            let value = dice.of(&[
                "1",
                "\"# no = comment\"",
                "'''\n[mcp_servers.ours]\n'''",
                "[1, # c\n 2]",
                "{ a = 1 }",
                "1.5",
                "2020-01-01",
            ]);
            let line = format!("{name}{index} = {value}");
            if !OF_THE_ENTRY.contains(&name) {
                self.foreign.push(line.clone());
            }
            self.line(dice, &line);
        }
    }

    fn line(&mut self, dice: &mut Dice, line: &str) {
        self.noise(dice);
        self.text.push_str(dice.of(&["", "", "  ", "\t"]));
        self.text.push_str(line);
        self.text.push_str(dice.of(&["", "", " ", " # note"]));
        self.text.push_str(dice.newline(self.newlines));
    }

    fn noise(&mut self, dice: &mut Dice) {
        loop {
            match dice.below(5) {
                0 | 1 => return,
                2 => {}
                3 => self.text.push_str("  "),
                _ => self.text.push_str("# url = \"x\""),
            }
            self.text.push_str(dice.newline(self.newlines));
        }
    }
}

/// Keys that are written only below the headers of the entry.
const OF_THE_ENTRY: &[&str] = &["timeout", "A"];

const INLINE: &[&str] = &[
    "{}",
    "{ url = \"old\", disabled = true }",
    "{disabled=true,httpUrl='x'}",
    "{ env.A = 1, url = \"http://h/mcp\" }",
    "{\n  url = 1, # c\n  env = {}, # d\n}",
];
